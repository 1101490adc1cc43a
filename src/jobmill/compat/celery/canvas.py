"""Celery's canvas on flows: chain, group and chord of signatures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from jobmill.compat.celery.binding import Binding
from jobmill.compat.celery.result import AsyncResult
from jobmill.errors import InvalidValue
from jobmill.handlers.draft import Draft, Group

if TYPE_CHECKING:
    from jobmill.compat.celery.task import Signature

#: A part of a canvas.
Part: TypeAlias = "Signature[Any] | Canvas"
#: What a part becomes: a job, or the jobs of a group.
Drafted: TypeAlias = Draft[Any] | Group[Any]


class GroupResult:
    """The results of the jobs of a group, in order."""

    def __init__(self, id: str, results: list[AsyncResult[Any]]) -> None:
        self.id, self.results = id, results

    def __repr__(self) -> str:
        """The id and the number of jobs."""
        return f"<GroupResult: {self.id} of {len(self.results)} jobs>"

    def __len__(self) -> int:
        """How many jobs it has."""
        return len(self.results)

    def get(self, timeout: float | None = None, *, propagate: bool = True) -> list[Any]:
        """Wait for all results; `timeout` counts for each."""
        return [one.get(timeout, propagate=propagate) for one in self.results]

    def ready(self) -> bool:
        """Whether all jobs are final."""
        return all(one.ready() for one in self.results)

    def successful(self) -> bool:
        """Whether all jobs succeeded."""
        return all(one.successful() for one in self.results)

    def failed(self) -> bool:
        """Whether a job failed."""
        return any(one.failed() for one in self.results)

    def completed_count(self) -> int:
        """How many jobs succeeded."""
        return sum(one.successful() for one in self.results)

    def revoke(self, *, terminate: bool = False) -> None:
        """Cancel the jobs."""
        for one in self.results:
            one.revoke(terminate=terminate)


class Canvas:
    """What chains, groups and chords have in common."""

    def __or__(self, other: Part) -> chain:
        """This, then another part, which gets the result as its first argument."""
        return chain(self, other)

    def __call__(self) -> Any:
        """Enqueue it, as Celery does for a canvas that is called."""
        return self.apply_async()

    def delay(self) -> Any:
        """Enqueue it."""
        return self.apply_async()

    def apply_async(self) -> Any:
        """Enqueue all jobs in one call."""
        raise NotImplementedError

    def drafted(self, before: Drafted | None) -> Drafted:
        """The last jobs of this part, which wait for the jobs before it."""
        raise NotImplementedError

    @property
    def binding(self) -> Binding:
        """Where the tasks belong to."""
        raise NotImplementedError


class chain(Canvas):  # noqa: N801 - Celery's name
    """Parts that run one after the other. Each gets the result of the part before as its first argument."""

    def __init__(self, *parts: Part | Iterable[Part]) -> None:
        self.parts = _parts(parts)
        if not self.parts:
            raise InvalidValue("chain", "at least one signature", parts)

    @property
    def binding(self) -> Binding:
        """Where the tasks belong to."""
        binding: Binding = self.parts[0].binding
        return binding

    def drafted(self, before: Drafted | None) -> Drafted:
        """The last jobs of the chain."""
        for part in self.parts:
            before = part.drafted(before)
        assert before is not None
        return before

    def apply_async(self) -> Any:
        """Enqueue all jobs in one call; the result of the last part."""
        return _enqueue(self.drafted(None), self.binding)


class group(Canvas):  # noqa: N801 - Celery's name
    """Signatures that run at the same time."""

    def __init__(self, *parts: Part | Iterable[Part]) -> None:
        self.parts = _parts(parts)
        if not self.parts:
            raise InvalidValue("group", "at least one signature", parts)

    @property
    def binding(self) -> Binding:
        """Where the tasks belong to."""
        binding: Binding = self.parts[0].binding
        return binding

    def drafted(self, before: Drafted | None) -> Drafted:
        """The jobs of the group."""
        drafted = [part.drafted(before) for part in self.parts]
        return self.binding.client.group(drafted)

    def apply_async(self) -> Any:
        """Enqueue all jobs in one call."""
        return _enqueue(self.drafted(None), self.binding)


class chord(Canvas):  # noqa: N801 - Celery's name
    """A group, and a signature that gets the list of its results as its first argument."""

    def __init__(self, header: group | Iterable[Part], body: Part | None = None) -> None:
        self.header = header if isinstance(header, group) else group(header)
        self.body = body

    def __call__(self, body: Part | None = None) -> Any:
        """Enqueue it with this body: `chord(header)(body)`."""
        return chord(self.header, body or self.body).apply_async()

    @property
    def binding(self) -> Binding:
        """Where the tasks belong to."""
        return self.header.binding

    def drafted(self, before: Drafted | None) -> Drafted:
        """The job of the body."""
        if self.body is None:
            raise InvalidValue("chord", "a body: chord(header)(body)", None)
        return self.body.drafted(self.header.drafted(before))

    def apply_async(self) -> Any:
        """Enqueue all jobs in one call; the result of the body."""
        return _enqueue(self.drafted(None), self.binding)


def _parts(given: tuple[Any, ...]) -> list[Any]:
    """Parts that are given one by one, or as one list or generator. A chain in a chain is its parts."""
    is_one_iterable = len(given) == 1 and isinstance(given[0], Iterable) and not isinstance(given[0], Canvas)
    parts = list(given[0]) if is_one_iterable else list(given)
    return [one for part in parts for one in (part.parts if isinstance(part, chain) else [part])]


def _enqueue(last: Drafted, binding: Binding) -> Any:
    drafts = (last,) if isinstance(last, Draft) else last.drafts
    results: list[AsyncResult[Any]] = [AsyncResult(id, binding) for id in binding.client.send(drafts)]
    return results[0] if isinstance(last, Draft) else GroupResult(results[0].id, results)
