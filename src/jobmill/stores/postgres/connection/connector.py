"""Making and closing connections, and transactions on them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import asyncpg
from asyncpg import connect_utils

from jobmill.errors import StoreUnavailable

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

CONNECT_SECONDS = 5.0
# For closing a connection politely, and for asking the server to stop a call that nobody waits for any more.
CLOSE_SECONDS = 1.0

# Our statements lock rows and then read: with one snapshot per transaction they would read the state before the lock.
READ_COMMITTED = "SET default_transaction_isolation = 'read committed'"
# A transaction whose client has vanished between two statements holds its locks no longer than this.
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = 10000"

_STATEMENTS_CACHED = 100


def _retrieve_errors_of_tls_requests() -> None:
    """Retrieve the error of a request for TLS where nobody waits for its answer any more.

    The driver asks for TLS whenever it connects, also to cancel a statement. Where that is interrupted after the
    connection was made, for example because the connection of the statement is lost too, asyncio would log "Future
    exception was never retrieved". The driver has no parameter for this. A test fails where it changes.
    """
    protocol: Any = getattr(connect_utils, "TLSUpgradeProto", None)
    if protocol is None:
        return
    lost = protocol.connection_lost

    def connection_lost(self: Any, error: Exception | None) -> None:
        lost(self, error)
        if not self.on_data.cancelled():
            self.on_data.exception()

    protocol.connection_lost = connection_lost


_retrieve_errors_of_tls_requests()


class Connector:
    """Makes connections, and notices a pooler between this process and the server."""

    def __init__(self, url: str) -> None:
        self.url = url
        #: Whether the last connection led to a pooler; None before the first connection.
        self.pooled: bool | None = None

    async def connect(self) -> Connection:
        """Make a connection, without cached statements where there is a pooler.

        Behind a pooler in transaction mode a prepared statement may be missing in the next transaction.
        """
        pooled = bool(self.pooled)
        connection = await self._connect(0 if pooled else _STATEMENTS_CACHED)
        if self.pooled and not pooled:
            # Nothing was prepared on it yet.
            await close(connection)
            connection = await self._connect(0)
        return connection

    def _settings(self) -> dict[str, str]:
        """The name in pg_stat_activity, unless the URL has one. The default name of a worker begins alike."""
        if "application_name" in dict(parse_qsl(urlsplit(self.url).query)):
            return {}
        return {"application_name": f"jobmill {socket.gethostname()}-{os.getpid()}"}

    async def _connect(self, statement_cache_size: int) -> Connection:
        connection: Connection | None = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await asyncpg.connect(
                    self.url, statement_cache_size=statement_cache_size, server_settings=self._settings()
                )
                # A pooler reports a process id that it made up: it does not know yet which server it will use.
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


async def close(connection: Connection) -> None:
    """Close a connection politely; a server that does not answer in time is left without."""
    try:
        await connection.close(timeout=CLOSE_SECONDS)
    except BaseException as error:
        connection.terminate()
        if not isinstance(error, Exception):
            raise


@contextlib.asynccontextmanager
async def transaction(connection: Connection, *settings: str) -> AsyncIterator[None]:
    """A transaction with these settings, such as "jit = off".

    The driver's own would also send ROLLBACK when it is cancelled, and wait for the answer.
    """
    await connection.execute("; SET LOCAL ".join((BEGIN, *settings)))
    try:
        yield
    except Exception:
        # Where this fails too, the connection is still in a transaction, and is not used again.
        with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            await connection.execute("ROLLBACK")
        raise
    await connection.execute("COMMIT")
