"""Hints on Redis: from streams of any length, on clusters, and for users who may not read streams."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest

import jobmill
from jobmill.core.changes import Cancel
from jobmill.stores.redis import RedisStore, hints
from jobmill.stores.redis.hints import MAX_ENTRIES, watch_of
from jobmill.testing.contract.support import QUEUE, put_one, settle, started, succeed
from jobmill.worker.worker import Worker
from tests.helpers import until
from tests.kit.redis import Rooms

pytestmark = pytest.mark.stores("redis")

FAR_MS = 600_000
#: On a busy machine; a wait without a hint takes ten minutes.
SOON_S = 10.0


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(redis_url)
    await store.open()
    yield store
    await store.close()


def stream_of_ends(store: RedisStore) -> str:
    return f"{store.context.key(QUEUE)}:events"


async def waits_for_end(store: RedisStore, id: str) -> asyncio.Task[None]:
    """A task that waits, when its connection reads the stream."""
    watch = watch_of(store.context, stream_of_ends(store))
    while True:
        waiting = asyncio.create_task(store.wait_for_end(id, QUEUE, store.now() + FAR_MS))
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        # The first wait ends when the connection is made.
        if not done and watch._connection is not None:
            return waiting
        waiting.cancel()


async def test_only_the_job_itself_is_hinted_at(store: RedisStore) -> None:
    claimed, other = await started(store), await started(store)
    waiting = await waits_for_end(store, claimed.job.id)
    await settle(store, succeed(other))
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done
    await settle(store, succeed(claimed))
    async with asyncio.timeout(SOON_S):
        await waiting


async def test_a_stream_with_many_new_entries_is_skipped_with_a_hint(store: RedisStore) -> None:
    claimed = await started(store)
    waiting = await waits_for_end(store, claimed.job.id)
    stream = stream_of_ends(store)
    # In one step, so that the reader cannot read them one by one; the end of the job is not among them.
    many = f"for i = 1, {3 * MAX_ENTRIES} do redis.call('XADD', KEYS[1], '*', 'event', 'active', 'jobId', i) end"
    await store.context.client.call(stream, "EVAL", many, 1, stream)
    async with asyncio.timeout(SOON_S):
        await waiting
    waiting = await waits_for_end(store, claimed.job.id)
    await settle(store, succeed(claimed))
    async with asyncio.timeout(SOON_S):
        await waiting


async def test_nothing_is_connected_where_nobody_waits(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "BLOCK_MS", 50)
    claimed = await started(store)
    waiting = await waits_for_end(store, claimed.job.id)
    watch = watch_of(store.context, stream_of_ends(store))
    waiting.cancel()
    await until(lambda: watch._connection is None and watch._task is None)
    # And it begins again.
    waiting = await waits_for_end(store, claimed.job.id)
    await settle(store, succeed(claimed))
    async with asyncio.timeout(SOON_S):
        await waiting


async def test_the_stream_of_cancels_stays_short(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "MAX_CANCELS", 10)
    # Trimming is approximate: whole nodes of 100 entries go.
    for _ in range(250):
        await store.change([await put_one(store)], Cancel())
    key = f"{store.context.operations}:cancels"
    assert await store.context.client.call(key, "XLEN", key) <= 110


async def test_a_user_without_streams_gets_results_and_cancels_all_the_same(
    redis_server: Rooms, redis_url: str
) -> None:
    user = f"hints-{secrets.token_hex(4)}"
    redis_server.ask("ACL", "SETUSER", user, "on", ">secret", "~*", "+@all", "-xread")
    try:
        jobs = jobmill.connect(redis_url.replace("redis://", f"redis://{user}:secret@", 1))
        stopped = asyncio.Event()

        @jobs.handler
        async def hold() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        @jobs.handler
        async def work() -> int:
            await asyncio.sleep(0.05)
            return 42

        async with jobs, Worker(jobs, lease="600ms"), asyncio.timeout(20):
            assert await (await work.enqueue()).result() == 42
            enqueued = await hold.enqueue()
            await until(lambda: _is_running(enqueued))
            await jobs.cancel(enqueued.id)
            await stopped.wait()
    finally:
        redis_server.ask("ACL", "DELUSER", user)


@pytest.mark.slow
async def test_hints_on_a_cluster(redis_cluster_url: str) -> None:
    url = redis_cluster_url
    store, other = RedisStore(url), RedisStore(url)
    await store.open()
    await other.open()
    async with asyncio.timeout(30):
        for _ in range(2):  # the first waits may end because their connections are made
            claimed = await started(store)
            cancel = asyncio.create_task(store.wait_for_cancel({claimed.job.id}, store.now() + FAR_MS))
            end = asyncio.create_task(store.wait_for_end(claimed.job.id, QUEUE, store.now() + FAR_MS))
            await asyncio.sleep(0.2)
            await other.change([claimed.job.id], Cancel())
            await asyncio.gather(cancel, end)
    await store.close()
    await other.close()


async def _is_running(enqueued: jobmill.Enqueued[None]) -> bool:
    return (await enqueued.job()).state == "running"
