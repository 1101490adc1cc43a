"""Jobs of names that nobody here knows stay untouched where they are, and hide nobody; and whose clock it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import jobmill
from jobmill.core.values import NOW, after
from jobmill.stores.common import server_clock
from jobmill.stores.redis import RedisStore
from jobmill.stores.redis.url import RedisUrl
from jobmill.testing.contract.support import claim_ids, claim_one, new, put, put_one, settle, succeed, wish
from jobmill.worker.worker import Worker
from tests.helpers import until
from tests.kit.redis import RedisServer
from tests.stores.redis_planting import Field

pytestmark = pytest.mark.stores("redis")

MANY = 2_000
QUEUE = "default"


@pytest.fixture
async def store(own_redis: RedisServer) -> AsyncIterator[RedisStore]:
    """At a server where nobody else counts."""
    store = RedisStore(own_redis.url())
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def field(own_redis: RedisServer, store: RedisStore) -> Iterator[Field]:
    with own_redis.client() as raw:
        yield Field(raw, RedisUrl.read(own_redis.url()).prefix)


async def foreign(store: RedisStore, many: int = MANY, priority: int = 0) -> list[str]:
    """This many jobs with a name that nobody here knows."""
    return await put(store, *(new(name="unknown", queue=QUEUE, priority=priority) for _ in range(many)))


def hashes(field: Field, ids: list[str]) -> list[Any]:
    with field.raw.pipeline(transaction=False) as pipeline:
        for id in ids:
            pipeline.hgetall(field.key(id))
        found: list[Any] = pipeline.execute()
    return found


def calls(field: Field) -> int:
    """How many commands clients have sent: scripts are one each, whatever they do."""
    info = field.raw.info("commandstats")
    return int(sum(info.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval", "bzpopmin", "time")))


@pytest.mark.slow
@pytest.mark.parametrize("priority", [0, 5])
async def test_jobs_of_unknown_names_hide_nobody_and_stay_as_they_are(
    store: RedisStore, field: Field, priority: int
) -> None:
    ids = await foreign(store, priority=priority)
    before = hashes(field, ids)
    jobs = jobmill.connect(store=store)

    @jobs.handler()
    async def ours(n: int) -> int:
        return n

    async with Worker(jobs, concurrency=10):
        behind = [await jobs.enqueue("ours", {"n": n}, priority=priority) for n in range(20)]
        assert [await one.result(timeout=20) for one in behind] == list(range(20))
        # It looks now and then; a loop without a pause would ask thousands of times.
        began = calls(field)
        await asyncio.sleep(3)
        assert calls(field) - began < 200
        late = await jobs.enqueue("ours", {"n": 7}, priority=priority)
        assert await late.result(timeout=20) == 7
    assert hashes(field, ids) == before
    wait, prioritized = field.raw.lrange(f"{field.Q}:wait", 0, -1), field.raw.zrange(f"{field.Q}:prioritized", 0, -1)
    assert [id.decode() for id in [*wait[::-1], *prioritized]] == ids


@pytest.mark.slow
async def test_two_workers_do_not_wake_each_other_for_jobs_of_others(
    own_redis: RedisServer, store: RedisStore, field: Field
) -> None:
    """Each leaves the marker that it finds: for somebody who knows the names, not for the other."""
    await foreign(store, 10)
    both = [jobmill.connect(own_redis.url()) for _ in range(2)]
    for jobs in both:

        @jobs.handler()
        async def ours(n: int) -> int:
            return n

    async with both[0], both[1], Worker(both[0], concurrency=10), Worker(both[1], concurrency=10):
        assert await (await both[0].enqueue("ours", {"n": 1})).result(timeout=10) == 1
        began = calls(field)
        await asyncio.sleep(3)
        assert calls(field) - began < 200
        assert field.raw.zrange(f"{field.Q}:marker", 0, -1) == [b"0"]


@pytest.mark.slow
async def test_an_idle_worker_asks_for_little(store: RedisStore, field: Field) -> None:
    jobs = jobmill.connect(store=store)

    @jobs.handler()
    async def ours(n: int) -> int:
        return n

    async with Worker(jobs, concurrency=10):
        assert await (await ours.enqueue(n=1)).result(timeout=10) == 1
        await until(lambda: field.raw.exists(f"{field.Q}:marker") == 0)
        began = calls(field)
        await asyncio.sleep(3)
        assert calls(field) - began < 10


async def test_who_knows_the_names_gets_them_in_order(store: RedisStore, field: Field) -> None:
    ids = await foreign(store, 1_100)
    mine = await put_one(store, new(queue=QUEUE))
    assert await claim_ids(store, 5, queues=(QUEUE,)) == [mine]
    assert await claim_ids(store, 3, queues=(QUEUE,), names=("unknown",)) == ids[:3]


# ---------------------------------------------------------------------------------------------------- clocks


@pytest.mark.slow
@pytest.mark.parametrize("ahead_s", [-3_600, 3_600])
async def test_a_client_whose_clock_is_wrong(
    own_redis: RedisServer, store: RedisStore, ahead_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's clock is the store's: both see leases end and jobs come due at the same moment."""
    with monkeypatch.context() as patched:
        patched.setattr(
            server_clock, "time", SimpleNamespace(time=lambda: time.time() + ahead_s, monotonic=time.monotonic)
        )
        wrong = RedisStore(own_redis.url())
        await wrong.open()
        assert abs(wrong.now() - time.time() * 1000) < 2_000
        began = time.monotonic()
        later = await put_one(wrong, new(queue=QUEUE, due=after(1_000)))
        soon = await put_one(wrong, new(queue=QUEUE, due=NOW))
        claimed = await claim_one(wrong, queues=(QUEUE,), lease_ms=30_000)
        assert claimed.job.id == soon
        due: list[str] = []

        async def comes() -> bool:
            due.extend(await claim_ids(wrong, queues=(QUEUE,)))
            return due == [later]

        await until(comes, 10)
        assert time.monotonic() - began >= 0.99  # its clock has milliseconds
        assert await settle(wrong, succeed(claimed)) == ["done"]
        ended = await put_one(wrong, new(queue=QUEUE))
        began = time.monotonic()
        held = await claim_one(wrong, queues=(QUEUE,), lease_ms=1_000)
        assert held.job.id == ended

    # Another, whose clock is right, finds it when its time is over and not before, nor an hour later.
    async def is_taken_over() -> bool:
        return await claim_ids(store, queues=(QUEUE,)) == [ended]

    await until(is_taken_over, 20)
    assert time.monotonic() - began >= 0.95
    await wrong.close()


