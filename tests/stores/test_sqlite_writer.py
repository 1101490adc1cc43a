"""The SQLite store's writer: shared commits, failing calls, and locks that other processes hold."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobmill.core.values import EVERYTHING, Broken, Filter, Settlement
from jobmill.errors import StoreBusy
from jobmill.stores.sqlite import SqliteStore
from jobmill.stores.sqlite.codec import LARGE_PAYLOAD
from jobmill.stores.sqlite.connection import begin, writer
from jobmill.testing import ManualClock
from jobmill.testing.contract.support import claim, claim_one, look, new, put, put_one, settle, started, succeed, wish

pytestmark = pytest.mark.stores("sqlite")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, clock=ManualClock())
    await store.open()
    yield store
    await store.close()


class Held:
    """Keeps the writer busy, so that calls in the meantime wait and share the next commit."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._go = threading.Event()

    async def __aenter__(self) -> Held:
        began = threading.Event()

        def hold(_: object) -> None:
            began.set()
            self._go.wait(10)

        self._held = self._store._write(hold)
        await asyncio.to_thread(began.wait, 10)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._go.set()
        await self._held


def commits(store: SqliteStore) -> list[str]:
    """Records the commits of the writer's connection."""
    told: list[str] = []
    connection = store._opened().write_connection
    connection.set_trace_callback(lambda sql: told.append(sql) if sql == "COMMIT" else None)
    return told


async def gathered_while_held(store: SqliteStore, *calls: Coroutine[Any, Any, Any]) -> list[Any]:
    async with Held(store):
        tasks = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0)
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_calls_that_come_together_share_a_commit(store: SqliteStore) -> None:
    told = commits(store)
    answers = await gathered_while_held(store, *[store.enqueue([new()]) for _ in range(20)])
    assert len(answers) == 20
    # One commit for the call that held the writer, one for all others.
    assert len(told) == 2
    (counted,) = await store.count(EVERYTHING)
    assert counted.count == 20


async def test_a_failing_call_does_not_fail_the_others_of_its_commit(store: SqliteStore) -> None:
    good, bad = new(), new(payload="\N{SNOWMAN}", priority=1 << 70)
    first, failure, last = await gathered_while_held(
        store, store.enqueue([good]), store.enqueue([bad]), store.enqueue([new("last")])
    )
    assert isinstance(failure, OverflowError)
    assert [receipt.status for receipt in (*first, *last)] == ["created", "created"]
    assert (await store.get([bad.id])) == [None]


async def test_a_lost_lease_does_not_affect_the_others_of_its_commit(store: SqliteStore) -> None:
    mine, lost, other = [await started(store, new()) for _ in range(3)]
    stale = msgspec.structs.replace(succeed(lost), lease=msgspec.structs.replace(lost.lease, token="stale"))
    answers = await gathered_while_held(
        store, store.exchange([succeed(mine), stale], None), store.exchange([succeed(other)], None)
    )
    assert [answer.settled for answer in answers] == [["done", "lost"], ["done"]]
    assert [job and job.state for job in await store.get([mine.job.id, lost.job.id, other.job.id])] == [
        "succeeded",
        "running",
        "succeeded",
    ]


async def test_settling_twice_in_one_call_counts_once(store: SqliteStore) -> None:
    one = await started(store)
    assert await settle(store, succeed(one), succeed(one)) == ["done", "lost"]


async def test_equal_and_different_successes_are_all_written(store: SqliteStore) -> None:
    await put(store, *[new() for _ in range(30)])
    claimed = await claim(store, 30)
    settlements: list[Settlement] = [succeed(one, None if number % 3 else number) for number, one in enumerate(claimed)]
    assert await settle(store, *settlements) == ["done"] * 30
    jobs = await store.get([one.job.id for one in claimed])
    assert [job and job.result for job in jobs] == [None if number % 3 else number for number in range(30)]


