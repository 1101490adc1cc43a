"""From drafts that wait for each other to new jobs: which are enqueued, in which order, with which ids."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct, structs

from jobmill.core.flows import find_cycle, recurring_dependency
from jobmill.core.values import NewJob
from jobmill.errors import InvalidValue
from jobmill.handlers.draft import Draft, Group, afters


class FlowPlan(Struct, frozen=True):
    """All drafts of a call that enqueues a flow: dependencies first."""

    drafts: list[Draft[Any]]
    #: Where the drafts of the caller are in that list, in the caller's order.
    wanted: list[int]
    #: The id of the flow; None if one must be made.
    flow: str | None

    @staticmethod
    def of(given: Sequence[Draft[Any]], flow: str | None = None) -> FlowPlan:
        """Collect all drafts that are needed. References count by identity: equal drafts are different jobs."""
        ordered = _dependencies_first(given)
        at = {id(draft): index for index, draft in enumerate(ordered)}
        referenced = {id(part) for draft in ordered for need in draft.needs for part in need.parts}
        times = Counter(map(id, given))
        for draft in given:
            if times[id(draft)] > 1 and id(draft) in referenced:
                advice = "other drafts wait for it, so it must be one job"
                raise InvalidValue("drafts", "a draft that others wait for only once", draft, advice)
        return FlowPlan(ordered, [at[id(draft)] for draft in given], flow or _root_id(ordered, referenced))

    def new_jobs(
        self,
        drafts: Sequence[Draft[Any]],
        new_id: Callable[[], str],
        new_job: Callable[[Draft[Any], str], NewJob],
        *,
        derive: bool = True,
    ) -> list[NewJob]:
        """The jobs to enqueue. `drafts` are those of the plan, to which observers may have added headers.

        Where the flow has an id that was given, ids of jobs are derived from it, unless the caller makes them.
        """
        if self.flow is not None and derive:
            numbers = itertools.count()
            new_id = lambda: f"{self.flow}.{next(numbers)}"  # noqa: E731
        given = [draft.options.id or new_id() for draft in self.drafts]
        flow = self.flow or (new_id() if len(self.wanted) > 1 else given[-1])
        by_draft = {id(draft): known for draft, known in zip(self.drafts, given, strict=True)}
        made = [
            structs.replace(new_job(draft, known), after=afters(old.needs, by_draft), flow=flow)
            for draft, old, known in zip(drafts, self.drafts, given, strict=True)
        ]
        _check(made)
        return made


def _dependencies_first(given: Iterable[Draft[Any]]) -> list[Draft[Any]]:
    """All drafts, each after those that it waits for. Without recursion: a chain may have any length."""
    ordered: list[Draft[Any]] = []
    seen: set[int] = set()
    for root in given:
        stack: list[tuple[Draft[Any], bool]] = [(root, False)]
        while stack:
            draft, is_left = stack.pop()
            if is_left:
                ordered.append(draft)
            elif id(draft) not in seen:
                seen.add(id(draft))
                stack.append((draft, True))
                needed = [part for need in draft.needs for part in need.parts if isinstance(part, Draft)]
                stack += [(part, False) for part in reversed(needed)]
    return ordered


def _root_id(ordered: Sequence[Draft[Any]], referenced: set[int]) -> str | None:
    """The id that the caller gave to the only draft that nobody waits for: the ids of the others follow from it."""
    roots = [draft for draft in ordered if id(draft) not in referenced]
    return roots[0].options.id if len(roots) == 1 else None


def _check(new_jobs: Sequence[NewJob]) -> None:
    """Refuse what no store can do: jobs that wait for each other in a circle, recurring jobs and policies in flows.

    Jobs of the call with the same unique key become one job, and count as one in a circle.
    """
    keys = {new.id: f"{new.queue}\n{new.name}\n{new.unique_key}" if new.unique_key else new.id for new in new_jobs}
    waits_for: dict[str, list[str]] = {}
    for new in new_jobs:
        waits_for.setdefault(keys[new.id], []).extend(keys.get(after.id, after.id) for after in new.after)
        if new.recurrence is not None:
            raise recurring_dependency(new.id)
        if new.policy is not None:
            expected = "a job without unique_for, debounce and when_live in a flow"
            raise InvalidValue("unique_key", expected, new.unique_key, "the jobs that wait for it need one job")
    cycle = find_cycle(waits_for)
    if cycle is not None:
        shown = cycle if len(cycle) <= 10 else [*cycle[:5], "…", *cycle[-4:]]
        raise InvalidValue("after", "jobs that do not wait for each other in a circle", " > ".join(shown))


def all_drafts(parts: Iterable[Draft[Any] | Group[Any]]) -> tuple[Draft[Any], ...]:
    """The drafts of a new group. A group in it stands for its own drafts."""
    drafts: list[Draft[Any]] = []
    for part in parts:
        if not isinstance(part, Draft | Group):
            raise InvalidValue("drafts", "drafts or groups of drafts", part, "handler.draft(...) makes one")
        drafts += part.drafts if isinstance(part, Group) else (part,)
    return tuple(drafts)
