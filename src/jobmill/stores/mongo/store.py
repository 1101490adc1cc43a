"""The port on MongoDB: Monque's documents, changed by commands of our own, so that Node processes can share them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

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
from jobmill.stores.mongo import feed, read, schema
from jobmill.stores.mongo import queues as queue_verbs
from jobmill.stores.mongo.change import change as change_jobs
from jobmill.stores.mongo.connection import translated_errors
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.enqueue import enqueue
from jobmill.stores.mongo.exchange import exchange
from jobmill.stores.mongo.extend import extend
from jobmill.stores.mongo.ids import new_object_id
from jobmill.stores.mongo.purge import purge
from jobmill.stores.mongo.report import report
from jobmill.stores.mongo.wake import note_standalone, wait_for_work
from jobmill.stores.mongo.within import enqueue_within

if TYPE_CHECKING:
    from jobmill.core.values import Settlement

T = TypeVar("T")


class MongoStore:
    """Jobs in a collection that Monque can share."""

    name: ClassVar[str] = "mongo"
    exchanges_in_flight: ClassVar[int] = 2

    def __init__(self, url: str, clock: Callable[[], int] | None = None) -> None:
        self.context = MongoContext(url, clock)
        self._is_checked = False

    @property
    def address(self) -> str:
        """The URL without its password, and the collection."""
        return self.context.url.address

    async def open(self) -> None:
        """Connect, check version and indexes, measure the clock."""
        ctx = self.context
        with translated_errors(ctx.url):
            response = await ctx.measure_clock()
            if not self._is_checked:
                await schema.check_version(ctx)
                await schema.check_indexes(ctx)
                self._is_checked = True
        if "setName" not in response and response.get("msg") != "isdbgrid":
            note_standalone(ctx)

    async def close(self) -> None:
        """Close all connections, also those of other loops."""
        await self.context.streams.close()
        await self.context.connections.close()

    async def _run(self, verb: Awaitable[T]) -> T:
        with translated_errors(self.context.url):
            return await verb

    async def migrate(self) -> list[str]:
        """Make the missing indexes; their names."""
        return await self._run(schema.migrate(self.context))

    def now(self) -> int:
        """See the port."""
        return self.context.now()

    def new_id(self) -> str:
        """An ObjectId."""
        return str(new_object_id())

    async def enqueue(self, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        """See the port."""
        return await self._run(enqueue(self.context, new_jobs))

    async def enqueue_within(self, connection: Any, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        """See the port."""
        return await enqueue_within(self.context, connection, new_jobs)

    def check_unlocked(self) -> None:
        """Nothing blocks: MongoDB reports conflicts instead."""

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        """See the port."""
        return await self._run(exchange(self.context, settlements, claim))

    async def extend(self, leases: Sequence[Lease], for_ms: int) -> list[str]:
        """See the port."""
        return await self._run(extend(self.context, leases, for_ms))

    async def report(self, reports: Sequence[Report]) -> list[str]:
        """See the port."""
        return await self._run(report(self.context, reports))

    async def wait_for_work(self, queues: Sequence[str], until_ms: int) -> None:
        """See the port."""
        await wait_for_work(self.context, queues, until_ms)

    async def change(self, which: Sequence[str] | Filter, change: Change, limit: int = 1_000) -> Changed:
        """See the port."""
        return await self._run(change_jobs(self.context, which, change, limit))

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """See the port."""
        return await self._run(read.get(self.context, ids))

    async def find(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        """See the port."""
        return await self._run(read.find(self.context, filter, cursor, limit))

    async def count(self, filter: Filter) -> list[Count]:
        """See the port."""
        return await self._run(read.count(self.context, filter))

    async def stats(self, queue: str | None = None, name: str | None = None) -> list[Stats]:
        """See the port."""
        return await self._run(read.stats(self.context, queue, name))

    async def logs(self, id: str, limit: int = 1_000) -> list[LogLine]:
        """See the port."""
        return await self._run(read.logs(self.context, id, limit))

    async def purge(self, limit: int = 1_000) -> Purged:
        """See the port."""
        return await self._run(purge(self.context, limit))

    async def configure(self, queue: str, change: QueueChange) -> QueueSettings:
        """See the port."""
        return await self._run(queue_verbs.configure(self.context, queue, change))

    async def settings(self, queues: Sequence[str] | None = None) -> dict[str, QueueSettings]:
        """See the port."""
        return await self._run(queue_verbs.settings(self.context, queues))

    async def publish(self, events: Sequence[Event]) -> None:
        """See the port."""
        await self._run(feed.publish(self.context, events))

    async def events(self, queue: str, after: str | None = None, limit: int = 1_000) -> list[Event]:
        """See the port."""
        return await self._run(feed.read_events(self.context, queue, after, limit))
