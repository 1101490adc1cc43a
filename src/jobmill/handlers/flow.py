"""Flows: jobs that were enqueued together and wait for each other, as users look at them and act on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from jobmill.core.changes import Changed
from jobmill.core.durations import to_datetime
from jobmill.core.job import State
from jobmill.core.values import Count

#: The number of rounds in which a retry requeues jobs: each round may free jobs that wait for those of the last one.
MAX_ROUNDS = 100


class HasTime(Protocol):
    """What a flow uses of a store."""

    def now(self) -> int:
        """The time of the store in milliseconds."""


class ManagesFlows(Protocol):
    """What a flow uses of a client."""

    @property
    def store(self) -> HasTime:
        """Where its jobs are."""

    async def open(self) -> None:
        """Connect. The time of the store is known from then on."""

    async def count(self, *, flow: str | None = ...) -> list[Count]:
        """How many jobs match."""

    async def cancel(self, *, who: str | None = ..., flow: str | None = ...) -> Changed:
        """Cancel jobs."""

    async def requeue(
        self,
        *,
        who: str | None = ...,
        flow: str | None = ...,
        states: State | Sequence[State] | None = ...,
        finished_before: datetime | None = ...,
    ) -> Changed:
        """Requeue jobs."""


class FlowProgress(Struct, frozen=True, kw_only=True):
    """How many jobs of a flow are in each state. Jobs that were removed are not counted."""

    waiting: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def total(self) -> int:
        """All jobs of the flow."""
        return self.waiting + self.running + self.done

    @property
    def done(self) -> int:
        """The jobs that have ended, in whatever way."""
        return self.succeeded + self.failed + self.cancelled

    @property
    def is_done(self) -> bool:
        """Whether all jobs have ended."""
        return not self.waiting and not self.running


class Flow:
    """A flow by its id: how far it is, cancel it, retry what failed."""

    __slots__ = ("_client", "id")

    def __init__(self, client: ManagesFlows, id: str) -> None:
        self._client = client
        self.id = id

    def __repr__(self) -> str:
        """Its id."""
        return f"Flow({self.id!r})"

    async def progress(self) -> FlowProgress:
        """How many of its jobs are in each state."""
        counts: dict[str, int] = {}
        for one in await self._client.count(flow=self.id):
            counts[one.state] = counts.get(one.state, 0) + one.count
        return FlowProgress(**counts)

    async def cancel(self, *, who: str | None = None) -> int:
        """Cancel all its jobs that have not ended; how many."""
        return len((await self._client.cancel(flow=self.id, who=who)).ids)

    async def retry(self, *, who: str | None = None) -> int:
        """Requeue its jobs that failed or were cancelled, and those that failed because of them; how many.

        A job is requeued once the jobs that it waits for have succeeded or are live again, so it takes some rounds. A
        job that fails again meanwhile stays failed.
        """
        await self._client.open()
        ended = to_datetime(self._client.store.now() + 1)
        wanted: Sequence[State] = ("failed", "cancelled")

        async def requeue() -> Changed:
            return await self._client.requeue(flow=self.id, states=wanted, finished_before=ended, who=who)

        return len((await in_rounds(requeue)).ids)


async def in_rounds(change: Callable[[], Awaitable[Changed]], rounds: int = MAX_ROUNDS) -> Changed:
    """Change the jobs of a flow until a round changes no further job, or refuses none; with the last refusals."""
    ids: dict[str, None] = {}
    refused: dict[str, str] = {}
    for _ in range(rounds):
        changed = await change()
        is_further = not ids.keys() >= set(changed.ids)
        ids |= dict.fromkeys(changed.ids)
        refused = changed.refused
        if not is_further or not refused:
            break
    return Changed(ids=list(ids), refused=refused)
