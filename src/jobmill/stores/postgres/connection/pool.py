"""Connections of one event loop: a few that all verbs share, and a spare one for leases.

Every use has a deadline. A connection whose use was cut short is thrown away: nobody knows what is still on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

import asyncpg

from jobmill.errors import JobmillError, SchemaTooOld, StoreBusy, StoreError, StoreUnavailable

T = TypeVar("T")
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

CONNECT_SECONDS = 5.0
# Shorter than the default lease, longer than any verb takes on a healthy server.
CALL_SECONDS = 10.0
# What lies between us and the server may have forgotten a connection that is not used, and not say so.
FRESH_SECONDS = 60.0
# For saying goodbye, and for asking the server to stop what nobody waits for any more.
LEAVE_SECONDS = 1.0
# A transaction whose client has vanished between two statements holds its locks no longer than this.
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = 10000"
# Two transactions that wait for each other: one is told to try again.
TRIES = 5
_AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)

WAS_CLOSED = "the store was closed"


class Connections:
    """At most `size` connections, made when they are needed; the one that was used last is used next.

    One that nobody has used for `fresh_seconds` is closed instead of used again.
    """

    def __init__(
        self, connect: Callable[[], Coroutine[Any, Any, Connection]], size: int, fresh_seconds: float = FRESH_SECONDS
    ) -> None:
        self._connect = connect
        self._size = size
        self._fresh_seconds = fresh_seconds
        self._room = asyncio.Semaphore(size)
        #: And since when; the oldest first.
        self._idle: list[tuple[float, Connection]] = []
        self._used: set[Connection] = set()
        self._connecting: set[asyncio.Task[Connection]] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        #: Who waits for a connection to be given back, because the server has none left.
        self._wishes: deque[asyncio.Future[None]] = deque()
        self._closed = False

    @property
    def is_ready(self) -> bool:
        """Whether there is a connection, free or in use."""
        return any(not connection.is_closed() for connection in self._all())

    async def use(self, work: Callable[[Connection], Awaitable[T]], seconds: float | None = None) -> T:
        """Do something with a connection, within so many seconds in all (default: CALL_SECONDS)."""
        seconds = CALL_SECONDS if seconds is None else seconds
        has_room = False
        deadline = asyncio.timeout(seconds)
        try:
            async with deadline, self._room:
                has_room = True
                return await self._try(work)
        except Exception as error:
            said = self._late(seconds, has_room) if deadline.expired() else translated(error)
            if self._closed and isinstance(said, StoreUnavailable):
                said = StoreUnavailable(WAS_CLOSED)
            if said is error:
                raise
            raise said from error

    def _late(self, seconds: float, has_room: bool) -> StoreUnavailable:
        if not has_room:
            return StoreUnavailable(
                f"all {self._size} connections were in use for {seconds:g} s; see pool=… in the URL"
            )
        # The others may have been silent for longer: finding out one by one would take as many deadlines.
        self._forget_idle()
        return StoreUnavailable(f"PostgreSQL did not answer within {seconds:g} s")

    async def _try(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        for tries in range(1, TRIES + 1):
            try:
                return await self._use(work)
            except _AGAIN as error:
                if tries == TRIES:
                    raise StoreBusy(f"{TRIES} times other transactions were in the way: {error}") from error
        raise AssertionError("unreachable")

    async def _use(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        connection = await self._take()
        self._used.add(connection)
        try:
            answer = await work(connection)
        except Exception as error:
            self._give_back(connection, error)
            raise
        except BaseException:
            self._used.discard(connection)
            self._throw_away(connection)
            raise
        self._give_back(connection)
        return answer

    # ------------------------------------------------------------------------------------------------ to and fro

    async def _take(self) -> Connection:
        while not self._closed:
            self._forget_idle(time.monotonic() - self._fresh_seconds)
            while self._idle:
                _, connection = self._idle.pop()
                if not connection.is_closed():
                    return connection
            try:
                return await self._new()
            except asyncpg.TooManyConnectionsError as error:
                await self._wait_for_one_of_ours(error)
        raise StoreUnavailable(WAS_CLOSED)

    async def _wait_for_one_of_ours(self, error: asyncpg.TooManyConnectionsError) -> None:
        """The server has no more for us: with those that we have, or are about to have, we get on all the same."""
        if self._idle:
            return
        if not self._used and all(connecting.done() for connecting in self._connecting):
            self._grant()
            raise error
        self._wishes.append(wish := asyncio.get_running_loop().create_future())
        await wish

    async def _new(self) -> Connection:
        """In a task of our own, which ends when the caller does not wait any more or the store is closed."""
        connecting = asyncio.get_running_loop().create_task(self._connect())
        self._connecting.add(connecting)
        connecting.add_done_callback(self._connecting.discard)
        try:
            await asyncio.wait([connecting])
        except asyncio.CancelledError:
            connecting.cancel()
            connecting.add_done_callback(_drop)
            raise
        if connecting.cancelled() or self._closed:
            _drop(connecting)
            raise StoreUnavailable(WAS_CLOSED)
        return connecting.result()

    def _give_back(self, connection: Connection, error: Exception | None = None) -> None:
        """Keep it for the next use, unless it is broken, the server is about to leave, or this one may not write."""
        self._used.discard(connection)
        if self._closed or _ends(error) or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
        else:
            self._idle.append((time.monotonic(), connection))
        if _ends(error):
            # What ended this one (the server takes no writes any more) may be true of all.
            self._forget_idle()
        self._grant()

    def _throw_away(self, connection: Connection) -> None:
        """What it was asked for should not go on at the server either: beside, the driver asks it to stop."""
        if self._closed or connection.is_closed():
            connection.terminate()
        else:
            leaving = asyncio.get_running_loop().create_task(close(connection))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        self._grant()

    def _grant(self) -> None:
        """Somebody may try again: a connection was given back, or the server has room for another."""
        while self._wishes:
            wish = self._wishes.popleft()
            if not wish.done():
                wish.set_result(None)
                return

    def _forget_idle(self, since: float = math.inf) -> None:
        """Throw those away that nobody has used since then."""
        while self._idle and self._idle[0][0] < since:
            self._throw_away(self._idle.pop(0)[1])

    def _all(self) -> list[Connection]:
        return [*(connection for _, connection in self._idle), *self._used]

    # ------------------------------------------------------------------------------------------------ the end

    async def close(self) -> None:
        """Close all, within LEAVE_SECONDS; what is in flight is cut off, here and at the server."""
        self._closed = True
        for connecting in list(self._connecting):
            connecting.cancel()
        while self._wishes:
            self._grant()
        closing = [close(connection) for connection in self._all()]
        self._idle.clear()
        await asyncio.gather(*closing, *self._connecting, *self._leaving, asyncio.sleep(0), return_exceptions=True)

    def abandon(self) -> None:
        """Forget all, when their loop does not run and nothing can be awaited on it."""
        self._closed = True
        for connection in self._all():
            # Of a closed loop the sockets are closed when they are collected.
            with contextlib.suppress(RuntimeError):
                connection.terminate()
        self._idle.clear()


@contextlib.asynccontextmanager
async def transaction(connection: Connection) -> AsyncIterator[None]:
    """A transaction. Not the driver's, which says ROLLBACK also when it is cancelled, and waits for the answer."""
    await connection.execute(BEGIN)
    try:
        yield
    except Exception:
        # A connection that cannot say even this is in a transaction still, and is not used again.
        with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            await connection.execute("ROLLBACK")
        raise
    await connection.execute("COMMIT")


