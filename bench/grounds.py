"""The stores as the parent sees them: fresh databases, filled databases, and what the server has spent.

Each server is started when it is first used, and closed with the block. PostgreSQL and MongoDB have their defaults and
their data on a disk; Valkey writes nothing to disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
from redis import Redis

from bench.clocks import Crowd
from bench.contenders import CONTENDERS, Contender
from tests.kit.mongo import SET, MongoReplicaSet
from tests.kit.places import PrivateDirectory
from tests.kit.postgres import PostgresServer
from tests.kit.redis import RedisServer

T = TypeVar("T")

SERVER, WAL = "server CPU us/job", "WAL B/job"
#: Of clock_getcpuclockid(3): a process's clock of all its threads, those that have ended included, to the nanosecond.
SCHEDULED = 2


class Ground:
    """One store."""

    name: str
    title: str
    #: Where a worker is judged, and all numbers of slots of a full run.
    judged = 50
    slots: tuple[int, ...] = (1, 10, 50, 200)
    callers = 50

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened = ExitStack()

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """Jobmill first."""
        return CONTENDERS[self.name]

    @property
    def ours(self) -> Contender:
        """Jobmill."""
        return self.contenders[0]

    def close(self) -> None:
        """Stop the server and remove its data."""
        self._opened.close()

    def describe(self) -> dict[str, str]:
        """Version and settings, for the report."""
        return {}

    def fresh(self, contender: Contender) -> AbstractContextManager[str]:
        """The URL of an empty database, removed afterwards."""
        raise NotImplementedError

    @contextmanager
    def filled(self, contender: Contender, jobs: int) -> Iterator[str]:
        """The URL of a database with the contender's tables and waiting jobs."""
        with self.fresh(contender) as url:
            contender.run("fill", type(None), url=url, jobs=jobs)
            self.settle(url)
            yield url

    def crowd(self, url: str, crowds: Sequence[Crowd]) -> None:
        """Add jobs of ours in all states; in several processes, because each has a limited time."""
        for one in crowds:
            self.ours.run("own", type(None), url=url, verb="crowd", crowd=one)
        self.settle(url)

    def settle(self, url: str) -> None:
        """Let the server finish what filling left to do, so that no run pays for it."""

    def spent(self) -> dict[str, float]:
        """So far, by unit: microseconds of CPU, bytes."""
        return {}


class Memory(Ground):
    """In the process itself: a drain fills it first."""

    name, title = "memory", "Memory"

    @contextmanager
    def fresh(self, contender: Contender) -> Iterator[str]:
        """Nothing to remove."""
        yield "memory://"

    @contextmanager
    def filled(self, contender: Contender, jobs: int) -> Iterator[str]:
        """By the run itself."""
        yield "memory://"

    def crowd(self, url: str, crowds: Sequence[Crowd]) -> None:
        """By the run itself."""


