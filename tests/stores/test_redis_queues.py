"""Which queues there are on Redis, how deep they are, and who works them."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis

import jobmill
from jobmill.core.announcing import CARD_KEPT_MS
from jobmill.core.audit import AUDIT_KEPT_MS, AuditEntry, AuditFilter
from jobmill.core.changes import Hold
from jobmill.core.tallies import MINUTE_MS, TALLIES_KEPT_MS
from jobmill.core.values import EVERYTHING, Depth, Filter, QueueChange, after
from jobmill.stores.redis import RedisStore
from jobmill.stores.redis.queues import SCAN_MS
from jobmill.stores.redis.url import RedisUrl
from jobmill.testing import ManualClock
from jobmill.testing.contract.announce import card, group, tally
from jobmill.testing.contract.support import QUEUE, claim, find_all, in_state, new, put, put_one
from tests.helpers import until
from tests.kit.redis import RedisServer, Rooms
from tests.kit.redis_groups import RedisCluster

pytestmark = pytest.mark.stores("redis")


@pytest.fixture
async def raw(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url.partition("?")[0], decode_responses=True) as client:
        yield client


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(redis_url: str, clock: ManualClock) -> AsyncIterator[RedisStore]:
    store = RedisStore(redis_url, clock=clock)
    await store.open()
    yield store
    await store.close()


async def node_queue(raw: Redis, url: str, queue: str, **sets: str) -> None:
    """A queue as Node makes it, with a job in each of these lists."""
    base = f"{RedisUrl.read(url).prefix}:{queue}"
    await raw.hset(f"{base}:meta", "opts.maxLenEvents", "10000")
    for name, id in sets.items():
        about: dict[Any, Any] = {
            "name": "work",
            "data": "{}",
            "opts": '{"delay":500}',
            "timestamp": "1000",
            "delay": "0",
        }
        await raw.hset(f"{base}:{id}", mapping=about)
        await raw.lpush(f"{base}:{name}", id)


async def scans(raw: Redis) -> int:
    """How often the server was asked for keys."""
    return int((await raw.info("commandstats")).get("cmdstat_scan", {}).get("calls", 0))


# ---------------------------------------------------------------------------------------------------- which queues


async def test_a_queue_of_node_is_found_at_the_first_call(store: RedisStore, raw: Redis, redis_url: str) -> None:
    await put_one(store, new(queue="ours"))
    await node_queue(raw, redis_url, "theirs", wait="1")
    assert [one.queue for one in await store.depths()] == ["ours", "theirs"]
    assert await find_all(store, EVERYTHING) == [(await store.find(Filter(queue="ours"))).jobs[0].id, "theirs:1"]


async def test_a_queue_of_node_is_found_a_minute_later_by_a_scan_in_the_background(
    clock: ManualClock, own_redis: RedisServer
) -> None:
    url = own_redis.url()
    store = RedisStore(url, clock=clock)
    async with Redis.from_url(url, decode_responses=True) as raw:
        await put_one(store, new(queue="ours"))
        assert [one.queue for one in await store.depths()] == ["ours"]
        before = await scans(raw)
        await node_queue(raw, url, "theirs", wait="1")
        clock.advance(SCAN_MS / 1000 - 1)
        await store.depths()
        await store.find(EVERYTHING)
        await store.get(["unknown"])
        await store.settings()
        assert await scans(raw) == before, "no call scans while the last scan is young"
        clock.advance(1)
        assert [one.queue for one in await store.depths()] == ["ours"], "the call does not wait for the scan"
        await until(lambda: _is_found(store, "theirs"))
        found = await scans(raw)
        other = RedisStore(url, clock=clock)
        assert len(await other.depths()) == 2
        assert await scans(raw) == found, "another process uses the same result"
        await other.close()
        await store.close()


async def _is_found(store: RedisStore, queue: str) -> bool:
    return queue in [one.queue for one in await store.depths()]


async def test_queues_of_other_processes_are_known_at_once(store: RedisStore, redis_url: str) -> None:
    assert await store.depths() == []
    other = RedisStore(redis_url)
    await put_one(other, new(queue="jobs"))
    await other.configure("settings", QueueChange(paused=True))
    await other.bullmq("bull").schedule("s", 0, {"every": 60_000}, data={}, opts={}, name="n", every=60_000)
    await other.close()
    assert [one.queue for one in await store.depths()] == ["bull", "jobs", "settings"]


async def test_a_queue_that_node_obliterated_is_gone(store: RedisStore, raw: Redis, redis_url: str) -> None:
    await put(store, new(queue="stays"), new(queue="goes"))
    prefix = RedisUrl.read(redis_url).prefix
    async for key in raw.scan_iter(f"{prefix}:goes:*"):
        await raw.delete(key)
    jobs = jobmill.connect(store=store)
    assert await jobs.queues() == ["stays"]
    assert [one.queue for one in await store.depths()] == ["stays"]
    assert list(await store.settings()) == ["stays"]


@pytest.mark.slow
async def test_twenty_thousand_queues(own_redis: RedisServer) -> None:
    """No call scans all keys, which took 6 s, and none sends commands to each queue by itself."""
    count = 20_000
    async with Redis.from_url(own_redis.url(), decode_responses=True) as raw:
        pipeline = raw.pipeline(transaction=False)
        for number in range(count):
            base = f"bull:q{number}"
            about: dict[Any, Any] = {
                "name": "work",
                "data": "{}",
                "opts": "{}",
                "timestamp": "1700000000000",
                "jm": str(number),
            }
            if number == 12_345:
                about["deid"] = "work the-key"
            pipeline.hset(f"{base}:job-{number}", mapping=about)
            pipeline.hset(f"{base}:meta", "opts.maxLenEvents", "10000")
            pipeline.lpush(f"{base}:wait", f"job-{number}")
            pipeline.sadd("jobmill:bull:queues", f"q{number}")
        await pipeline.execute()
    async with jobmill.connect(own_redis.url()) as jobs:
        assert len(await jobs.queues()) == count  # the first call scans, and others use its result

        used, queues = await commands(own_redis, jobs.queues)
        assert len(queues) == count
        assert used.pop("exists") == count
        assert used.pop("evalsha") < 20
        assert used.total() < 20, used

        used, page = await commands(own_redis, lambda: jobs.find(limit=50))
        assert len(page.jobs) == 50
        assert used.pop("hgetall") == 51
        assert used.total() < 2_000, "only the first queues are asked"

        assert (await jobs.cancel(unique_key="the-key")).ids == ["job-12345"]
        used, _ = await commands(own_redis, lambda: jobs.cancel(unique_key="the-key"))
        assert used.pop("evalsha") == 50, "no queue is read again after its lengths"
        assert "scan" not in used
        assert used["hgetall"] == 0
        assert used.total() < 4 * count + 100, used


async def commands(server: RedisServer, call: Callable[[], Awaitable[Any]]) -> tuple[Counter[str], Any]:
    """How often each command is executed for a call, within scripts too; and the answer."""
    server.ask("CONFIG", "RESETSTAT")
    answer = await call()
    used = server.ask("INFO", "commandstats")
    without = ("config|resetstat", "info", "client|setinfo", "hello", "select")
    counts = {name.removeprefix("cmdstat_"): one["calls"] for name, one in used.items()}
    return Counter({name: calls for name, calls in counts.items() if name not in without}), answer


# ---------------------------------------------------------------------------------------------------- depths


async def test_the_depth_of_a_queue_of_node(store: RedisStore, raw: Redis, redis_url: str) -> None:
    await node_queue(raw, redis_url, QUEUE, wait="1", paused="2", active="3")
    base = f"{RedisUrl.read(redis_url).prefix}:{QUEUE}"
    await raw.zadd(f"{base}:waiting-children", {"4": 1})
    await raw.lpush(f"{base}:wait", "0:0")  # a marker of old versions, which has no hash
    found = Depth(queue=QUEUE, due=3, held=1, running=1, oldest_due_ms=1_500)
    assert await store.depths() == [found]


async def test_the_oldest_job_may_be_delayed_and_not_moved_yet(store: RedisStore, clock: ManualClock) -> None:
    await put(store, new(due=after(1_000)), new(due=after(500_000)))
    due_ms = store.now() + 1_000
    clock.advance(10)
    await put_one(store)
    assert await store.depths() == [Depth(queue=QUEUE, due=2, later=1, oldest_due_ms=due_ms)]
    assert len(await claim(store, 1)) == 1  # this moves the delayed job


async def test_the_oldest_job_of_many_priorities(store: RedisStore, clock: ManualClock) -> None:
    for priority in range(50, 0, -1):
        await put_one(store, new(priority=priority))
        clock.advance(1)
    (depth,) = await store.depths()
    assert (depth.due, depth.oldest_due_ms) == (50, store.now() - 50_000)


async def test_the_state_of_a_cancelled_job_that_node_retried(store: RedisStore, raw: Redis, redis_url: str) -> None:
    base = f"{RedisUrl.read(redis_url).prefix}:{QUEUE}"
    ids = [await in_state(store, "cancelled"), await in_state(store, "cancelled")]
    await raw.zrem(f"{base}:failed", ids[0])
    await raw.lpush(f"{base}:wait", ids[0])
    assert await find_all(store, Filter(queue=QUEUE, states=("cancelled",))) == [ids[1]]
    assert (await store.count_up_to(Filter(queue=QUEUE, states=("cancelled",)), 10)).count == 1


async def test_a_page_reads_no_more_jobs_than_it_returns(own_redis: RedisServer) -> None:
    store = RedisStore(own_redis.url())
    await put(store, *[new() for _ in range(500)])
    own_redis.ask("CONFIG", "RESETSTAT")
    page = await store.find(Filter(queue=QUEUE, states=("waiting",)), None, 20)
    assert len(page.jobs) == 20
    stats = own_redis.ask("INFO", "commandstats")
    assert stats["cmdstat_hgetall"]["calls"] == 21
    await store.close()


# ---------------------------------------------------------------------------------------------------- workers


async def test_a_worker_of_ours_is_shown_once(store: RedisStore) -> None:
    await put_one(store)
    await claim(store, worker="mailer 1")
    await store.announce(card("id", name="mailer 1", queues=(QUEUE,)), [])
    own = f":w:{'mailer_1'}"
    await until(lambda: _has_client(store, own))
    assert [one.id for one in await store.workers()] == ["id"]


async def _has_client(store: RedisStore, ending: str) -> bool:
    listed: bytes = await store.context.client.call("x", "CLIENT", "LIST")
    return f"{store.context.url.prefix}:".encode() in listed and ending.encode() in listed


async def test_without_the_right_to_list_connections_our_workers_are_shown(redis_server: Rooms) -> None:
    user, prefix = f"u{uuid.uuid4().hex[:12]}", f"t{uuid.uuid4().hex[:12]}"
    redis_server.ask("ACL", "SETUSER", user, "on", ">secret", "~*", "+@all", "-client|list")
    with redis_server.database() as database:
        parts = urlsplit(database)
        url = parts._replace(netloc=f"{user}:secret@{parts.hostname}:{parts.port}", query=f"prefix={prefix}").geturl()
        store = RedisStore(url)
        try:
            await store.announce(card(), [])
            assert [one.id for one in await store.workers()] == ["w1"]
        finally:
            await store.close()
            redis_server.ask("ACL", "DELUSER", user)


async def test_everything_of_workers_ends_by_itself(store: RedisStore, raw: Redis, clock: ManualClock) -> None:
    base = store.context.operations
    now_ms = store.now()
    await store.announce(card(), [tally(now_ms, claimed=1, error_groups=(group("x", 1, now_ms),))])
    await store.order_stop(["w1"])
    await store.audit([AuditEntry(id="a", who="ada", what="mark")])
    lifetimes = [await raw.pttl(key) async for key in raw.scan_iter(f"{base}:tally:*")]
    assert len(lifetimes) == len(TALLIES_KEPT_MS)
    assert min(lifetimes) > min(TALLIES_KEPT_MS.values()) - MINUTE_MS
    clock.advance(max(CARD_KEPT_MS, AUDIT_KEPT_MS, *TALLIES_KEPT_MS.values()) / 1000)
    await store.purge()
    left = {key async for key in raw.scan_iter(f"{base}:*")}
    assert {key for key in left if ":tally:" not in key} <= {f"{base}:audit"}
    assert await raw.xlen(f"{base}:audit") == 0


async def test_an_older_text_of_an_error_does_not_replace_a_newer_one(store: RedisStore) -> None:
    now_ms = store.now()
    for worker, at_ms in (("a", now_ms + 5), ("b", now_ms)):
        await store.announce(card(worker), [tally(now_ms, error_groups=(group("x", 1, at_ms, f"job of {worker}"),))])
    (found,) = await store.tallies(0, now_ms + MINUTE_MS, MINUTE_MS)
    assert [(one.count, one.last_job_id) for one in found.error_groups] == [(2, "job of a")]


async def test_the_groups_of_errors_of_an_hour_are_bounded(store: RedisStore, raw: Redis) -> None:
    now_ms = store.now()
    often = group("often", 1, now_ms)
    for number in range(60):
        groups = tuple(group(f"{number}-{n}", 1, now_ms) for n in range(19))
        given = tally(now_ms, errored=20, error_groups=(often, *groups))
        await store.announce(card(announcement=number), [given])
    (key,) = [key async for key in raw.scan_iter(f"{store.context.operations}:tally:3600000:*")]
    assert await raw.hlen(key) < 600
    (found,) = await store.tallies(0, now_ms + MINUTE_MS, MINUTE_MS)
    assert (found.errored, found.error_groups[0].fingerprint, found.error_groups[0].count) == (1_200, "often", 60)


async def test_entries_are_in_order_after_the_clock_was_set_back(store: RedisStore, clock: ManualClock) -> None:
    await store.audit([AuditEntry(id="a", who="ada", what="mark"), AuditEntry(id="b", who="ada", what="mark")])
    clock.advance(-60)
    await asyncio.gather(*(store.audit([AuditEntry(id=id, who="ada", what="mark")]) for id in "cd"))
    entries = (await store.audit_log(AuditFilter())).entries
    assert {one.id for one in entries[:2]} == {"c", "d"}
    assert [one.id for one in entries[2:]] == ["b", "a"]


# ---------------------------------------------------------------------------------------------------- cluster


async def test_queues_in_several_slots_of_a_cluster(redis_cluster: RedisCluster) -> None:
    url = f"redis+cluster://127.0.0.1:{redis_cluster.nodes[0].port}?prefix={uuid.uuid4().hex[:12]}"
    store, other = RedisStore(url), RedisStore(url)
    names = [f"{{{letter}}}" for letter in "abcdef"]
    try:
        jobs = [new(f"job-{name}", queue=name, key="k" if name == "{d}" else None) for name in names]
        await put(store, *jobs)
        # A queue of Node's, and one that nobody can use here.
        base = f"{store.context.url.prefix}:"
        for name in ("{node}", "untagged"):
            key = f"{base}{name}:meta"
            await store.context.client.call(key, "HSET", key, "opts.maxLenEvents", 100)
        assert [(one.queue, one.due) for one in await other.depths()] == [*((name, 1) for name in names), ("{node}", 0)]
        assert list(await other.settings()) == [*names, "{node}"]
        found = await find_all(other, EVERYTHING, 2)
        assert sorted(found) == sorted(job.id for job in jobs)
        changed = await other.change(Filter(unique_key="k"), Hold())
        assert changed.ids == ["job-{d}"]
        assert [one is not None for one in await other.get(["job-{a}", "job-{f}", "unknown"])] == [True, True, False]
        now_ms = store.now()
        await store.announce(card(), [tally(now_ms, queue="{a}", claimed=1), tally(now_ms, queue="{b}", claimed=2)])
        assert [one.id for one in await other.workers()] == ["w1"]
        assert [one.claimed for one in await other.tallies(0, now_ms + MINUTE_MS, MINUTE_MS)] == [1, 2]
        await store.audit([AuditEntry(id="a", who="ada", what="mark")])
        assert len((await other.audit_log(AuditFilter())).entries) == 1
        await store.purge()
    finally:
        client = store.context.client
        for kind in ("string", "list", "zset", "hash", "set", "stream"):
            for left in await client.scan(f"*{store.context.url.prefix}:*", kind):
                await client.call(left.decode(), "DEL", left)
        await store.close()
        await other.close()
