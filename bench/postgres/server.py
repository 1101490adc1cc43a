"""One PostgreSQL server for the whole run, durable as it comes: databases by template, and what it has spent so far."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
from msgspec import Struct

from tests.kit.postgres import PostgresServer

#: What the report says about how the server is set up.
TOLD = ("fsync", "synchronous_commit", "full_page_writes", "data_checksums", "shared_buffers", "max_wal_size")


class Spent(Struct, frozen=True):
    """Since the server was started: CPU of all its processes, and bytes of write-ahead log."""

    cpu_seconds: float
    wal_bytes: int


class Session:
    """A connection for code without a loop."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._connection = self._runner.run(asyncpg.connect(url))

    def execute(self, sql: str) -> None:
        """Run a statement, or several."""
        self._runner.run(self._connection.execute(sql))

    def value(self, sql: str) -> Any:
        """The first column of the first row."""
        return self._runner.run(self._connection.fetchval(sql))

    def close(self) -> None:
        """Close the connection and its loop."""
        self._runner.run(self._connection.close())
        self._runner.close()

    def __enter__(self) -> Session:
        """It is open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


class Server:
    """Runs from when it is made until it is closed."""

    def __init__(self) -> None:
        self._server = PostgresServer(durable=True).__enter__()
        self._session = Session(self._server.url())
        self._templates: dict[str, str] = {}
        self._numbers = itertools.count(1)

    def close(self) -> None:
        """Stop the server and remove its data."""
        self._session.close()
        self._server.close()

    def describe(self) -> dict[str, str]:
        """Version, settings and place."""
        settings = (f"{name}={self._session.value(f'show {name}')}" for name in TOLD)
        return {
            "postgresql": f"{self._session.value('show server_version')}, defaults: {', '.join(settings)}",
            "postgresql's data": str(self._server.directory.parent),
        }

    def is_made(self, name: str) -> bool:
        """Whether there is a template of this name."""
        return name in self._templates

    def template(self, name: str, fill: Callable[[str], None]) -> str:
        """The database of this name, made when it is first asked for: `fill` gets its URL.

        It is analysed, as a table in use is: a plan made without statistics would be nobody's.
        """
        if name not in self._templates:
            database = f"template_{next(self._numbers)}"
            self._session.execute(f"create database {database}")
            fill(self._server.url(database))
            with Session(self._server.url(database)) as session:
                session.execute("analyze")
            self._templates[name] = database
        return self._templates[name]

    def url(self, database: str) -> str:
        """Of a template that is not copied but used as it is."""
        return self._server.url(database)

    @contextmanager
    def copy(self, template: str) -> Iterator[str]:
        """The URL of a copy to be used up. Its pages are in the log already: a run pays for no whole pages.

        Dropping it makes a checkpoint, so that no run pays for what the one before it left behind.
        """
        database = f"copy_{next(self._numbers)}"
        self._session.execute(f"create database {database} template {template}")
        try:
            yield self._server.url(database)
        finally:
            self._session.execute(f"drop database {database} with (force)")

    def spent(self) -> Spent:
        """Until now."""
        cpu_seconds = self._cpu_seconds()
        wal_bytes = int(self._session.value("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))
        return Spent(cpu_seconds, wal_bytes)

    def _cpu_seconds(self) -> float:
        """Of all its processes that live, and of those that have ended: their parent has waited for them."""
        while True:
            try:
                return _waited_for(self._server.pid) + sum(map(_ran, self._server.pids()))
            except (FileNotFoundError, ProcessLookupError):  # one ended between two looks
                continue


def _ran(pid: int) -> float:
    """To the nanosecond; /proc/PID/stat counts ticks of 10 ms."""
    return int(Path(f"/proc/{pid}/schedstat").read_text("utf-8").split()[0]) / 1e9


def _waited_for(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(") ")[2].split()
    cutime, cstime = fields[13:15]
    return (int(cutime) + int(cstime)) / os.sysconf("SC_CLK_TCK")
