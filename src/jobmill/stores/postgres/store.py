"""The port on PostgreSQL: each verb is a statement or a short transaction on one of a few connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from jobmill.core.changes import Change, Changed
from jobmill.core.events import Event
from jobmill.core.job import Job
from jobmill.core.usage import Usage
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
from jobmill.stores.common.ids import new_id
from jobmill.stores.postgres import feed, read, roles, schema
from jobmill.stores.postgres.change import change as change_jobs
from jobmill.stores.postgres.connection.connector import Connection
from jobmill.stores.postgres.context import PostgresContext
from jobmill.stores.postgres.enqueue import enqueue
from jobmill.stores.postgres.exchange import exchange
from jobmill.stores.postgres.extend import extend
from jobmill.stores.postgres.purge import purge
from jobmill.stores.postgres.queues import configure, settings_of
from jobmill.stores.postgres.report import report
from jobmill.stores.postgres.url import PostgresUrl
from jobmill.stores.postgres.usage import record_usage
from jobmill.stores.postgres.within import enqueue_within

if TYPE_CHECKING:
    from jobmill.core.values import Settlement
T = TypeVar("T")


class PostgresStore:
    """Jobs in a schema of a PostgreSQL database. Migrations are explicit: `migrate`, or `jobmill migrate`."""

    name: ClassVar[str] = "postgres"
    exchanges_in_flight: ClassVar[int] = 2

    def __init__(
        self, url: str, *, schema: str | None = None, pool: int | None = None, clock: Callable[[], int] | None = None
    ) -> None:
        self.context = PostgresContext(PostgresUrl.parse(url, schema=schema, pool_size=pool), clock)

    @property
    def address(self) -> str:
        return self.context.url.address

    async def open(self) -> None:
        await schema.open_schema(self.context)

    async def close(self) -> None:
        await self.context.loops.close()

    async def migrate(self) -> list[str]:
        return await schema.migrate(self.context)

    def now(self) -> int:
        return self.context.clock.now()

    def new_id(self) -> str:
        return new_id()

    # ------------------------------------------------------------------------------------------------ jobs

    async def enqueue(self, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        return await enqueue(self.context, new_jobs)

    async def enqueue_within(self, connection: Any, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        return await enqueue_within(self.context, connection, new_jobs)

    def check_unlocked(self) -> None:
        """A transaction of the caller's locks nothing here but the keys that it has enqueued."""

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        return await exchange(self.context, settlements, claim)

    async def extend(self, leases: Sequence[Lease], for_ms: int) -> list[str]:
        return await extend(self.context, leases, for_ms)

    async def report(self, reports: Sequence[Report]) -> list[str]:
        return await report(self.context, reports)

    async def wait_for_work(self, queues: Sequence[str], until_ms: int) -> None:
        if (seconds := (until_ms - self.now()) / 1000) > 0:
            await self.context.loops.here().notifications.wait(queues, seconds)

    async def change(self, which: Sequence[str] | Filter, change: Change, limit: int = 1_000) -> Changed:
        return await change_jobs(self.context, which, change, limit)

    async def purge(self, limit: int = 1_000) -> Purged:
        return await purge(self.context, limit)

    # ------------------------------------------------------------------------------------------------ read

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        return await read.get(self.context, ids)

    async def find(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        return await read.find(self.context, filter, cursor, limit)

    async def count(self, filter: Filter) -> list[Count]:
        return await read.count(self.context, filter)

    async def stats(self, queue: str | None = None, name: str | None = None) -> list[Stats]:
        return await read.stats(self.context, queue, name)

    async def logs(self, id: str, limit: int = 1_000) -> list[LogLine]:
        return await read.logs(self.context, id, limit)

    # ------------------------------------------------------------------------------------------------ queues, events

    async def configure(self, queue: str, change: QueueChange) -> QueueSettings:
        return await configure(self.context, queue, change)

    async def settings(self, queues: Sequence[str] | None = None) -> dict[str, QueueSettings]:
        return await settings_of(self.context, queues)

    async def publish(self, events: Sequence[Event]) -> None:
        await feed.publish(self.context, events)

    async def events(self, queue: str, after: str | None = None, limit: int = 1_000) -> list[Event]:
        return await feed.read_events(self.context, queue, after, limit)

    async def record_usage(self, records: Sequence[Usage]) -> None:
        await record_usage(self.context, records)

    # ------------------------------------------------------------------------------------------------ more SQL

    def migration_script(self, more: str = "") -> str:
        """All migrations, and more SQL in the same transaction, as a script; without asking the server."""
        return schema.script(self.context.statements, more)

    def roles_script(self) -> str:
        """Roles with the rights that they need, as a script; without asking the server."""
        return roles.script(self.context.statements)

    async def run_as_migration(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run further SQL in a transaction under the lock of migrations: for modules that extend the schema."""
        return await schema.run_as_migration(self.context, work)
