"""The faults of a PostgreSQL server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg

from tests.faults.operations import ServerBehindProxy, again_and_again
from tests.kit.postgres import PostgresServer, connected
from tests.kit.proxy import Proxy

#: Few enough for a test to take them all, and enough for two workers and a client.
SETTINGS = {"max_connections": "40", "superuser_reserved_connections": "0"}


class FaultyPostgres(ServerBehindProxy):
    """PostgreSQL, at a database of its own."""

    store_name = "postgres"

    def __init__(self, server: PostgresServer, proxy: Proxy, folder: Path, direct_url: str) -> None:
        super().__init__(server, proxy, folder, direct_url)
        self.faults = {
            **self.faults,
            "terminate": self._terminated,
            "crowd": self._crowded,
            "read_only": self._read_only,
            "full_disk": self._full,
        }

    @contextlib.asynccontextmanager
    async def _terminated(self) -> AsyncIterator[None]:
        end = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
        async with connected(self.direct_url) as connection:
            ending: set[asyncio.Task[object]] = set()

            def terminate() -> None:
                if all(task.done() for task in ending):
                    ending.add(asyncio.create_task(connection.execute(end)))

            async with again_and_again(terminate):
                yield
            await asyncio.gather(*ending)

    @contextlib.asynccontextmanager
    async def _crowded(self) -> AsyncIterator[None]:
        self.proxy.refuse()
        self.proxy.cut()
        async with AsyncExitStack() as others:
            with contextlib.suppress(asyncpg.TooManyConnectionsError):
                while True:
                    await others.enter_async_context(connected(self.direct_url))
            self.proxy.accept()
            yield

    @contextlib.asynccontextmanager
    async def _read_only(self) -> AsyncIterator[None]:
        async with connected(self.direct_url) as connection:
            # Sessions that are open learn of it as well.
            await connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            await connection.execute("SELECT pg_reload_conf()")
            try:
                yield
            finally:
                await connection.execute("SET default_transaction_read_only = off")
                await connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
                await connection.execute("SELECT pg_reload_conf()")

    @contextlib.asynccontextmanager
    async def _full(self) -> AsyncIterator[None]:
        """By a trigger that refuses each write as a full disk would, with SQLSTATE 53100.

        A tablespace that is really full needs a file system of its own, which only root can mount.
        """
        async with connected(self.direct_url) as connection:
            await connection.execute(
                "CREATE OR REPLACE FUNCTION public.disk_is_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                "RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; "
                "END $$"
            )
            await connection.execute(
                "CREATE TRIGGER disk_is_full BEFORE INSERT OR UPDATE ON jobmill.jobs "
                "EXECUTE FUNCTION public.disk_is_full()"
            )
            try:
                yield
            finally:
                await connection.execute("DROP TRIGGER disk_is_full ON jobmill.jobs")
