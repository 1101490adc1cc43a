"""maxmemory is reached and nothing may be evicted: enqueueing says so, and workers go on with what there is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

import jobmill
from jobmill import Client, Context
from jobmill.core.job import Progress
from jobmill.core.values import EVERYTHING, QueueChange, RateLimit, Report
from jobmill.errors import StoreUnavailable
from jobmill.stores.redis import RedisStore
from jobmill.testing.contract.lanes import laned, rule
from jobmill.testing.contract.support import QUEUE, claim, claim_ids, new, put, put_one, started, succeed, wish
from jobmill.worker.worker import Worker
from tests.helpers import until
from tests.kit.redis import RedisServer, installations

pytestmark = pytest.mark.stores("redis")

LARGE = "x" * 10_000
SAID = (
    r"cannot be used now: maxmemory is reached; raise maxmemory, or let retention remove jobs "
    r"\(keep_succeeded, keep_failed\); it replied: .*OOM command not allowed"
)


@pytest.fixture
def server(redis_name: str) -> Iterator[RedisServer]:
    installation = next((one for one in installations() if one.name == redis_name), None)
    with RedisServer(installation, maxmemory="1gb") as server:
        yield server


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisStore]:
    store = RedisStore(server.url())
    await store.open()
    yield store
    await store.close()


def use_up(server: RedisServer) -> None:
    """From now on the server has more than it may."""
    server.ask("CONFIG", "SET", "maxmemory", "1")
    assert server.ask("CONFIG", "GET", "maxmemory-policy") in (
        {b"maxmemory-policy": b"noeviction"},
        [b"maxmemory-policy", b"noeviction"],
    )


def free(server: RedisServer) -> None:
    server.ask("CONFIG", "SET", "maxmemory", "1gb")


async def test_enqueueing_is_refused_as_a_whole(server: RedisServer, store: RedisStore) -> None:
    await put(store, *(new(payload=LARGE) for _ in range(100)))
    use_up(server)
    for many in (1, 150):
        with pytest.raises(StoreUnavailable, match=SAID):
            await store.enqueue([new(payload=LARGE, key=f"{many}") for _ in range(many)])
    with pytest.raises(StoreUnavailable, match=SAID):
        await store.enqueue([new(queue="fresh")])
    free(server)
    assert len((await store.find(EVERYTHING, limit=1_000)).jobs) == 100
    assert (await store.enqueue([new(payload=LARGE, key="150")]))[0].created


async def test_a_long_stream_of_events_lets_no_job_in(server: RedisServer, store: RedisStore) -> None:
    """It is cut by who writes, and a script that has written something is not stopped any more."""
    await store.configure(QUEUE, QueueChange(events_max_len=10))
    await put(store, *(new() for _ in range(200)))
    use_up(server)
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match=SAID):
            await store.enqueue([new() for _ in range(200)])


async def test_what_runs_is_held_told_and_settled(server: RedisServer, store: RedisStore) -> None:
    running = await started(store, lease_ms=60_000)
    ended = await started(store, lease_ms=100)
    waiting, late = await put(store, new(), new(priority=3))
    use_up(server)
    assert await store.extend([running.lease], 60_000) == []
    assert await store.report([Report(lease=running.lease, progress=Progress(5), lines=("a", "b"))]) == []
    # Another's lease has ended: its job is taken over, and what waits is claimed.
    await asyncio.sleep(0.12)
    found: list[str] = []

    async def all_claimed() -> bool:
        found.extend(await claim_ids(store))
        return set(found) == {ended.job.id, waiting, late}

    await until(all_claimed, 10)
    assert (await store.exchange([succeed(running, "done")], None)).settled == ["done"]
    (job,) = await store.get([running.job.id])
    assert job is not None
    assert (job.state, job.result, job.progress) == ("succeeded", "done", Progress(5))
    assert [line.text for line in await store.logs(job.id)] == ["a", "b"]


async def test_lanes_are_worked_and_healed(server: RedisServer, store: RedisStore) -> None:
    await rule(store, 1)
    await put(store, *(laned() for _ in range(3)), laned(lane="b"))
    use_up(server)
    for turn in range(3):
        await asyncio.sleep(0.12)  # lanes are looked at again
        assert await store.flush_outbox() == 0
        assert len(running := await claim(store)) == 2 - (turn > 0)
        assert (await store.exchange([succeed(one) for one in running], None)).settled == ["done"] * len(running)
    assert await store.lanes(QUEUE) == []


async def test_a_rate_limit_is_kept(server: RedisServer, store: RedisStore) -> None:
    await store.configure(QUEUE, QueueChange(rate_limit=RateLimit(2, 60_000)))
    await put(store, *(new() for _ in range(5)))
    use_up(server)
    assert len(await claim(store)) == 2
    answer = await store.exchange([], wish())
    assert answer.claimed == []
    assert answer.next_due_ms is not None
    assert answer.next_due_ms > answer.now_ms + 50_000


@pytest.mark.slow
async def test_workers_go_on_and_make_room_by_themselves(server: RedisServer) -> None:
    async with jobmill.connect(server.url()) as jobs:
        crashes: list[int] = []

        @jobs.handler(keep_succeeded=0)
        async def work(context: Context, text: str, ms: int = 0) -> int:
            context.log("begins")
            await asyncio.sleep(ms / 1000)
            crashes.append(context.job.crashes)
            return len(text)

        await work.enqueue(text="", ms=6_500)  # needs its lease extended, twice
        for _ in range(200):
            await work.enqueue(text=LARGE)
        used = server.ask("INFO", "memory")["used_memory"]
        server.ask("CONFIG", "SET", "maxmemory", str(used - 100_000))
        with pytest.raises(StoreUnavailable, match=SAID):
            await work.enqueue(text=LARGE)
        async with Worker(jobs, concurrency=10, lease="3s"):
            await refilled(jobs)
            await until(lambda: len(crashes) >= 202, 30)
        assert set(crashes) == {0}


async def refilled(jobs: Client) -> None:
    """Until there is room again."""

    async def fits() -> bool:
        try:
            await jobs.enqueue("work", {"text": LARGE})
        except StoreUnavailable:
            return False
        return True

    await until(fits, 20)


@pytest.mark.slow
async def test_workers_survive_until_there_is_room(server: RedisServer) -> None:
    async with jobmill.connect(server.url()) as jobs:

        @jobs.handler()
        async def work(n: int) -> int:
            return n

        async with Worker(jobs, concurrency=10, lease="1s"):
            assert await (await work.enqueue(n=1)).result(timeout=10) == 1
            use_up(server)
            with pytest.raises(StoreUnavailable, match=SAID):
                await work.enqueue(n=2)
            # For longer than the lease, and than an idle worker sleeps.
            await asyncio.sleep(6)
            free(server)
            assert await (await work.enqueue(n=2)).result(timeout=10) == 2


async def test_a_job_whose_own_id_is_taken_is_known_all_the_same(server: RedisServer, store: RedisStore) -> None:
    id = await put_one(store)
    use_up(server)
    # Nothing would be written but the counter: refused like all others, and asking again is harmless.
    with pytest.raises(StoreUnavailable, match=SAID):
        await store.enqueue([new(id)])
    free(server)
    assert (await store.enqueue([new(id)]))[0].status == "exists"
