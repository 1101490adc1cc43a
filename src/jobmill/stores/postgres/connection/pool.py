"""The connection pool of one event loop.

Every use of a connection has a deadline. If a use is interrupted, its connection is closed, because the response of the
server may still arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import asyncpg

from jobmill.errors import StoreBusy, StoreUnavailable
from jobmill.stores.postgres.connection.connector import Connection, close
from jobmill.stores.postgres.connection.deadlines import CallDeadlines
from jobmill.stores.postgres.connection.errors import ends_connection, translated

T = TypeVar("T")

# Shorter than the default lease, and longer than any operation takes on a healthy server.
CALL_SECONDS = 10.0
# A router between us and the server may have dropped an idle connection silently.
MAX_IDLE_SECONDS = 60.0
# If two transactions wait for each other, the server aborts one of them, and we try again: this many tries in all.
TRIES = 5
_TRY_AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)

_CLOSED = "the store was closed"


class ConnectionPool:
    """At most `size` connections, which are made when they are needed. The connection that was used last is used next.

    If a connection was idle for `max_idle_seconds`, it is closed and not used again.
    """

    def __init__(
        self, connect: Callable[[], Coroutine[Any, Any, Connection]], size: int, max_idle_seconds: float | None = None
    ) -> None:
        self._connect = connect
        self._size = size
        self._max_idle_seconds = MAX_IDLE_SECONDS if max_idle_seconds is None else max_idle_seconds
        self._room = asyncio.Semaphore(size)
        self._deadlines = CallDeadlines()
        #: Idle connections and the time since which each is idle, the longest idle first.
        self._idle: list[tuple[float, Connection]] = []
        self._used: set[Connection] = set()
        self._connecting: set[asyncio.Task[Connection]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        #: Calls that wait until a connection is returned, because the server refuses a new connection.
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, idle or in use."""
        return any(not connection.is_closed() for connection in self.connections())

    def connections(self) -> list[Connection]:
        """All connections, idle or in use."""
        return [*(connection for _, connection in self._idle), *self._used]

    async def use(self, work: Callable[[Connection], Awaitable[T]], seconds: float | None = None) -> T:
        """Call `work` with a connection. Connecting and `work` together may take `seconds` (default CALL_SECONDS)."""
        seconds = CALL_SECONDS if seconds is None else seconds
        deadline = asyncio.timeout(None)
        has_room = False
        try:
            async with deadline:
                self._deadlines.add(deadline, seconds)
                async with self._room:
                    has_room = True
                    return await self._try(work)
        except Exception as error:
            if (own := self._explained(error, seconds if deadline.expired() else None, has_room)) is error:
                raise
            raise own from error
        finally:
            self._deadlines.remove(deadline)

    def _explained(self, error: Exception, expired_after: float | None, has_room: bool) -> Exception:
        """What to raise instead of this error, or the error itself."""
        own = translated(error)
        if self._closed and isinstance(own, StoreUnavailable):
            return StoreUnavailable(_CLOSED)
        if expired_after is None:
            return own
        if not has_room:
            return StoreUnavailable(
                f"all {self._size} connections were in use for {expired_after:g} s; see pool=… in the URL"
            )
        # The other connections may be dead too. To find out for each of them would take one deadline per connection.
        self.drop_idle()
        return StoreUnavailable(f"PostgreSQL did not answer within {expired_after:g} s")

    async def _try(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        for tries in range(1, TRIES + 1):
            connection = await self._take()
            try:
                answer = await work(connection)
            except BaseException as error:
                self._give_back(connection, error)
                if not isinstance(error, _TRY_AGAIN):
                    raise
                if tries == TRIES:
                    raise StoreBusy(f"the call conflicted with other transactions {TRIES} times: {error}") from error
            else:
                self._give_back(connection)
                return answer
        raise AssertionError("unreachable")

    # ------------------------------------------------------------------------------------------------ take, give back

    async def _take(self) -> Connection:
        while not self._closed:
            self.drop_idle(time.monotonic() - self._max_idle_seconds)
            connection = self._idle.pop()[1] if self._idle else await self._new()
            if connection is not None and not connection.is_closed():
                self._used.add(connection)
                return connection
        raise StoreUnavailable(_CLOSED)

    async def _new(self) -> Connection | None:
        """A new connection. None if the server refuses a new one, and another call has returned one meanwhile."""
        # A separate task connects. It is cancelled when the caller stops waiting or the store is closed.
        connecting = asyncio.get_running_loop().create_task(self._connect())
        self._connecting.add(connecting)
        connecting.add_done_callback(self._connecting.discard)
        try:
            await asyncio.wait([connecting])
        except asyncio.CancelledError:
            connecting.cancel()
            connecting.add_done_callback(_terminate_result)
            raise
        if connecting.cancelled() or self._closed:
            _terminate_result(connecting)
            raise StoreUnavailable(_CLOSED)
        try:
            return connecting.result()
        except asyncpg.TooManyConnectionsError:
            if not self._used and not self._idle and all(other.done() for other in self._connecting):
                self._let_one_retry()
                raise
        if not self._idle:
            self._waiting.append(waiting := asyncio.get_running_loop().create_future())
            await waiting
        return None

    def _give_back(self, connection: Connection, error: BaseException | None = None) -> None:
        """Keep the connection for the next use, unless it is broken, in an unknown state, or cannot write."""
        self._used.discard(connection)
        if error is not None and not isinstance(error, Exception):
            self._drop(connection)
        elif self._closed or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
        else:
            self._idle.append((time.monotonic(), connection))
        if error is not None and ends_connection(error):
            # The reason (for example: the server accepts no more writes) may apply to all connections.
            self.drop_idle()
        if self._waiting:
            self._let_one_retry()

    def _drop(self, connection: Connection) -> None:
        """Close a connection in the background; the driver also asks the server to stop what runs on it."""
        if self._closed or connection.is_closed():
            connection.terminate()
        else:
            closing = asyncio.get_running_loop().create_task(close(connection))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self._let_one_retry()

    def _let_one_retry(self) -> None:
        """Let one waiting call try again: a connection was returned, or the server may have room for another."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return

    def drop_idle(self, since: float = math.inf) -> None:
        """Close the connections that became idle before this time."""
        while self._idle and self._idle[0][0] < since:
            self._drop(self._idle.pop(0)[1])

    # ------------------------------------------------------------------------------------------------ close

    async def close(self) -> None:
        """Close all connections within CLOSE_SECONDS. Calls in flight are cancelled, also on the server."""
        self._closed = True
        for connecting in list(self._connecting):
            connecting.cancel()
        while self._waiting:
            self._let_one_retry()
        closing = [close(connection) for connection in self.connections()]
        self._idle.clear()
        await asyncio.gather(*closing, *self._connecting, *self._closing, asyncio.sleep(0), return_exceptions=True)
        self._deadlines.close()

    def abandon(self) -> None:
        """Drop all connections of a loop that does not run any more, without awaiting anything."""
        self._closed = True
        for connection in self.connections():
            # The sockets of a closed loop are closed when they are garbage-collected.
            with contextlib.suppress(RuntimeError):
                connection.terminate()
        self._idle.clear()


def _terminate_result(connecting: asyncio.Task[Connection]) -> None:
    """Terminate a new connection whose caller has stopped waiting."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().terminate()
