"""The port on PostgreSQL: each verb is a statement or a short transaction on one of a few connections."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, TypeVar

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
    Settlement,
    Stats,
)
from jobmill.stores.common.ids import new_id
from jobmill.stores.postgres import jobs_table, looking, migrating, queues, reporting, roles
from jobmill.stores.postgres.changing import Changing
from jobmill.stores.postgres.connections import Connection, transaction
from jobmill.stores.postgres.enqueueing import Ask, FeedIsOn, enqueue, events, is_one_call
from jobmill.stores.postgres.exchanging import Exchanging
from jobmill.stores.postgres.feeds import events as read_events
from jobmill.stores.postgres.feeds import tell
from jobmill.stores.postgres.jobs_table import JobsTable
from jobmill.stores.postgres.offices import Office, Offices
from jobmill.stores.postgres.places import Place
from jobmill.stores.postgres.statements import Statements, quoted
from jobmill.stores.postgres.usage import record_usage
from jobmill.stores.postgres.within import enqueue_within

T = TypeVar("T")

# Looks may read much.
LOOK_SECONDS = 60.0
MIGRATE_SECONDS = 600.0


class PostgresStore:
    """Jobs in a schema of a PostgreSQL database. Migrations are explicit: `migrate`, or `jobmill migrate`."""

    name: ClassVar[str] = "postgres"
    exchanges_in_flight: ClassVar[int] = 2

    def __init__(
        self, url: str, *, schema: str | None = None, pool: int | None = None, clock: Callable[[], int] | None = None
    ) -> None:
        self._place = Place.read(url, schema=schema, pool=pool)
        self._statements = Statements(self._place.schema)
        # With a clock of its own every statement is told the time; otherwise the server's clock rules.
        self._clock = clock
        self._offset_ms = 0.0
        # Tells our schema from others of its name, once it was opened.
        self._home: int | None = None
        self._offices = Offices(self._place, self._statements)

    @property
    def address(self) -> str:
        """The URL without its password, and the schema."""
        return self._place.words()

    # ------------------------------------------------------------------------------------------------ open and close

    async def open(self) -> None:
        """Connect, check the schema, measure the clock."""
        office = self._offices.here()
        if not office.is_open:
            await self._use(self._check)
            office.is_open = True

    async def _check(self, connection: Connection) -> None:
        await migrating.check(connection, self._statements)
        began = time.time()
        self._learn_time(await connection.fetchval(f"SELECT {quoted(self._statements.schema)}.now_ms()"), began)
        self._home = await connection.fetchval(f"SELECT {self._statements('home')}")

    async def close(self) -> None:
        """Give all connections back, also those of other loops."""
        await self._offices.close()

    async def migrate(self) -> list[str]:
        """Bring the schema up to date."""
        return await self._use(lambda c: migrating.bring_up_to_date(c, self._statements), MIGRATE_SECONDS)

    async def install_jobs_table(self, table: str) -> JobsTable:
        """Make rows of a table such as public.jobs jobs, and the table if there is none; see docs/harmonyk.md."""

        async def work(connection: Connection) -> JobsTable:
            await migrating.check(connection, self._statements)
            return await jobs_table.install(connection, self._statements, table)

        return await self._use(work, MIGRATE_SECONDS)

    def migration_script(self, jobs_table: str | None = None) -> str:
        """All migrations, and a jobs table if one is named, as SQL; without asking the server."""
        return migrating.script(self._statements, jobs_table)

    def roles_script(self) -> str:
        """Roles that may do no more than they need, as SQL; without asking the server."""
        return roles.script(self._statements)

    def now(self) -> int:
        """The server's clock, by the offset that the last answers showed."""
        return self._clock() if self._clock else int(time.time() * 1000 + self._offset_ms)

    def _at_ms(self) -> int | None:
        return self._clock() if self._clock else None

    def _learn_time(self, now_ms: int, began: float) -> None:
        # The server looked at its clock somewhere between call and answer: after a slow one we know little more.
        least, most = now_ms - time.time() * 1000, now_ms - began * 1000
        self._offset_ms = min(max(self._offset_ms, least), most)

    def new_id(self) -> str:
        """A uuid7."""
        return new_id()

    # ------------------------------------------------------------------------------------------------ calls

    async def _use(self, work: Callable[[Connection], Awaitable[T]], seconds: float | None = None) -> T:
        """Do something with one of the connections of the running loop."""
        return await self._offices.here().connections.use(work, seconds)

    async def _transact(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """The same in a transaction."""

        async def within(connection: Connection) -> T:
            async with transaction(connection):
                return await work(connection)

        return await self._use(within)

    async def _look(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        return await self._use(work, LOOK_SECONDS)

    # ------------------------------------------------------------------------------------------------ jobs

    async def enqueue(self, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        """See the port."""
        if not new_jobs:
            return []
        office = self._offices.here()
        wanted = {new.queue for new in new_jobs}
        if office.told.knows(wanted) or not is_one_call(new_jobs):
            receipts = await self._transact(lambda c: self._enqueue_told(c, office, new_jobs))
        else:
            try:
                receipts = await self._use(
                    lambda c: enqueue(self._asker(c), new_jobs, self._at_ms(), told=False, inside=False)
                )
            except FeedIsOn:
                office.told.suspect(wanted)
                receipts = await self._transact(lambda c: self._enqueue_told(c, office, new_jobs))
        office.waking.tell(wanted)
        return receipts

    async def _enqueue_told(self, connection: Connection, office: Office, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        receipts = await enqueue(self._asker(connection), new_jobs, self._at_ms(), told=True, inside=False)
        told = events(new_jobs, receipts, self.now())
        on = await tell(connection, self._statements, told)
        if told:
            office.told.learn({event.queue for event in told}, on)
        return receipts

    def _asker(self, connection: Connection) -> Ask:
        schema = quoted(self._statements.schema)

        async def ask(name: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
            numbers = ", ".join(f"${number}" for number in range(1, len(parameters) + 1))
            rows = await connection.fetch(f"SELECT * FROM {schema}.{name}({numbers})", *parameters)
            return [tuple(row) for row in rows]

        return ask

    async def enqueue_within(self, connection: Any, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        """See the port."""
        return await enqueue_within(connection, self._statements, self._home, new_jobs, self._at_ms(), self.now())

    def check_unlocked(self) -> None:
        """See the port. A transaction of the caller's locks nothing here but the keys that it has enqueued."""

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        """See the port."""
        office = self._offices.here()
        if claim is not None and not await office.may_claim(otherwise_settles=bool(settlements)):
            claim = None
        if claim is not None:
            office.waking.exchanging(claim.queues)
        began = time.time()
        exchanging = Exchanging(office, self._statements, settlements, claim, self._at_ms())
        answer = await exchanging.run()
        if self._clock is None:
            self._learn_time(answer.now_ms, began)
        if exchanging.wakes:
            office.waking.tell(exchanging.wakes)
        return answer

    async def extend(self, leases: Sequence[Lease], for_ms: int) -> list[str]:
        """See the port. On a connection of its own: a full pool must not cost a lease."""
        if not leases:
            return []
        spare = self._offices.here().spare
        return await spare.use(lambda c: reporting.extend(c, self._statements, leases, for_ms, self._at_ms()))

    async def report(self, reports: Sequence[Report]) -> list[str]:
        """See the port."""
        if not reports:
            return []
        return await self._transact(lambda c: reporting.report(c, self._statements, reports, self._at_ms(), self.now()))

    async def wait_for_work(self, queues: Sequence[str], until_ms: int) -> None:
        """See the port."""
        seconds = (until_ms - self.now()) / 1000
        if seconds > 0:
            await self._offices.here().waking.wait(queues, seconds)

    async def change(self, which: Sequence[str] | Filter, change: Change, limit: int = 1_000) -> Changed:
        """See the port."""
        touched: set[str] = set()

        async def work(connection: Connection) -> Changed:
            changing = Changing(connection, self._statements, await self._now_on(connection))
            changed = await changing.run(which, change, limit)
            touched.update(changing.queues)
            return changed

        changed = await self._transact(work)
        if touched:
            self._offices.here().waking.tell(touched)
        return changed

    async def purge(self, limit: int = 1_000) -> Purged:
        """See the port."""

        async def work(connection: Connection) -> Purged:
            return await Changing(connection, self._statements, await self._now_on(connection)).purge(limit)

        return await self._transact(work)

    async def _now_on(self, connection: Connection) -> int:
        if self._clock is not None:
            return self._clock()
        now_ms: int = await connection.fetchval(f"SELECT {quoted(self._statements.schema)}.now_ms()")
        return now_ms

    # ------------------------------------------------------------------------------------------------ looks

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """See the port."""
        return await self._look(lambda c: looking.get(c, self._statements, ids))

    async def find(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        """See the port."""
        return await self._look(lambda c: looking.find(c, self._statements, filter, cursor, limit))

    async def count(self, filter: Filter) -> list[Count]:
        """See the port."""
        return await self._look(lambda c: looking.count(c, self._statements, filter))

    async def stats(self, queue: str | None = None, name: str | None = None) -> list[Stats]:
        """See the port."""
        return await self._look(lambda c: looking.stats(c, self._statements, queue, name, self.now()))

    async def logs(self, id: str, limit: int = 1_000) -> list[LogLine]:
        """See the port."""
        return await self._look(lambda c: looking.logs(c, self._statements, id, limit))

    # ------------------------------------------------------------------------------------------------ queues

    async def configure(self, queue: str, change: QueueChange) -> QueueSettings:
        """See the port."""
        settings = await self._transact(lambda c: queues.configure(c, self._statements, queue, change))
        self._offices.here().waking.tell([queue])
        return settings

    async def settings(self, queues_: Sequence[str] | None = None) -> dict[str, QueueSettings]:
        """See the port."""
        return await self._use(lambda c: queues.settings(c, self._statements, queues_))

    async def publish(self, events: Sequence[Event]) -> None:
        """See the port."""
        if events:
            await self._use(lambda c: tell(c, self._statements, events))

    async def events(self, queue: str, after: str | None = None, limit: int = 1_000) -> list[Event]:
        """See the port."""
        return await self._use(lambda c: read_events(c, self._statements, queue, after, limit))

    # ------------------------------------------------------------------------------------------------ usage

    async def record_usage(self, records: Sequence[Usage]) -> None:
        """See RecordsUsage."""
        if records:
            await self._use(lambda c: record_usage(c, self._statements, records))
