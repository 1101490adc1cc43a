"""Waking on SQLite: across processes, and without polling where the kernel reports writes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jobmill.stores.sqlite import SqliteStore, wake
from jobmill.testing import ManualClock
from jobmill.testing.contract.support import QUEUE, claim_ids, put_one, wish
from tests.helpers import until

pytestmark = pytest.mark.stores("sqlite")

FAR_MS = 600_000
PATIENCE_S = 60

ENQUEUE_PER_LINE = """
import asyncio, sys
from jobmill.core.values import NewJob
from jobmill.stores.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    print("ready", flush=True)
    for line in sys.stdin:
        await store.enqueue([NewJob(id=store.new_id(), name="send", queue="mail", payload_json=b"null")])
        print("done", flush=True)
    await store.close()

asyncio.run(main())
"""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "jobs.db")
    await store.open()
    yield store
    await store.close()


class Other:
    """Another process that enqueues a job for each line that it reads."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-c", ENQUEUE_PER_LINE, str(path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    async def hear(self, word: bytes) -> None:
        assert self._process.stdout is not None
        assert (await asyncio.to_thread(self._process.stdout.readline)).strip() == word

    def tell(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"enqueue\n")
        self._process.stdin.flush()

    async def end(self) -> None:
        await asyncio.to_thread(self._process.communicate)


@pytest.fixture
async def other(store: SqliteStore) -> AsyncIterator[Other]:
    other = Other(store.path)
    await other.hear(b"ready")
    yield other
    await other.end()


async def asleep(store: SqliteStore) -> asyncio.Task[None]:
    """A task that has claimed nothing and fallen asleep."""
    assert (await store.exchange([], wish())).claimed == []
    sleeper = asyncio.create_task(store.wait_for_work((QUEUE,), store.now() + FAR_MS))
    await until(lambda: store._bell.sleepers)
    return sleeper


@pytest.mark.parametrize("polling", [False, True])
async def test_another_process_wakes_this_one(
    store: SqliteStore, other: Other, monkeypatch: pytest.MonkeyPatch, polling: bool
) -> None:
    if polling:
        monkeypatch.setattr(wake, "inotify", lambda file: None)
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(5):
            sleeper = await asleep(store)
            other.tell()
            await sleeper
            await other.hear(b"done")
            assert len(await claim_ids(store)) == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs inotify")
async def test_nothing_is_polled_on_linux(store: SqliteStore, other: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    real = wake.CommitWatcher._data_version

    def counted(watcher: wake.CommitWatcher) -> int:
        nonlocal looks
        looks += 1
        return real(watcher)

    monkeypatch.setattr(wake.CommitWatcher, "_data_version", counted)
    monkeypatch.setattr(wake, "POLL_SECONDS", 0.0001)
    async with asyncio.timeout(PATIENCE_S):
        sleeper = await asleep(store)
        # Long enough for a hundred polls of a millisecond each.
        done, _ = await asyncio.wait({sleeper}, timeout=0.1)
        assert not done
        assert looks <= 2 + len(wake._PAUSES)
        other.tell()
        await sleeper
        await other.hear(b"done")


async def test_a_job_between_the_claim_and_falling_asleep_is_not_missed(store: SqliteStore, other: Other) -> None:
    assert (await store.exchange([], wish())).claimed == []
    other.tell()
    await other.hear(b"done")
    async with asyncio.timeout(PATIENCE_S):
        await store.wait_for_work((QUEUE,), store.now() + FAR_MS)


async def test_a_job_of_this_process_between_the_claim_and_falling_asleep_is_not_missed(store: SqliteStore) -> None:
    assert (await store.exchange([], wish())).claimed == []
    await put_one(store)
    async with asyncio.timeout(PATIENCE_S):
        await store.wait_for_work((QUEUE,), store.now() + FAR_MS)


async def test_a_workers_own_exchange_does_not_end_its_sleep(store: SqliteStore) -> None:
    await put_one(store)
    assert len(await claim_ids(store)) == 1
    sleeper = await asleep(store)
    done, _ = await asyncio.wait({sleeper}, timeout=0.05)
    assert not done
    sleeper.cancel()


async def test_sleeping_again_without_a_claim_is_no_hot_loop(store: SqliteStore) -> None:
    await store.exchange([], wish())
    await put_one(store)
    await store.wait_for_work((QUEUE,), store.now() + FAR_MS)
    again = asyncio.create_task(store.wait_for_work((QUEUE,), store.now() + FAR_MS))
    done, _ = await asyncio.wait({again}, timeout=0.05)
    assert not done
    again.cancel()


async def test_a_clock_that_stands_still_neither_ends_nor_prolongs_a_sleep(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "still.db", clock=ManualClock())
    await store.open()
    async with asyncio.timeout(PATIENCE_S):
        await store.wait_for_work((QUEUE,), store.now() + 10)
        await store.wait_for_work((QUEUE,), store.now() - 10)
    await store.close()


async def test_closing_wakes_sleepers(store: SqliteStore) -> None:
    sleeper = await asleep(store)
    await store.close()
    async with asyncio.timeout(PATIENCE_S):
        await sleeper
