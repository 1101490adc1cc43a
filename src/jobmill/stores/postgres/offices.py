"""Offices: what a store holds for one event loop. Connections belong to the loop that made them, a store to none."""

from __future__ import annotations

import asyncio
import threading

import asyncpg

from jobmill.stores.postgres.connections import CONNECT_SECONDS, Connection, Connections
from jobmill.stores.postgres.feeds import Told
from jobmill.stores.postgres.hints import Hints
from jobmill.stores.postgres.places import Place
from jobmill.stores.postgres.statements import Statements
from jobmill.stores.postgres.wake import Waking

# Behind a pooler in transaction mode a prepared statement may be gone with the next transaction.
_NO_STATEMENTS = 0


class Office:
    """Connections, a spare one, a listener and the hints of one loop."""

    def __init__(self, place: Place, statements: Statements) -> None:
        self._place = place
        self.is_open = False
        self.pooled: bool | None = None
        self.connections = Connections(self.connect, place.pool)
        self.spare = Connections(self.connect, 1)
        self.waking = Waking(self.connect, self.connections, statements)
        self.hints = Hints()
        self.told = Told()

    async def connect(self) -> Connection:
        """A connection; the first one finds out whether a pooler is in between."""
        if self.pooled is None:
            connection = await self._connect(_NO_STATEMENTS)
            # A pooler tells a process id of its own making: it does not know yet which server it will use.
            pid = await connection.fetchval("SELECT pg_backend_pid()", timeout=CONNECT_SECONDS)
            self.pooled = pid != connection.get_server_pid()
            if self.pooled:
                return connection
            await connection.close(timeout=1)
        return await self._connect(_NO_STATEMENTS if self.pooled else 100)

    async def _connect(self, statement_cache_size: int) -> Connection:
        connection: Connection = await asyncpg.connect(
            self._place.url, timeout=CONNECT_SECONDS, statement_cache_size=statement_cache_size
        )
        return connection

    async def close(self) -> None:
        """Give everything back."""
        await self.waking.close()
        await self.spare.close()
        await self.connections.close()


class Offices:
    """The offices of a store, by loop."""

    def __init__(self, place: Place, statements: Statements) -> None:
        self._place = place
        self._statements = statements
        self._lock = threading.Lock()
        self._by_loop: dict[asyncio.AbstractEventLoop, Office] = {}

    def here(self) -> Office:
        """The office of the running loop; made when it is first needed."""
        loop = asyncio.get_running_loop()
        office = self._by_loop.get(loop)
        if office is None:
            with self._lock:
                # Loops that have ended take their connections with them.
                for gone in [one for one in self._by_loop if one.is_closed()]:
                    self._by_loop.pop(gone).connections.abandon()
                office = self._by_loop.setdefault(loop, Office(self._place, self._statements))
        return office

    async def close(self) -> None:
        """Close all, each in its own loop."""
        here = asyncio.get_running_loop()
        with self._lock:
            offices, self._by_loop = self._by_loop, {}
        for loop, office in offices.items():
            if loop is here:
                await office.close()
            elif loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(office.close(), loop))
            else:
                office.connections.abandon()
                office.spare.abandon()
