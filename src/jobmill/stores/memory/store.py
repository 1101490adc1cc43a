"""The reference store: the whole port in plain Python, in one process, gone when the process ends.

Read it to learn what a verb promises. Each verb is a function of a context, in a file of its own. A lock lets one verb
run at a time, so that threads with their own event loops may share the store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Concatenate, ParamSpec, TypeVar

from jobmill.core.changes import Change, Changed
from jobmill.core.events import Event
from jobmill.core.job import Job
from jobmill.core.values import (
    Claim,
    Count,
    Exchanged,
    Filter,
    Lease,
    LogLine,
    NewJob,
    Page,
    Purged,
    QueueChange,
    QueueSettings,
    Receipt,
    Report,
    Stats,
)
from jobmill.stores.common.bell import Bell
from jobmill.stores.common.ids import new_id
from jobmill.stores.memory import feed, read
from jobmill.stores.memory import queues as queue_verbs
from jobmill.stores.memory.change import change as change_jobs
from jobmill.stores.memory.context import MemoryContext
from jobmill.stores.memory.enqueue import enqueue
from jobmill.stores.memory.exchange import exchange
from jobmill.stores.memory.extend import extend
from jobmill.stores.memory.purge import purge
from jobmill.stores.memory.report import report

if TYPE_CHECKING:
    from jobmill.core.values import Settlement

T = TypeVar("T")
P = ParamSpec("P")
Verb = Callable[Concatenate[MemoryContext, P], T]


class MemoryStore:
    """Jobs in dictionaries."""

    name: ClassVar[str] = "memory"
    exchanges_in_flight: ClassVar[int] = 1

    def __init__(self, *, clock: Callable[[], int] | None = None) -> None:
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._lock = threading.Lock()
        self._bell = Bell()
        self._context = MemoryContext()

    @property
    def address(self) -> str:
        """This process."""
        return "this process"

    async def open(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """There is nothing to close: the jobs live as long as this object."""

    async def migrate(self) -> list[str]:
        """There is nothing to migrate."""
        return []

    def now(self) -> int:
        """The clock that was passed in, or this machine's."""
        return self._clock()

    def new_id(self) -> str:
        """A uuid7."""
        return new_id()

    async def enqueue(self, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        return self._run(enqueue, new_jobs)

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        return self._run(exchange, settlements, claim)

    async def extend(self, leases: Sequence[Lease], for_ms: int) -> list[str]:
        return self._run(extend, leases, for_ms)

    async def report(self, reports: Sequence[Report]) -> list[str]:
        return self._run(report, reports)

    async def wait_for_work(self, queues: Sequence[str], until_ms: int) -> None:
        await self._bell.wait(queues, (until_ms - self._clock()) / 1000)

    async def change(self, which: Sequence[str] | Filter, change: Change, limit: int = 1_000) -> Changed:
        return self._run(change_jobs, which, change, limit)

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        return self._run(read.get, ids)

    async def find(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        return self._run(read.find, filter, cursor, limit)

    async def count(self, filter: Filter) -> list[Count]:
        return self._run(read.count, filter)

    async def stats(self, queue: str | None = None, name: str | None = None) -> list[Stats]:
        return self._run(read.stats, queue, name)

    async def logs(self, id: str, limit: int = 1_000) -> list[LogLine]:
        return self._run(read.logs, id, limit)

    async def purge(self, limit: int = 1_000) -> Purged:
        return self._run(purge, limit)

    async def configure(self, queue: str, change: QueueChange) -> QueueSettings:
        return self._run(queue_verbs.configure, queue, change)

    async def settings(self, queues: Sequence[str] | None = None) -> dict[str, QueueSettings]:
        return self._run(queue_verbs.settings, queues)

    async def publish(self, events: Sequence[Event]) -> None:
        self._run(feed.publish, events)

    async def events(self, queue: str, after: str | None = None, limit: int = 1_000) -> list[Event]:
        return self._run(feed.events, queue, after, limit)

    def _run(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb alone, at one instant; then wake sleeping workers where it may have made work."""
        with self._lock:
            self._context.now_ms, self._context.wakes = self._clock(), False
            answer = verb(self._context, *args, **kwargs)
            if self._context.wakes:
                self._bell.ring()
        return answer