class Sqlite(Ground):
    """A file for each run, copied from one that was filled once."""

    name, title = "sqlite", "SQLite"

    def _url(self, contender: Contender, path: Path) -> str:
        return f"sqlite:///{path}" if contender is self.ours else str(path)

    @contextmanager
    def fresh(self, contender: Contender) -> Iterator[str]:
        """In a folder of its own, with the files that SQLite keeps beside it."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            yield self._url(contender, Path(folder) / "jobs.db")

    @contextmanager
    def filled(self, contender: Contender, jobs: int) -> Iterator[str]:
        """The copy is on the disk before anything is measured."""
        file = self.folder / f"{contender.name}-{jobs}.db"
        if not file.exists():
            contender.run("fill", type(None), url=self._url(contender, file), jobs=jobs)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            copy = Path(shutil.copy(file, folder))
            with copy.open("rb+") as opened:
                os.fsync(opened.fileno())
            yield self._url(contender, copy)


class Postgres(Ground):
    """Every run has a copy of a database that was filled and analyzed once."""

    name, title = "postgres", "PostgreSQL"
    judged = 100
    slots = (1, 10, 50, 100, 200)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._server = self._opened.enter_context(PostgresServer(durable=True))
        self._runner = self._opened.enter_context(asyncio.Runner())
        self._connection = self._run(asyncpg.connect(self._server.url()))
        self._opened.callback(lambda: self._run(self._connection.close()))
        self._templates: dict[tuple[str, int], str] = {}
        self._numbers = itertools.count(1)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def describe(self) -> dict[str, str]:
        names = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size")
        settings = [f"{name}={self._value(f'show {name}')}" for name in names]
        return {"postgresql": f"{self._value('show server_version')}, defaults: {', '.join(settings)}"}

    def _value(self, sql: str) -> Any:
        return self._run(self._connection.fetchval(sql))

    @contextmanager
    def _database(self, template: str) -> Iterator[str]:
        name = f"bench_{next(self._numbers)}"
        self._run(self._connection.execute(f"create database {name} template {template}"))
        try:
            yield name
        finally:  # dropping makes a checkpoint
            self._run(self._connection.execute(f"drop database {name} with (force)"))

    @contextmanager
    def fresh(self, contender: Contender) -> Iterator[str]:
        with self._database("template1") as name:
            yield self._server.url(name)

    @contextmanager
    def filled(self, contender: Contender, jobs: int) -> Iterator[str]:
        """The copy's pages are in the log already: a run pays for no whole pages."""
        key = (contender.program, jobs)
        if key not in self._templates:
            template = self._opened.enter_context(self._database("template1"))
            contender.run("fill", type(None), url=self._server.url(template), jobs=jobs)
            self.settle(self._server.url(template))
            self._templates[key] = template
        with self._database(self._templates[key]) as name:
            yield self._server.url(name)

    def crowd(self, url: str, crowds: Sequence[Crowd]) -> None:
        """And vacuumed: autovacuum does that within a minute, else while somebody measures."""
        super().crowd(url, crowds)
        self._settle(url, "vacuum")

    def settle(self, url: str) -> None:
        """Statistics, as a table in use has them, and a checkpoint."""
        self._settle(url, "analyze")

    def _settle(self, url: str, command: str) -> None:
        async def settle() -> None:
            connection = await asyncpg.connect(url)
            await connection.execute(command)
            await connection.execute("checkpoint")
            await connection.close()

        self._run(settle())

    def spent(self) -> dict[str, float]:
        """CPU of all its processes, those that have ended included, and the write-ahead log."""
        wal = float(self._value("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))
        while True:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one ended between two looks
                cpu = _waited_for_us(self._server.pid) + sum(map(_ran_us, self._server.pids()))
                return {SERVER: cpu, WAL: wal}


class Valkey(Ground):
    """Databases of one server, by their numbers."""

    name, title = "redis", "Redis"
    callers = 100

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._server = self._opened.enter_context(RedisServer())
        self._free = list(range(1, 60))

    def describe(self) -> dict[str, str]:
        with Redis.from_url(self._server.url()) as client:
            info: Any = client.info()
        version = info.get("valkey_version", info["redis_version"])
        return {"redis": f"Valkey {version}, memory allocator {info['mem_allocator']}, nothing is written to disk"}

    @contextmanager
    def fresh(self, contender: Contender) -> Iterator[str]:
        """Emptied at once: in the background the next run would pay for it."""
        number = self._free.pop(0)
        url = self._server.url(number)
        try:
            yield url
        finally:
            with Redis.from_url(url) as client:
                client.execute_command("FLUSHDB", "SYNC")
            self._free.append(number)

    def spent(self) -> dict[str, float]:
        """CPU of all its threads."""
        tasks = Path(f"/proc/{self._server.pid}/task").glob("*/schedstat")
        return {SERVER: sum(int(task.read_text("utf-8").split()[0]) for task in tasks) / 1e3}


class Mongo(Ground):
    """A replica set of one member, with mongod's own defaults: the tests' have their journal in memory."""

    name, title = "mongo", "MongoDB"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        data = PrivateDirectory(durable=True)
        self._opened.callback(data.remove)
        group = MongoReplicaSet()
        self._node = group.nodes[0]
        self._node.settings = {
            "bind_ip": "127.0.0.1",
            "port": str(self._node.port),
            "replSet": SET,
            "dbpath": str(data.path),
        }
        self._node.parameters = {}
        self._opened.enter_context(group)

    def describe(self) -> dict[str, str]:
        status = self._node.ask("serverStatus")
        cache = status["wiredTiger"]["cache"]["maximum bytes configured"] / 2**30
        return {"mongodb": f"{status['version']}, a replica set of one member, defaults: cache {cache:.1f} GB"}

    @contextmanager
    def fresh(self, contender: Contender) -> Iterator[str]:
        """It names the member alone: who knows of the set asks it for its members, and would go past a proxy."""
        with self._node.database(**contender.url_options) as url:
            yield url

    def crowd(self, url: str, crowds: Sequence[Crowd]) -> None:
        """And without index entries of deleted keys: the server keeps them for five minutes."""
        super().crowd(url, crowds)
        name = "minSnapshotHistoryWindowInSeconds"
        kept_s = self._node.ask("setParameter", **{name: 0})["was"]
        for _ in range(2):  # only a write moves the window, and only the next checkpoint knows of it
            self._node.ask("appendOplogNote", data={"note": "settle"})
            self.settle(url)
        self._node.ask("setParameter", **{name: kept_s})

    def settle(self, url: str) -> None:
        """Write all that is dirty."""
        self._node.ask("fsync", within_ms=120_000)

    def spent(self) -> dict[str, float]:
        """CPU of all its threads; those of closed connections have ended."""
        return {SERVER: time.clock_gettime((~self._node.pid << 3) | SCHEDULED) * 1e6}


class Crontab(Mongo):
    """A collection as a crontab, on the same kind of server."""

    name, title = "crontab", "Crontab"


GROUNDS: dict[str, type[Ground]] = {one.name: one for one in (Memory, Sqlite, Postgres, Valkey, Mongo, Crontab)}
TITLES = {name: ground.title for name, ground in GROUNDS.items()}


class Grounds:
    """All of a run, each made when it is first asked for."""

    def __init__(self, place: Path | None) -> None:
        self._opened = ExitStack()
        self._made: dict[str, Ground] = {}
        if place is not None:
            os.environ["TMPDIR"] = str(place.resolve())
            tempfile.tempdir = None  # so that it is looked up again
        self.folder = Path(tempfile.gettempdir())

    def __getitem__(self, name: str) -> Ground:
        """The ground of this name."""
        if name not in self._made:
            self._made[name] = GROUNDS[name](self.folder)
            self._opened.callback(self._made[name].close)
        return self._made[name]

    def describe(self) -> dict[str, str]:
        """What there is to say about those that were used."""
        return {what: text for ground in self._made.values() for what, text in ground.describe().items()}

    def __enter__(self) -> Grounds:
        """Nothing runs yet."""
        self.folder = Path(self._opened.enter_context(tempfile.TemporaryDirectory(prefix="jobmill-bench-")))
        return self

    def __exit__(self, *_: object) -> None:
        """Close all."""
        self._opened.close()


def _ran_us(pid: int) -> float:
    """To the nanosecond; /proc/PID/stat counts ticks of 10 ms."""
    return int(Path(f"/proc/{pid}/schedstat").read_text("utf-8").split()[0]) / 1e3


def _waited_for_us(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(") ")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK") * 1e6
