"""Offices: what a store holds for one event loop. Connections belong to the loop that made them, a store to none."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import math
import os
import threading
from collections.abc import AsyncGenerator, Coroutine
from concurrent.futures import Future, wait
from typing import Any
from weakref import WeakSet

import asyncpg

from jobmill.errors import StoreAway
from jobmill.stores.postgres.connections import CONNECT_SECONDS, Connection, Connections, close
from jobmill.stores.postgres.feeds import Told
from jobmill.stores.postgres.hints import Hints
from jobmill.stores.postgres.places import Place
from jobmill.stores.postgres.statements import Statements
from jobmill.stores.postgres.wake import Waking

# Our statements lock and then look: with one snapshot for all of a transaction they would see what was before.
READ_COMMITTED = "SET default_transaction_isolation = 'read committed'"

# Behind a pooler in transaction mode a prepared statement may be gone with the next transaction.
_NO_STATEMENTS = 0
_STATEMENTS = 100

# How long the loop of another thread gets to close what it holds: it may be blocked, by whoever waits for us.
ELSEWHERE_SECONDS = 3.0


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
        self._end = self._wait_for_the_end()
        # asyncio.run closes generators that have begun, and so what an application has not closed itself.
        with contextlib.suppress(StopIteration):
            self._end.asend(None).send(None)

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
                raise StoreAway(f"PostgreSQL could not be reached within {CONNECT_SECONDS:g} s") from error
            raise
        return connection

    async def may_claim(self, *, otherwise_settles: bool) -> bool:
        """Whether leases can be extended: without the connection that is spared for it nothing is claimed.

        False where that cannot be had now and there is something to settle; otherwise that is an error.
        """
        if not self.spare.is_ready:
            try:
                await self.spare.use(_nothing)
            except StoreAway:
                if not otherwise_settles:
                    raise
                return False
        return True

    async def close(self) -> None:
        """Give everything back, within about three seconds. Closing twice is harmless."""
        await self._end.aclose()

    async def _wait_for_the_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.waking.close()
            await asyncio.gather(self.spare.close(), self.connections.close())

    def abandon(self) -> None:
        """Forget everything, when the loop does not run and nothing can be awaited on it."""
        self.spare.abandon()
        self.connections.abandon()


async def _nothing(_: Connection) -> None:
    """To have a connection is enough."""


class Offices:
    """The offices of a store, by loop."""

    def __init__(self, place: Place, statements: Statements) -> None:
        self._place = place
        self._statements = statements
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._by_loop: dict[asyncio.AbstractEventLoop, Office] = {}
        _all.add(self)

    def here(self) -> Office:
        """The office of the running loop; made when it is first needed."""
        loop = asyncio.get_running_loop()
        if self._pid != os.getpid():
            self._leave_to_parent()
        office = self._by_loop.get(loop)
        if office is None:
            with self._lock:
                # Loops that have ended take their connections with them.
                for gone in [one for one in self._by_loop if one.is_closed()]:
                    self._by_loop.pop(gone).abandon()
                office = self._by_loop.setdefault(loop, Office(self._place, self._statements))
        return office

    async def close(self) -> None:
        """Close all, each in its own loop."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        with self._lock:
            offices, self._by_loop = self._by_loop, {}
        await asyncio.gather(*(_close(loop, office) for loop, office in offices.items()))

    def close_at_exit(self) -> None:
        """The process ends: loops of other threads (`jobs.sync`) tell what is still to be told, and say goodbye."""
        if self._pid == os.getpid():
            offices, self._by_loop = self._by_loop, {}
            closing = [_run_in(loop, office.close()) for loop, office in offices.items()]
            wait([one for one in closing if one is not None], ELSEWHERE_SECONDS)

    def _leave_to_parent(self) -> None:
        """This process was forked: sockets and selectors are shared with the parent, and must not be touched."""
        # Not even by the collector, which would deregister the sockets from the parent's selector.
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._by_loop))
        self._by_loop = {}
        # Another thread, which is not here, may have held it.
        self._lock = threading.Lock()
        self._pid = os.getpid()


async def _close(loop: asyncio.AbstractEventLoop, office: Office) -> None:
    if loop is asyncio.get_running_loop():
        await office.close()
        return
    closing = _run_in(loop, office.close())
    if closing is None:
        office.abandon()
    else:
        await asyncio.wait([asyncio.wrap_future(closing)], timeout=ELSEWHERE_SECONDS)


def _run_in(loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, None]) -> Future[None] | None:
    """Run something in the loop of another thread; None where that does not run."""
    if loop.is_running():
        with contextlib.suppress(RuntimeError):  # closed in this moment
            return asyncio.run_coroutine_threadsafe(call, loop)
    call.close()
    return None


_all: WeakSet[Offices] = WeakSet()


@atexit.register
def _close_at_exit() -> None:
    for offices in list(_all):
        offices.close_at_exit()