async def close(connection: Connection) -> None:
    """Say goodbye; a server that does not answer is left without."""
    try:
        await connection.close(timeout=LEAVE_SECONDS)
    except BaseException as error:
        connection.terminate()
        if not isinstance(error, Exception):
            raise


def _drop(connecting: asyncio.Task[Connection]) -> None:
    """Nobody wants what came of it."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().terminate()


# ---------------------------------------------------------------------------------------------------- errors

# After these a connection is of no more use, though it may look sound.
_ENDS: tuple[type[BaseException], ...] = (
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.PostgresConnectionError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InternalClientError,
    OSError,
    EOFError,
)

# The driver cannot read the URL, or not do what the server asks for.
_CLIENT = (asyncpg.ClientConfigurationError, asyncpg.UnsupportedClientFeatureError)

_AWAY: tuple[type[BaseException], ...] = (
    *_ENDS,
    asyncpg.TooManyConnectionsError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.LockNotAvailableError,
    asyncpg.InterfaceError,
    asyncpg.PostgresSystemError,
    asyncpg.TargetServerAttributeNotMatched,
)

_NO_SCHEMA = (asyncpg.UndefinedTableError, asyncpg.UndefinedFunctionError, asyncpg.InvalidSchemaNameError)


def translated(error: Exception) -> Exception:
    """The same error, as Jobmill says it."""
    if isinstance(error, JobmillError):
        return error
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return StoreUnavailable(f"this PostgreSQL server takes no writes now (a standby?): {error}")
    # Away, as far as a worker is concerned: it keeps what is finished, and tries again.
    if isinstance(error, (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidPasswordError)):
        return StoreUnavailable(f"PostgreSQL does not let us in: {error}")
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return StoreUnavailable(f"{error}; create it first (createdb, or CREATE DATABASE)")
    if isinstance(error, _CLIENT):
        return StoreError(f"PostgreSQL cannot be used like this: {error}")
    if isinstance(error, asyncpg.DataError) or _is_unsendable(error):
        return StoreError(f"PostgreSQL cannot hold this value: {error}")
    if isinstance(error, _AWAY):
        # The driver says what is only of interest to itself when a connection ends in the moment that it is used.
        said = "the connection is broken" if isinstance(error, asyncpg.InternalClientError) else str(error)
        return StoreUnavailable(f"PostgreSQL cannot be used now: {said or type(error).__name__}")
    if isinstance(error, _NO_SCHEMA):
        return SchemaTooOld(f"{error}; run `jobmill migrate`")
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return StoreError(f"{error}; see the roles of `jobmill migrate --roles`")
    return StoreError(f"PostgreSQL: {error}") if isinstance(error, asyncpg.PostgresError) else error


def _ends(error: Exception | None) -> bool:
    return isinstance(error, _ENDS) or (isinstance(error, asyncpg.InterfaceError) and not _is_unsendable(error))


def _is_unsendable(error: Exception) -> bool:
    """The driver could not encode a value. It says so with an InterfaceError, as when a connection is broken."""
    return isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError)