async def test_a_clock_that_is_set_while_the_worker_works(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await put_one(store, new(queue=QUEUE))
    held = await claim_one(store, queues=(QUEUE,))
    wrong = SimpleNamespace(time=lambda: time.time() + 600, monotonic=time.monotonic)
    monkeypatch.setattr(server_clock, "time", wrong)
    # The store's clock is monotonic, and measured again with each extension.
    assert abs(store.now() - time.time() * 1000) < 2_000
    assert await store.extend([held.lease], 15_000) == []
    assert abs(store.now() - time.time() * 1000) < 2_000


async def test_one_claim_reads_a_limited_number_of_jobs(store: RedisStore, field: Field) -> None:
    """A call that read a whole long queue would keep everybody else waiting."""
    await foreign(store, 5_000)
    field.raw.config_resetstat()
    assert (await store.exchange([], wish(queues=(QUEUE,)))).claimed == []
    stats = field.raw.info("commandstats")
    # Whole hashes, with their payloads, are read only in the beginning.
    assert stats["cmdstat_hgetall"]["calls"] <= 1_100
    assert stats["cmdstat_evalsha"]["calls"] <= 8
    # A script that the server does not know yet is sent whole.
    scripts = stats["cmdstat_evalsha"]["calls"] + stats.get("cmdstat_eval", {"calls": 0})["calls"]
    assert 4_000 < stats["cmdstat_hmget"]["calls"] <= 1_100 * scripts
