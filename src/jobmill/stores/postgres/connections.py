"""Connections of one event loop: a few that all verbs share, and a spare one for leases.

Every use has a deadline. A connection whose use was cut short is thrown away: nobody knows what is still on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

import asyncpg

from jobmill.errors import JobmillError, SchemaTooOld, StoreAway, StoreBusy, StoreError

T = TypeVar("T")
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

log = logging.getLogger("jobmill.postgres")

CONNECT_SECONDS = 5.0
# Shorter than the default lease, longer than any verb takes on a healthy server.
CALL_SECONDS = 10.0
# Two transactions that wait for each other: one is told to try again.
TRIES = 5
_AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


class Connections:
    """At most `size` connections, made when they are needed, given back in the order of last use."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], size: int) -> None:
        self._connect = connect
        self._idle: list[Connection] = []
        self._room = asyncio.Semaphore(size)
        self._used: set[Connection] = set()
        self._closed = False

    async def use(self, work: Callable[[Connection], Awaitable[T]], seconds: float = CALL_SECONDS) -> T:
        """Do something with a connection, within so many seconds in all."""
        for tries in range(1, TRIES + 1):
            try:
                return await self._use(work, seconds)
            except _AGAIN as error:
                if tries == TRIES:
                    raise StoreBusy(f"{TRIES} times other transactions were in the way: {error}") from error
            except JobmillError:
                raise
            except Exception as error:
                raise translated(error, seconds) from error
        raise AssertionError("unreachable")

    async def _use(self, work: Callable[[Connection], Awaitable[T]], seconds: float) -> T:
        async with asyncio.timeout(seconds), self._room:
            if self._closed:
                raise StoreAway("the store was closed")
            connection = await self._take()
            self._used.add(connection)
            try:
                answer = await work(connection)
            except asyncpg.PostgresError as error:
                self._give_back(connection, error)
                raise
            except BaseException:
                connection.terminate()
                raise
            finally:
                self._used.discard(connection)
            self._give_back(connection)
            return answer

    async def _take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return await self._connect()

    def _give_back(self, connection: Connection, error: asyncpg.PostgresError | None = None) -> None:
        """Keep it for the next use, unless the server is about to leave or this one may not write."""
        if self._closed or connection.is_in_transaction() or isinstance(error, _LEAVING):
            connection.terminate()
        elif not connection.is_closed():
            self._idle.append(connection)

    async def close(self) -> None:
        """Close all; those in use are cut off."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in list(self._used):
            connection.terminate()
        await asyncio.gather(*(close(connection) for connection in idle))

    def abandon(self) -> None:
        """Forget all, when their loop is gone and nothing can be awaited on it."""
        self._closed = True
        for connection in (*self._idle, *self._used):
            # Its transport belongs to a closed loop: the operating system has closed or will close the socket.
            with_loop_closed(connection)
        self._idle.clear()


async def close(connection: Connection) -> None:
    """Say goodbye; a server that does not answer is left without."""
    try:
        await connection.close(timeout=1)
    except BaseException as error:
        connection.terminate()
        if not isinstance(error, Exception):
            raise


def with_loop_closed(connection: Connection) -> None:
    """Terminate without a loop."""
    with contextlib.suppress(RuntimeError):
        connection.terminate()


# Errors after which this connection is of no more use, though it may look sound.
_LEAVING = (
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.PostgresConnectionError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)

_AWAY: tuple[type[BaseException], ...] = (
    *_LEAVING,
    asyncpg.TooManyConnectionsError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.LockNotAvailableError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresSystemError,
    asyncpg.TargetServerAttributeNotMatched,
    OSError,
    EOFError,
)

_NO_SCHEMA = (asyncpg.UndefinedTableError, asyncpg.UndefinedFunctionError, asyncpg.InvalidSchemaNameError)


def translated(error: Exception, seconds: float = CALL_SECONDS) -> Exception:
    """The same error, as Jobmill says it."""
    if isinstance(error, JobmillError):
        return error
    if isinstance(error, TimeoutError):
        return StoreAway(f"PostgreSQL did not answer within {seconds:g} s")
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return StoreAway(f"this PostgreSQL server takes no writes now (a standby?): {error}")
    if isinstance(error, (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidPasswordError)):
        return StoreError(f"PostgreSQL does not let us in: {error}")
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return StoreError(f"{error}; create it first (createdb, or CREATE DATABASE)")
    if isinstance(error, asyncpg.DataError):
        return StoreError(f"PostgreSQL cannot hold this value: {error}")
    if isinstance(error, _AWAY):
        said = str(error) or type(error).__name__
        return StoreAway(f"PostgreSQL cannot be used now: {said}")
    if isinstance(error, _NO_SCHEMA):
        return SchemaTooOld(f"{error}; run `jobmill migrate`")
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return StoreError(f"{error}; see the roles of `jobmill migrate --roles`")
    return StoreError(f"PostgreSQL: {error}") if isinstance(error, asyncpg.PostgresError) else error
