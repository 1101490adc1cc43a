"""Management of jobs by a client: cancel, requeue, reschedule, reprioritize, remove, purge."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Unpack

from msgspec import structs

from jobmill.client.filters import FilterOptions, make_filter
from jobmill.client.query import QueriesJobs
from jobmill.core import limits
from jobmill.core.changes import Cancel, Change, Changed, Remove, Reprioritize, Requeue, Reschedule, states_for
from jobmill.core.durations import to_ms
from jobmill.core.job import FINAL
from jobmill.core.values import EVERYTHING, Filter, Purged, after
from jobmill.errors import InvalidValue
from jobmill.handlers.options import Duration, enqueue_options

CHANGES_PER_CALL = 1_000


class ManagesJobs(QueriesJobs):
    """The part of a client that changes jobs: one id, several ids, all that match, or all=True."""

    async def cancel(
        self, which: str | Iterable[str] | None = None, *, all: bool = False, **filters: Unpack[FilterOptions]
    ) -> Changed:
        """Cancel waiting and running jobs."""
        return await self._change(_wanted(which, all, filters), Cancel())

    async def requeue(
        self,
        which: str | Iterable[str] | None = None,
        *,
        all: bool = False,
        spread: Duration = 0,
        **filters: Unpack[FilterOptions],
    ) -> Changed:
        """Run final jobs again with fresh budgets; several are spread evenly over the period `spread`."""
        spread_ms = to_ms(spread, "spread")
        wanted = _wanted(which, all, filters)
        total = 0
        if spread_ms and isinstance(wanted, list):
            total = len(wanted)
        elif spread_ms:
            total = sum(one.count for one in await self.count(**filters) if one.state in FINAL)
        return await self._change(wanted, Requeue(step_ms=spread_ms / max(1, total)))

    async def reschedule(
        self,
        which: str | Iterable[str] | None = None,
        *,
        delay: Duration | None = None,
        due_at: datetime | None = None,
        all: bool = False,
        **filters: Unpack[FilterOptions],
    ) -> Changed:
        """Give waiting jobs another due time."""
        if delay is None and due_at is None:
            raise InvalidValue("due_at", "delay or due_at", None)
        due = enqueue_options({"delay": delay, "due_at": due_at}).due
        return await self._change(_wanted(which, all, filters), Reschedule(due))

    async def reprioritize(
        self,
        which: str | Iterable[str] | None = None,
        *,
        priority: int,
        all: bool = False,
        **filters: Unpack[FilterOptions],
    ) -> Changed:
        """Give waiting jobs another priority."""
        return await self._change(_wanted(which, all, filters), Reprioritize(limits.check_priority(priority)))

    async def remove(
        self, which: str | Iterable[str] | None = None, *, all: bool = False, **filters: Unpack[FilterOptions]
    ) -> Changed:
        """Remove jobs that are not running (cancel those first)."""
        return await self._change(_wanted(which, all, filters), Remove())

    async def _change(self, wanted: Filter | list[str], change: Change) -> Changed:
        await self.open()
        changed: list[str] = []
        refused: dict[str, str] = {}
        more = True
        while more:
            if isinstance(wanted, list):
                part, wanted = wanted[:CHANGES_PER_CALL], wanted[CHANGES_PER_CALL:]
                answer = await self.store.change(part, change, CHANGES_PER_CALL)
                more = bool(wanted)
            else:
                answer = await self.store.change(wanted, change, CHANGES_PER_CALL)
                more = answer.more
            changed += answer.ids
            refused.update(answer.refused)
            change = _moved_on(change, len(answer.ids))
            if more and isinstance(wanted, Filter) and len(answer.refused) > CHANGES_PER_CALL // 2:
                # Refused jobs still match and would fill the next call as well: continue by id, without them.
                selected = structs.replace(wanted, states=states_for(change, wanted))
                wanted = [job.id async for job in self._matches(selected) if job.id not in refused]
        return Changed(ids=changed, refused=refused)

    async def purge(self) -> int:
        """Remove final jobs past their retention now (workers do so by themselves); how many went."""
        await self.open()
        removed = 0
        while True:
            purged: Purged = await self.store.purge()
            removed += purged.removed
            if not purged.more:
                return removed


def _wanted(which: str | Iterable[str] | None, all: bool, filters: FilterOptions) -> Filter | list[str]:
    """Which jobs to change. All of them only with all=True, never because the only filter given is None."""
    wanted = make_filter(filters)
    if which is None:
        if wanted == EVERYTHING and not all:
            raise InvalidValue("which", "ids, at least one filter, or all=True", None)
        return wanted
    if all or wanted != EVERYTHING:
        raise InvalidValue("which", "ids, or filters, or all=True, not several of them", which)
    given: Any = which
    ids = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    return [limits.check_known_id(id, "which", "an id, or several") for id in ids]


def _moved_on(change: Change, done: int) -> Change:
    """A spread requeue continues where the last batch ended."""
    if isinstance(change, Requeue) and change.step_ms:
        return structs.replace(change, due=after(change.due.after_ms + round(done * change.step_ms)))
    return change
