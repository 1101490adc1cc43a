"""Edge cases of the Redis store: leases, waking, keys and retention."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

import jobmill
from jobmill.bullmq import Queue
from jobmill.core.changes import Cancel, Requeue
from jobmill.core.job import LIVE, Keep
from jobmill.core.lifecycle import Policy, Succeeded
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import Filter, QueueChange, RateLimit, after
from jobmill.errors import InvalidValue, StoreError
from jobmill.stores.redis import RedisStore
from jobmill.stores.redis import claim as redis_claim
from jobmill.stores.redis.recovery import LeaseScans
from jobmill.stores.redis.url import RedisUrl
from jobmill.testing.contract.support import (
    QUEUE,
    claim,
    claim_ids,
    claim_one,
    end,
    enqueue_one,
    fail,
    new,
    put,
    put_one,
    settle,
    started,
    state_of,
    succeed,
    wish,
)
from jobmill.worker.worker import Worker

pytestmark = pytest.mark.stores("redis")

DAY_MS = 86_400_000
HOURLY = Recurrence(key="k", every_ms=3_600_000)


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(redis_url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def raw(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url.partition("?")[0], decode_responses=True) as client:
        yield client


@pytest.fixture
def base(redis_url: str) -> str:
    """What the keys of the queue begin with."""
    return f"{RedisUrl.read(redis_url).prefix}:{QUEUE}"


async def in_lists(raw: Redis, base: str) -> set[str]:
    lists = [await raw.lrange(f"{base}:{name}", 0, -1) for name in ("wait", "active")]
    return {str(id) for ids in lists for id in ids}


# ---------------------------------------------------------------------------------------------------- leases


async def test_a_clock_that_was_set_steals_no_job(store: RedisStore, redis_url: str) -> None:
    held = await started(store)
    # By its own clock the lease has ended; by the server's, whose keys decide, it has not.
    other = RedisStore(redis_url, clock=lambda: int(time.time() * 1000) + 20_000, linger_ms=0)
    await other.open()
    answer = await other.exchange([], wish())
    assert answer.claimed == []
    # It claims again when the key of the lock ends, not again and again until then.
    assert answer.next_due_ms is not None
    assert 10_000 < answer.next_due_ms - answer.now_ms <= 15_000
    await other.close()
    assert await settle(store, succeed(held)) == ["done"]


def test_two_scans_at_the_same_time_do_not_forget_a_lease() -> None:
    """The key of a lock may outlive the end of its lease by some milliseconds; both scans see that."""
    scans, names = LeaseScans(), frozenset({"work"})
    scans.done(QUEUE, names, 0, 100, left=False)
    assert not scans.is_due(QUEUE, names, 15_000, 99)
    assert scans.is_due(QUEUE, names, 15_000, 100)
    assert scans.is_due(QUEUE, names, 15_000, 101)
    for now_ms in (100, 101):
        scans.done(QUEUE, names, now_ms, now_ms + 1, left=False)
    assert scans.first_end(QUEUE) == 102
    assert scans.is_due(QUEUE, names, 15_000, 110)


@pytest.mark.parametrize("left_ms", [60_000, None])
async def test_the_end_of_a_lock_of_nodes_is_known(
    store: RedisStore, raw: Redis, base: str, left_ms: int | None
) -> None:
    id = await put_one(store)
    await raw.rpoplpush(f"{base}:wait", f"{base}:active")
    await raw.set(f"{base}:{id}:lock", "a token of Node", px=left_ms)
    answer = await store.exchange([], wish())
    assert answer.claimed == []
    if left_ms is None:  # a lock without an end
        assert answer.next_due_ms is None
    else:
        assert answer.next_due_ms is not None
        assert left_ms - 20_000 < answer.next_due_ms - answer.now_ms <= left_ms


async def test_a_job_of_a_worker_of_nodes_without_a_name(store: RedisStore, raw: Redis, base: str) -> None:
    id = await put_one(store)
    await raw.rpoplpush(f"{base}:wait", f"{base}:active")
    claimed = await claim_one(store)
    assert (claimed.job.id, claimed.recovered_from) == (id, "")


async def test_what_a_broken_claim_popped_is_somewhere(store: RedisStore, raw: Redis, base: str) -> None:
    ids = set(await put(store, *[new() for _ in range(5)]))
    await raw.delete(f"{base}:events")
    await raw.set(f"{base}:events", "no stream")
    with pytest.raises(StoreError):
        await claim(store)
    assert await in_lists(raw, base) == ids
    await raw.delete(f"{base}:events")
    assert {one.job.id for one in await claim(store, lease_ms=60_000)} <= ids


async def test_a_counter_that_is_no_number_loses_no_delayed_job(store: RedisStore, raw: Redis, base: str) -> None:
    ids = await put(store, new(priority=3, due=after(1)), new(due=after(1)))
    await raw.set(f"{base}:pc", "x")
    await asyncio.sleep(0.01)
    assert sorted(await claim_ids(store)) == sorted(ids)


async def test_a_cancel_that_stops_at_an_error_leaves_the_job_waiting(store: RedisStore, raw: Redis, base: str) -> None:
    id = await put_one(store, new(key="k"))
    await raw.delete(f"{base}:de:send k")
    await raw.lpush(f"{base}:de:send k", "no text")
    changed = await store.change([id], Cancel())
    assert (changed.ids, list(changed.refused)) == ([], [id])
    await raw.delete(f"{base}:de:send k")
    assert await claim_ids(store) == [id]


# ---------------------------------------------------------------------------------------------------- waking


async def test_a_queue_at_its_rate_limit_keeps_nobody_busy(store: RedisStore, raw: Redis) -> None:
    jobs = jobmill.connect(store=store)

    @jobs.handler(queue=QUEUE)
    async def send() -> None: ...

    await store.configure(QUEUE, QueueChange(rate_limit=RateLimit(1, 60_000)))
    await put(store, new(payload={}), new(payload={}))

    async def scripts_run() -> int:
        return int((await raw.info("commandstats"))["cmdstat_evalsha"]["calls"])

    before = await scripts_run()
    async with Worker(jobs, queues=[QUEUE]):
        await asyncio.sleep(1)
    assert await scripts_run() - before < 40


async def test_room_in_a_full_queue_is_marked(store: RedisStore, raw: Redis, base: str) -> None:
    await store.configure(QUEUE, QueueChange(running_limit=1))
    await put(store, new(), new())
    held = await claim_one(store)
    await raw.delete(f"{base}:marker")
    await settle(store, succeed(held))
    assert await raw.zrange(f"{base}:marker", 0, -1) == ["0"]


async def test_a_fruitless_scan_of_a_queue_is_not_repeated_at_once(
    store: RedisStore, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_claim, "FRUITLESS_MS", 60_000)
    await put(store, *[new(name="full") for _ in range(300)])
    assert await claim_ids(store, 5, names={"full": 1, "other": 5}) != []

    async def looks() -> int:
        return int((await raw.info("commandstats")).get("cmdstat_hmget", {"calls": 0})["calls"])

    before = await looks()
    await claim(store, 5, names=("other",))
    first = await looks() - before
    await claim(store, 5, names=("other",))
    assert (first >= 299, await looks() - before - first <= 40) == (True, True)


async def test_a_queue_closed_for_a_while_stays_closed_when_a_window_of_ours_ends(store: RedisStore) -> None:
    await store.configure(QUEUE, QueueChange(rate_limit=RateLimit(1, 100)))
    await put(store, new(), new())
    await claim_one(store)
    await Queue(store, QUEUE).rate_limit(60_000)
    await asyncio.sleep(0.15)
    assert await claim(store) == []


# ---------------------------------------------------------------------------------------------------- keys


async def test_a_recurring_job_that_was_cancelled_and_requeued_goes_on(store: RedisStore) -> None:
    id = await put_one(store, new(key="k", recurrence=HOURLY))
    await store.change([id], Cancel())
    assert (await store.change([id], Requeue())).ids == [id]
    assert (await enqueue_one(store, new(key="k", recurrence=HOURLY))).status == "updated"
    await end(store, await claim_one(store), Succeeded())
    (live,) = (await store.find(Filter(unique_key="k", states=LIVE))).jobs
    assert (live.state, live.recurrence is not None, live.due_ms > store.now()) == ("waiting", True, True)


async def test_a_requeue_is_refused_while_a_recurring_job_has_the_key(store: RedisStore) -> None:
    plain = await started(store, new(key="k"))
    await settle(store, fail(plain))
    await put_one(store, new(key="k", recurrence=HOURLY))
    assert list((await store.change([plain.job.id], Requeue())).refused) == [plain.job.id]


async def test_two_runs_of_one_scheduler_are_told_apart(store: RedisStore, raw: Redis, base: str) -> None:
    await put_one(store, new(key="k", recurrence=HOURLY))
    # As Node does when it claims one: the next run is there before this one has ended.
    sid = "send k"
    slot = int(await raw.zscore(f"{base}:repeat", sid) or 0)
    next_occurrence = slot + 1
    await raw.copy(f"{base}:repeat:{sid}:{slot}", f"{base}:repeat:{sid}:{next_occurrence}")
    await raw.zadd(f"{base}:repeat", {sid: next_occurrence})
    await raw.lpush(f"{base}:wait", f"repeat:{sid}:{next_occurrence}")
    assert len(set(await claim_ids(store))) == 2


# ---------------------------------------------------------------------------------------------------- retention


async def test_thousands_of_one_instant_do_not_hold_a_purge_up(store: RedisStore, raw: Redis, base: str) -> None:
    ours = [(await started(store)) for _ in range(3)]
    await settle(store, *[succeed(one) for one in ours])
    old = store.now() - 8 * DAY_MS
    await raw.zadd(f"{base}:completed", {f"node-{number}": old - 1 for number in range(600)})
    await raw.zadd(f"{base}:completed", {one.job.id: old for one in ours})
    purges = [await store.purge(200) for _ in range(4)]
    assert (sum(purged.removed for purged in purges), purges[-1].more) == (3, False)
    assert await raw.zcard(f"{base}:completed") == 600


async def test_what_was_noted_at_an_earlier_end_does_not_remove_a_job(store: RedisStore, raw: Redis, base: str) -> None:
    held = await started(store)
    await settle(store, fail(held, rules=Policy(keep_failed=Keep(age_ms=1))))
    # Retried by another program, which knows nothing of our notes.
    await raw.zrem(f"{base}:failed", held.job.id)
    await raw.lpush(f"{base}:wait", held.job.id)
    await settle(store, succeed(await claim_one(store)))
    await asyncio.sleep(0.01)
    assert (await store.purge()).removed == 0
    assert await state_of(store, held.job.id) == "succeeded"


async def test_a_mistyped_name_makes_no_queue(store: RedisStore) -> None:
    await store.change(["typo:1"], Cancel())
    assert await store.settings() == {}


async def test_large_payloads_go_in_several_calls(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobmill.stores.redis.enqueue.MAX_BYTES_PER_CALL", 10_000)
    monkeypatch.setattr("jobmill.stores.redis.exchange.MAX_BYTES_PER_CALL", 10_000)
    ids = await put(store, *[new(payload="x" * 4_000) for _ in range(7)])
    claimed = await claim(store)
    assert [one.job.id for one in claimed] == ids
    assert (await store.exchange([succeed(one, "y" * 4_000) for one in claimed], wish())).settled == ["done"] * 7


async def test_a_scheduler_is_written_as_node_reads_it(store: RedisStore) -> None:
    queue = Queue(store, QUEUE)
    await queue.upsert_scheduler("a", pattern="TZ=Asia/Tokyo 0 9 * * 0,7", name="send")
    await queue.upsert_scheduler("b", pattern="@every 1h", name="send")
    with pytest.raises(InvalidValue, match="pattern: expected an expression that Node can read, got '0 9 LW"):
        await queue.upsert_scheduler("c", pattern="0 9 LW * *", name="send")
    rules = {job.unique_key: job.recurrence for job in (await store.find(Filter(queue=QUEUE))).jobs}
    assert rules["a"] == Recurrence(key="a", cron="0 9 * * 0", timezone="Asia/Tokyo")
    assert rules["b"] == Recurrence(key="b", every_ms=3_600_000)
