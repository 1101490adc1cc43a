"""What the verbs of the store share."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from jobmill.errors import StoreError, StoreUnavailable
from jobmill.stores.common.claim_cursor import ClaimCursor
from jobmill.stores.common.per_loop import PerLoop
from jobmill.stores.common.server_clock import ServerClock
from jobmill.stores.postgres.connection.connector import Connection, Connector, transaction
from jobmill.stores.postgres.connection.pool import ConnectionPool
from jobmill.stores.postgres.statements import Statements
from jobmill.stores.postgres.url import PostgresUrl
from jobmill.stores.postgres.wake import WorkNotifications

T = TypeVar("T")

FROM_START_SECONDS = 1.0
LAST_LOOK_SECONDS = 1.0


class LanesToLookAt:
    """Lanes that the next exchange looks at, after the commit of the one that found nobody for their slots."""

    def __init__(self) -> None:
        self.waiting: dict[tuple[str, str], None] = {}
        self._searched = 0.0

    def add(self, queues: Iterable[str], lanes: Iterable[str]) -> None:
        """Look at these lanes soon."""
        self.waiting.update(dict.fromkeys(zip(queues, lanes, strict=True)))

    def take(self) -> tuple[list[str], list[str]]:
        """The queues and the lanes. If the call fails, they are added again."""
        taken, self.waiting = self.waiting, {}
        return [queue for queue, _ in taken], [lane for _, lane in taken]

    def is_from_start(self) -> bool:
        """Whether lanes are searched from their start: once a second, for jobs that were committed late."""
        before, now = self._searched, time.monotonic()
        self._searched = now if now >= before + FROM_START_SECONDS else before
        return self._searched == now


class LoopResources:
    """What the store holds for one event loop."""

    def __init__(self, url: PostgresUrl, statements: Statements, clock: ServerClock) -> None:
        self._statements, self._clock = statements, clock
        self.connector = Connector(url.url)
        self.pool = ConnectionPool(self.connector.connect, url.pool_size)
        # Only for extending leases, so that a full pool cannot end a lease. Kept however long it is idle.
        self.lease_pool = ConnectionPool(self.connector.connect, 1, math.inf)
        #: For calls that wait for transactions of others, so that they do not take all connections.
        self.lock_waits = asyncio.Semaphore(max(1, url.pool_size // 4))
        self.notifications = WorkNotifications(self.connector, self.pool, statements)
        self.cursor = ClaimCursor()
        #: Queues whose feeds were on when last seen: verbs about them take a transaction.
        self.feeds_on: set[str] = set()
        self.lanes = LanesToLookAt()
        self.is_open = False

    async def connect_for_leases(self, *, or_settle: bool) -> bool:
        """Connect the pool for leases: without it, nothing is claimed.

        False where that fails and the caller has jobs to settle; otherwise the error is raised.
        """
        try:
            await self.lease_pool.use(_do_nothing)
        except StoreUnavailable:
            if not or_settle:
                raise
            return False
        return True

    async def close(self) -> None:
        """Close everything, within about three seconds. Closing twice is harmless."""
        if self.lanes.waiting:
            await self._look_at_lanes()
        await self.notifications.close()
        await asyncio.gather(self.lease_pool.close(), self.pool.close())

    async def _look_at_lanes(self) -> None:
        """There is no next exchange that would look at them."""
        text, parameters = self._statements.call("fill_marked", 3), (self._clock.given_ms(), *self.lanes.take())
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(LAST_LOOK_SECONDS):
                given = await self.pool.use(lambda connection: connection.fetchval(text, *parameters))
                self.notifications.notify(given or ())

    def abandon(self) -> None:
        """Drop everything when the loop does not run any more."""
        self.lease_pool.abandon()
        self.pool.abandon()


async def _do_nothing(_: Connection) -> None:
    """Only connect."""


class PostgresContext:
    """Where the store is, its statements and its clock, and what it holds for each event loop."""

    def __init__(self, url: PostgresUrl, clock: Callable[[], int] | None) -> None:
        self.url = url
        self.statements = Statements(url.schema)
        self.clock = ServerClock(clock)
        #: Distinguishes the schema from others of its name, in other databases, which may be copies of this one.
        #: It is known once the store is open.
        self.schema_id: int | None = None
        #: The edge at which the search for lost ones continues: see flows.py.
        self.examined: tuple[str, int] = ("", -1)
        #: Queues that are known to be noted as having lanes, by the id of the schema: see lanes.py.
        self.lane_queues: set[tuple[int | None, str]] = set()
        #: The queue and lane after which the search for free slots continues.
        self.healed: tuple[str, str] = ("", "")
        self.loops = PerLoop(lambda: LoopResources(url, self.statements, self.clock))

    async def use(self, work: Callable[[Connection], Awaitable[T]], seconds: float | None = None) -> T:
        """Do something with a connection of the running loop."""
        return await self.loops.here().pool.use(work, seconds)

    async def transact(self, work: Callable[[Connection], Awaitable[T]], seconds: float | None = None) -> T:
        """Do something in a transaction."""

        async def within(connection: Connection) -> T:
            async with transaction(connection):
                return await work(connection)

        return await self.use(within, seconds)

    async def now_ms(self, connection: Connection) -> int:
        """The time by the server's clock, or by the clock that the store was given."""
        if self.clock.is_given:
            return self.clock.now()
        now_ms: int = await connection.fetchval(self.statements.call("now_ms", 0))
        return now_ms