async def test_a_cancelled_caller_does_not_affect_the_others(store: SqliteStore) -> None:
    async with Held(store):
        leaves = asyncio.ensure_future(store.enqueue([new("left")]))
        stays = asyncio.ensure_future(store.enqueue([new("stayed")]))
        await asyncio.sleep(0)
        leaves.cancel()
    assert [receipt.id for receipt in await stays] == ["stayed"]
    # Submitted work is done even if nobody awaits it.
    assert (await look(store, "left")).state == "waiting"


async def test_threads_with_loops_of_their_own_share_a_store(store: SqliteStore) -> None:
    def elsewhere(number: int) -> str:
        return asyncio.run(put_one(store, new(f"thread-{number}")))

    ids = await asyncio.gather(*[asyncio.to_thread(elsewhere, number) for number in range(5)])
    assert all(await store.get(ids))


async def test_a_long_query_does_not_delay_the_writer(store: SqliteStore) -> None:
    go = threading.Event()
    reading = store._opened().reader.submit(lambda _: go.wait(10))
    await put_one(store)
    go.set()
    assert await reading is True


async def test_a_lock_that_another_process_holds_raises_store_busy(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "begin", functools.partial(begin, seconds=0.05))
    other = hold_the_lock(path)
    assert other.stdout is not None
    assert (await asyncio.to_thread(other.stdout.readline)).strip() == b"held"
    with pytest.raises(StoreBusy, match="write lock"):
        await store.enqueue([new()])
    assert await store.count(EVERYTHING) == []
    await asyncio.to_thread(other.communicate)
    await put_one(store)


def hold_the_lock(path: Path) -> subprocess.Popen[bytes]:
    """Another process that keeps the lock until its input ends."""
    code = (
        "import sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('BEGIN IMMEDIATE')\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    return subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


# ---------------------------------------------------------------------------------------------------- rows


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    with connection:
        found = connection.execute(sql).fetchall()
    connection.close()
    return found


async def test_a_large_payload_is_stored_beside_its_job(store: SqliteStore, path: Path) -> None:
    large = "x" * LARGE_PAYLOAD
    id = await put_one(store, new(payload=large))
    await put_one(store, new(payload="small", queue="other"))
    assert rows(path, "SELECT payload IS NULL FROM jobmill_jobs ORDER BY seq") == [(1,), (0,)]
    assert rows(path, "SELECT count(*) FROM jobmill_payloads") == [(1,)]
    claimed = await claim_one(store)
    assert claimed.job.payload == large
    assert (await look(store, id)).payload == large
    gone = msgspec.structs.replace(succeed(claimed), keep=msgspec.convert({"last": 0}, type(succeed(claimed).keep)))
    assert await settle(store, gone) == ["done"]
    assert rows(path, "SELECT count(*) FROM jobmill_payloads") == [(0,)]


@pytest.mark.parametrize(
    "harm",
    [
        "payload = '{\"a\":'",
        "payload = NULL",
        "payload = '1, 2'",
        "payload = CAST(x'ff22' AS TEXT)",
        "options = '[]'",
        "recurrence = 'never'",
        "attempts = '{}'",
        "attempts = '[{'",
        "tracebacks = '[1]'",
        "tracebacks = 'never'",
    ],
)
async def test_a_row_of_garbage_is_broken_and_does_not_affect_the_others(
    store: SqliteStore, path: Path, harm: str
) -> None:
    before, broken, behind = await put(store, new(), new(), new())
    rows(path, f"UPDATE jobmill_jobs SET {harm} WHERE id = '{broken}'")
    exchanged = await store.exchange([], wish())
    whole = [one.job.id for one in exchanged.claimed if not isinstance(one, Broken)]
    assert whole == [before, behind]
    (bad,) = [one for one in exchanged.claimed if isinstance(one, Broken)]
    assert bad.lease.id == broken
    assert bad.why
    failed = Settlement(
        lease=bad.lease, outcome="errored", state="failed", attempt=1, errors=1, crashes=0, error=bad.why
    )
    assert await settle(store, failed) == ["done"]
    assert [one.state for one in await store.count(Filter(states=("failed",)))] == ["failed"]
