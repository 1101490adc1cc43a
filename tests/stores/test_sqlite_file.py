"""The SQLite store's file: making, migrating and refusing it."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import jobmill
from jobmill.core.values import EVERYTHING
from jobmill.errors import InvalidValue, SchemaTooNew, StoreError, StoreUnavailable, UnsafeStore
from jobmill.stores.sqlite import SqliteStore
from jobmill.stores.sqlite.connection import network, writer
from jobmill.stores.sqlite.connection.network import network_file_system
from jobmill.testing import ManualClock
from jobmill.testing.contract.support import look, new, put_one

pytestmark = pytest.mark.stores("sqlite")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    yield store
    await store.close()


def tables(path: Path) -> set[str]:
    connection = sqlite3.connect(path)
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    return names


DIARY = b"Dear diary, " * 100


def write(path: Path, text: bytes) -> None:
    path.write_bytes(text)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


async def test_opening_makes_the_file_with_a_write_ahead_log(store: SqliteStore, path: Path) -> None:
    assert "jobmill_jobs" in tables(path)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


async def test_migrating_again_does_nothing(path: Path) -> None:
    names = ["0001_jobs", "0002_usage", "0003_runs", "0004_declared", "0005_operations", "0006_unstarted"]
    names += ["0007_log_lines", "0008_flows", "0009_taken_keys", "0010_lanes"]
    assert await SqliteStore(path).migrate() == names
    assert await SqliteStore(path).migrate() == []


async def test_jobs_outlive_the_store(path: Path) -> None:
    for expected in (1, 2):
        store = SqliteStore(path)
        await store.open()
        await put_one(store)
        (counted,) = await store.count(EVERYTHING)
        assert counted.count == expected
        await store.close()


async def test_a_clock_that_is_set_back_is_noticed_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    store = SqliteStore(path, clock=clock)
    await store.open()
    await put_one(store)
    before = store.now()
    # A correction of the clock is nothing to report.
    clock.advance(-1)
    assert store.now() == before
    assert caplog.messages == []
    clock.advance(-3_600)
    for _ in range(3):
        await put_one(store)
        assert store.now() == before, "it does not go back"
    warned = f"the clock of this machine was set back: it is 1h1s behind the times in {path}; until it has caught up, "
    assert [one.startswith(warned) for one in caplog.messages] == [True]
    await store.close()
    # And so is one that was set back while no process ran.
    caplog.clear()
    again = SqliteStore(path, clock=clock)
    await again.open()
    await put_one(again)
    assert [one.startswith(warned) for one in caplog.messages] == [True]
    clock.advance(2 * 3_600)
    assert again.now() == clock()
    clock.advance(-60)
    assert again.now() == clock() + 60_000
    assert len(caplog.messages) == 2, "it was right again, and was set back again"
    await again.close()


async def test_a_newer_schema_is_refused_unchanged(path: Path, tmp_path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE jobmill_migrations (number INTEGER, name TEXT, applied_ms INTEGER)")
    connection.execute("INSERT INTO jobmill_migrations VALUES (9999, 'from the future', 0)")
    connection.commit()
    connection.close()
    before = contents(tmp_path)
    for verb in (SqliteStore(path).open, SqliteStore(path).migrate):
        with pytest.raises(SchemaTooNew, match="newer Jobmill"):
            await verb()
    assert contents(tmp_path) == before


async def test_the_tables_may_live_in_the_applications_own_file(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE orders (id)")
    connection.execute("PRAGMA user_version = 7")
    connection.commit()
    connection.close()
    store = SqliteStore(path)
    await store.open()
    await put_one(store)
    await store.close()
    assert {"orders", "jobmill_jobs"} <= tables(path)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (7,)
    assert connection.execute("PRAGMA application_id").fetchone() == (0,)
    connection.close()


async def test_the_file_of_another_application_is_refused_unchanged(path: Path, tmp_path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA application_id = 252006673")
    connection.execute("CREATE TABLE fossil (id)")
    connection.commit()
    connection.close()
    before = contents(tmp_path)
    with pytest.raises(StoreError, match="another application"):
        await SqliteStore(path).open()
    assert contents(tmp_path) == before


async def test_a_file_that_is_no_database_is_refused_with_a_clear_message(path: Path) -> None:
    write(path, DIARY)
    with pytest.raises(StoreError, match="is not a SQLite database"):
        await SqliteStore(path).open()
    assert contents(path.parent) == {path.name: DIARY}


async def test_the_message_names_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere does not exist"):
        await SqliteStore(tmp_path / "nowhere" / "jobs.db").open()


async def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a directory"):
        await SqliteStore(tmp_path).open()


@pytest.mark.parametrize("path", [":memory:", "", "file:x?mode=memory"])
def test_a_path_in_memory_is_refused(path: str) -> None:
    with pytest.raises(InvalidValue, match="memory://"):
        SqliteStore(path)


def test_synchronous_is_one_of_four() -> None:
    with pytest.raises(InvalidValue, match="OFF, NORMAL, FULL, EXTRA"):
        SqliteStore("jobs.db", synchronous="sometimes")


async def test_a_store_that_is_not_open_raises_an_error(path: Path) -> None:
    store = SqliteStore(path)
    with pytest.raises(StoreError, match="not open"):
        await store.get(["x"])
    await store.open()
    await store.close()
    with pytest.raises(StoreError, match="not open"):
        await store.enqueue([new()])
    await store.open()
    await put_one(store)
    await store.close()


async def test_a_file_that_was_removed_in_use_is_not_written(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_CHECK_SECONDS", 0)
    await put_one(store)
    moved = path.with_name("moved.db")
    os.rename(path, moved)
    with pytest.raises(StoreUnavailable, match="removed or replaced"):
        await store.enqueue([new()])
    os.rename(moved, path)
    await put_one(store)


# ---------------------------------------------------------------------------------------------------- places

MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /home rw,relatime shared:2 - nfs4 server:/home rw,vers=4.2
31 30 0:41 / /home/ada/scratch rw - ext4 /dev/vdb rw
32 22 0:42 / /mnt/my\040share rw - cifs //server/share rw
33 22 0:43 / /mnt/ssh rw - fuse.sshfs ada@server:/ rw
34 22 0:44 / /mnt/local rw - fuse.mergerfs a:b rw
35 22 0:45 / /wsl rw - 9p drvfs rw
36 22 0:46 / /covered rw - nfs server:/old rw
37 22 0:47 / /covered rw - xfs /dev/vdc rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/jobs.db", None),
        ("/home/ada/jobs.db", "nfs4"),
        ("/home", "nfs4"),
        ("/homeward/jobs.db", None),
        ("/home/ada/scratch/jobs.db", None),
        ("/mnt/my share/jobs.db", "cifs"),
        ("/mnt/ssh/jobs.db", "fuse.sshfs"),
        ("/mnt/local/jobs.db", None),
        ("/wsl/jobs.db", "9p"),
        ("/covered/jobs.db", None),
    ],
)
def test_network_file_systems_are_recognized_by_the_mounts(path: str, kind: str | None) -> None:
    assert network_file_system(MOUNTS, path) == kind


async def test_a_network_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "network_file_system", lambda mountinfo, path: "nfs4")
    with pytest.raises(UnsafeStore, match="network file system \\(nfs4\\)"):
        await SqliteStore(path).open()
    assert contents(path.parent) == {}


async def test_an_unreadable_row_can_be_read_in_part(store: SqliteStore, path: Path) -> None:
    id = await put_one(store)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE jobmill_jobs SET options = 'garbage'")
    connection.close()
    job = await look(store, id)
    assert (job.id, job.state) == (id, "waiting")
    assert "cannot be read" in (job.deferred_error or "")


def modes_in(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


async def test_only_its_user_can_read_a_new_file(tmp_path: Path) -> None:
    previous = os.umask(0o022)
    try:
        async with jobmill.connect(f"sqlite:///{tmp_path / 'jobs.db'}") as jobs:
            await jobs.enqueue("send")
            modes = modes_in(tmp_path)
    finally:
        os.umask(previous)
    assert modes == dict.fromkeys(("jobs.db", "jobs.db-shm", "jobs.db-wal"), 0o600)


async def test_the_mode_of_a_file_that_exists_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.touch()
    path.chmod(0o660)
    async with jobmill.connect(f"sqlite:///{path}"):
        assert modes_in(tmp_path)["jobs.db"] == 0o660
