"""The port on Redis: BullMQ's data and scripts of our own, so that Node's processes may share every queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

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
from jobmill.errors import StoreError
from jobmill.stores.common.ids import new_id
from jobmill.stores.redis import change as changes
from jobmill.stores.redis import enqueue, exchange, extend, feed, purge, read, report, wake
from jobmill.stores.redis import queues as queue_settings
from jobmill.stores.redis.bullmq import BullmqDoor
from jobmill.stores.redis.context import RedisContext

if TYPE_CHECKING:
    from jobmill.core.values import Settlement

# RPOP with a count, LPOS and COPY came with 6.2.
MIN_VERSION = (6, 2)


class RedisStore:
    """Jobs as BullMQ has them. There is nothing to migrate: a queue exists from its first job on."""

    name: ClassVar[str] = "redis"
    exchanges_in_flight: ClassVar[int] = 2

    def __init__(self, url: str, *, clock: Callable[[], int] | None = None, linger_ms: int | None = None) -> None:
        self._context = RedisContext(url, clock, linger_ms)
        self._is_checked = False

    @property
    def address(self) -> str:
        """The URL without its password, and the prefix."""
        return self._context.url.address

    def bullmq(self, queue: str) -> BullmqDoor:
        """What `jobmill.bullmq` needs of a queue and the port does not have."""
        return BullmqDoor(self._context, queue)

    async def open(self) -> None:
        """Connect, check the version, measure the clock."""
        if not self._is_checked:
            await self._check_version()
            self._is_checked = True
        await self._context.learn_time()

    async def close(self) -> None:
        """Close all connections, also those of other event loops."""
        await self._context.client.close()

    async def migrate(self) -> list[str]:
        """Nothing to migrate."""
        return []

    def now(self) -> int:
        return self._context.clock.now()

    def new_id(self) -> str:
        return new_id()

    async def enqueue(self, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        return await enqueue.enqueue(self._context, new_jobs)

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        return await exchange.exchange(self._context, settlements, claim)

    async def extend(self, leases: Sequence[Lease], for_ms: int) -> list[str]:
        return await extend.extend(self._context, leases, for_ms)

    async def report(self, reports: Sequence[Report]) -> list[str]:
        return await report.report(self._context, reports)

    async def wait_for_work(self, queues: Sequence[str], until_ms: int) -> None:
        await wake.wait_for_work(self._context, queues, until_ms)

    async def change(self, which: Sequence[str] | Filter, change: Change, limit: int = 1_000) -> Changed:
        return await changes.change(self._context, which, change, limit)

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        return await read.get(self._context, ids)

    async def find(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        return await read.find(self._context, filter, cursor, limit)

    async def count(self, filter: Filter) -> list[Count]:
        return await read.count(self._context, filter)

    async def stats(self, queue: str | None = None, name: str | None = None) -> list[Stats]:
        return await read.stats(self._context, queue, name)

    async def logs(self, id: str, limit: int = 1_000) -> list[LogLine]:
        return await read.logs(self._context, id, limit)

    async def purge(self, limit: int = 1_000) -> Purged:
        return await purge.purge(self._context, limit)

    async def configure(self, queue: str, change: QueueChange) -> QueueSettings:
        return await queue_settings.configure(self._context, queue, change)

    async def settings(self, queues: Sequence[str] | None = None) -> dict[str, QueueSettings]:
        return await queue_settings.settings(self._context, queues)

    async def publish(self, events: Sequence[Event]) -> None:
        await feed.publish(self._context, events)

    async def events(self, queue: str, after: str | None = None, limit: int = 1_000) -> list[Event]:
        return await feed.events(self._context, queue, after, limit)

    async def _check_version(self) -> None:
        info: bytes = await self._context.client.call(self._context.key(""), "INFO", "server")
        version = next((line[14:] for line in info.decode().splitlines() if line.startswith("redis_version:")), "")
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
        if numbers < MIN_VERSION:
            raise StoreError(
                f"{self._context.url.text} is Redis {version}; Jobmill needs Redis 6.2 or newer, or Valkey"
            )
