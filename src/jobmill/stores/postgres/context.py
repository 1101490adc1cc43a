"""Offices: what a store holds for one event loop."""

from __future__ import annotations

import asyncio
import math

import asyncpg

from jobmill.errors import StoreUnavailable
from jobmill.stores.common.per_loop import PerLoop
from jobmill.stores.postgres.connection.pool import CONNECT_SECONDS, Connection, Connections, close
from jobmill.stores.postgres.feed import Told
from jobmill.stores.postgres.hints import Hints
from jobmill.stores.postgres.statements import Statements
from jobmill.stores.postgres.url import Place
from jobmill.stores.postgres.wake import Waking

# Our statements lock and then look: with one snapshot for all of a transaction they would see what was before.
READ_COMMITTED = "SET default_transaction_isolation = 'read committed'"

# Behind a pooler in transaction mode a prepared statement may be gone with the next transaction.
_NO_STATEMENTS = 0
_STATEMENTS = 100


class Office:
    """Connections, a spare one, a listener and the hints of one loop."""

    def __init__(self, place: Place, statements: Statements) -> None:
        self._place = place
        self.is_open = False
        #: Whether a pooler is between us and the server, by the last connection; None before the first.
        self.pooled: bool | None = None
        self.connections = Connections(self.connect, place.pool)
        # Whoever has claimed with it must not have to make another.
        self.spare = Connections(self.connect, 1, math.inf)
        self.waking = Waking(self.connect, self.connections, statements, lambda: self.pooled)
        self.hints = Hints()
        self.told = Told()

    async def connect(self) -> Connection:
        """A connection that suits what is at its other end."""
        pooled = bool(self.pooled)
        connection = await self._connect(_NO_STATEMENTS if pooled else _STATEMENTS)
        if self.pooled and not pooled:
            # No statement was prepared on it so far.
            await close(connection)
            connection = await self._connect(_NO_STATEMENTS)
        return connection

    async def _connect(self, statement_cache_size: int) -> Connection:
        connection: Connection | None = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await asyncpg.connect(self._place.url, statement_cache_size=statement_cache_size)
                # A pooler tells a process id of its own making: it does not know yet which server it will use.
                pid = connection.get_server_pid()
                self.pooled = await connection.execute(f"SELECT WHERE pg_backend_pid() = {pid}") != "SELECT 1"
                if not self.pooled:
                    await connection.execute(READ_COMMITTED)
        except BaseException as error:
            if connection is not None:
                connection.terminate()
            if isinstance(error, TimeoutError):
                raise StoreUnavailable(f"PostgreSQL could not be reached within {CONNECT_SECONDS:g} s") from error
            raise
        return connection

    async def may_claim(self, *, otherwise_settles: bool) -> bool:
        """Whether leases can be extended: without the connection that is spared for it nothing is claimed.

        False where that cannot be had now and there is something to settle; otherwise that is an error.
        """
        if not self.spare.is_ready:
            try:
                await self.spare.use(_nothing)
            except StoreUnavailable:
                if not otherwise_settles:
                    raise
                return False
        return True

    async def close(self) -> None:
        """Give everything back, within about three seconds. Closing twice is harmless."""
        await self.waking.close()
        await asyncio.gather(self.spare.close(), self.connections.close())

    def abandon(self) -> None:
        """Forget everything, when the loop does not run and nothing can be awaited on it."""
        self.spare.abandon()
        self.connections.abandon()


async def _nothing(_: Connection) -> None:
    """To have a connection is enough."""


class Offices(PerLoop[Office]):
    """The offices of a store, by loop."""

    def __init__(self, place: Place, statements: Statements) -> None:
        super().__init__(lambda: Office(place, statements))
