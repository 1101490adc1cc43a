"""Redis as a crontab's store, where it differs from others: keys, documents written by hand, clients, a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from redis.asyncio import Redis, RedisCluster
from redis.crc import key_slot

from jobmill.core.durations import EPOCH, to_datetime
from jobmill.crontab import Changes, CrontabJob, Ending, RedisCrontab
from jobmill.errors import InvalidValue, StoreError, StoreUnavailable
from tests.crontab.harness import Kept
from tests.crontab.harness_redis import RedisHarness
from tests.kit.places import port_of
from tests.kit.proxy import Proxy
from tests.kit.redis import RedisServer

pytestmark = pytest.mark.stores("redis")


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[RedisHarness]:
    made = RedisHarness(redis_url, Redis.from_url(redis_url.partition("?")[0], decode_responses=True))
    yield made
    await made.close()


def at(redis: RedisHarness, seconds: float = 0) -> datetime:
    return to_datetime(redis.clock() + round(seconds * 1_000))


async def test_add_writes_or_replaces_a_document(redis: RedisHarness) -> None:
    store = redis.made()
    until = at(redis, 99)
    await store.add("a", interval="@daily", repeat_until=until, auto_remove=True, data={"n": [1, None]})
    job = await store.lock_next(at(redis, 60))
    assert job == CrontabJob(
        id="a",
        sleep_until=at(redis),
        interval="@daily",
        repeat_until=until,
        auto_remove=True,
        data={"n": [1, None]},
        locked_until=at(redis, 60),
    )
    await store.add("a", sleep_until=at(redis, -1))
    assert await store.lock_next(at(redis, 60)) == CrontabJob(
        id="a", sleep_until=at(redis, -1), locked_until=at(redis, 60)
    )
    for bad in (
        {"id": ""},
        {"id": 5},
        {"id": "b", "interval": "no cron"},
        {"id": "b", "sleep_until": datetime(2020, 1, 1)},
    ):
        fields: dict[str, Any] = bad
        with pytest.raises(InvalidValue):
            await store.add(**fields)


async def test_a_document_can_be_written_by_hand(redis: RedisHarness) -> None:
    await redis.client.zadd(redis.set, {"bare": 5, "first": "-inf", "never": "+inf"})
    odd = {"data": "no JSON", "repeat_until": "soon", "interval": "", "auto_remove": "0"}
    await redis.client.hset(f"{{{redis.name}}}:document:first", mapping=odd)
    first, bare = await redis.store.lock_many(at(redis, 60), 9)
    assert (bare.id, bare.sleep_until, bare.data) == ("bare", datetime.fromtimestamp(0.005, UTC), None)
    assert (first.sleep_until, first.data, first.interval, first.auto_remove) == (EPOCH, "no JSON", None, False)
    assert first.repeat_until == "soon"  # the crontab reports it to on_error
    assert await redis.store.update("bare", Changes(sleep_until=None, locked_until=at(redis, 60))) is True
    assert await redis.kept("bare") is None


async def test_a_finished_document_keeps_its_hash(redis: RedisHarness) -> None:
    await redis.add("a", Kept(sleep_until=at(redis), interval="@daily"))
    await redis.store.lock_next(at(redis, 60))
    assert await redis.store.finish_many([Ending(id="a", locked_until=at(redis, 60))]) == [True]
    assert await redis.kept("a") == Kept(sleep_until=None, interval="@daily")
    assert await redis.store.finish_many([Ending(id="a", locked_until=at(redis, 60))]) == [False]
    assert await redis.store.update("a", Changes(sleep_until=at(redis, 5))) is True
    assert await redis.kept("a") == Kept(sleep_until=at(redis, 5), interval="@daily")


async def test_a_lock_of_many_documents_is_one_call(redis: RedisHarness) -> None:
    store = redis.made()
    await redis.client.zadd(redis.set, {str(n): n for n in range(150)})
    await store.lock_many(at(redis, 60), 1)  # the script is known now
    before = await calls(redis)
    jobs = await store.lock_many(at(redis, 60), 100)
    assert [job.id for job in jobs] == [str(n) for n in range(1, 101)]
    written = [Ending(id=job.id, locked_until=at(redis, 60), sleep_until=at(redis, 9)) for job in jobs]
    assert await store.finish_many(written[:1]) == [True]
    assert await calls(redis) - before == 2
    assert await store.finish_many(written) == [False] + [True] * 99


async def calls(redis: RedisHarness) -> int:
    """How many scripts the server has run."""
    stats = await redis.client.info("commandstats")
    return sum(one["calls"] for name, one in stats.items() if name in ("cmdstat_evalsha", "cmdstat_eval"))


@pytest.mark.parametrize("decodes", [True, False])
async def test_a_given_client_is_used_and_stays_open(redis: RedisHarness, decodes: bool) -> None:
    async with Redis.from_url(redis.url.partition("?")[0], decode_responses=decodes) as client:
        store = RedisCrontab(client, redis.name, clock=redis.clock)
        await client.script_flush()
        await store.add("a", data={"text": "ä"})
        job = await store.lock_next(at(redis, 60))
        assert job is not None
        assert (job.id, job.data) == ("a", {"text": "ä"})
        assert await store.remove("a", locked_until=at(redis, 60)) is True
        await store.close()
        assert await client.ping() is True
        await client.set(redis.set, "a text")
        with pytest.raises(StoreError, match="WRONGTYPE"):
            await store.lock_next(at(redis, 60))


async def test_an_unavailable_server_is_an_error(own_redis: RedisServer) -> None:
    own_redis.kill()
    async with Redis.from_url(own_redis.url()) as client:
        for place in (client, own_redis.url()):
            store = RedisCrontab(place, "jobs")
            with pytest.raises(StoreUnavailable):
                await store.lock_next(datetime.now(UTC))
            await store.close()


@pytest.mark.slow
async def test_all_keys_are_on_one_node_of_a_cluster(redis_cluster_url: str) -> None:
    address = redis_cluster_url.partition("?")[0]
    client = RedisCluster.from_url(address.replace("+cluster", "").partition(",")[0], decode_responses=True)
    redis = RedisHarness(address, client)
    given = RedisCrontab(client, redis.name, clock=redis.clock)
    store = redis.made()
    for n in range(20):
        await (given if n % 2 else store).add(f"id {{{n}}}", sleep_until=at(redis, n - 50), auto_remove=True)
    keys = [key async for key in client.scan_iter(f"{{{redis.name}}}:*")]
    assert len(keys) == 21
    assert len({key_slot(key.encode()) for key in keys}) == 1
    jobs = await store.lock_many(at(redis, 60), 12) + await given.lock_many(at(redis, 60), 12)
    assert [job.id for job in jobs] == [f"id {{{n}}}" for n in range(20)]
    written = [Ending(id=job.id, locked_until=at(redis, 60), remove=True) for job in jobs]
    assert await given.finish_many(written[:10]) + await store.finish_many(written[10:]) == [True] * 20
    assert [key async for key in client.scan_iter(f"{{{redis.name}}}:*")] == []
    await redis.close()


def test_invalid_arguments_are_refused() -> None:
    for name in ("", "{jobs}", None):
        with pytest.raises(InvalidValue, match="name: expected a name without braces"):
            RedisCrontab("redis://host", name)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="database: expected redis://"):
        RedisCrontab(5, "jobs")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ regressions


@pytest.mark.parametrize("place", ["url", "decodes", "bytes"])
async def test_an_id_that_is_not_utf_8_is_returned_as_bytes(redis: RedisHarness, place: str) -> None:
    url = redis.url.partition("?")[0]
    async with Redis.from_url(url, decode_responses=place == "decodes") as client:
        store = RedisCrontab(redis.url if place == "url" else client, redis.name, clock=redis.clock)
        await client.zadd(redis.set, {b"\xff\xfe": 5, "ä".encode(): 6})
        jobs = await store.lock_many(at(redis, 60), 5)
        assert [job.id for job in jobs] == [b"\xff\xfe", "ä"]
        done = [Ending(id=job.id, locked_until=at(redis, 60), remove=True) for job in jobs]
        assert await store.finish_many(done) == [True, True]
        assert await client.zcard(redis.set) == 0
        await store.close()


async def test_a_key_that_is_not_a_hash_has_no_fields(redis: RedisHarness) -> None:
    await redis.add("a", Kept(sleep_until=at(redis, -3), interval="@daily"))
    await redis.client.zadd(redis.set, {"odd": redis.clock() - 2_000})
    await redis.client.set(f"{{{redis.name}}}:document:odd", "a text")
    await redis.add("b", Kept(sleep_until=at(redis, -1), interval="@daily"))
    jobs = await redis.store.lock_many(at(redis, 60), 5)
    assert [(job.id, job.interval, job.data) for job in jobs] == [
        ("a", "@daily", None),
        ("odd", None, None),
        ("b", "@daily", None),
    ]
    done = [Ending(id=job.id, locked_until=at(redis, 60)) for job in jobs]
    assert await redis.store.finish_many(done) == [True] * 3


async def test_an_unanswered_ending_is_not_lost(redis: RedisHarness) -> None:
    for id in "abcd":
        await redis.add(id, Kept(sleep_until=at(redis)))
    async with Proxy(port_of(redis.url)) as proxy:
        store = RedisCrontab(proxy.url(redis.url), redis.name, clock=redis.clock)
        jobs = await store.lock_many(at(redis, 60), 4)
        fence, next = at(redis, 60), at(redis, 9)
        changes = Changes(sleep_until=next, locked_until=fence)
        both = [Ending(id="c", locked_until=fence), Ending(id="d", locked_until=fence, remove=True)]
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.update("a", changes),
            lambda: store.remove("b", locked_until=fence),
            lambda: store.finish_many(both),
        ]
        assert len(jobs) == 4
        for n, call in enumerate(calls, 1):
            proxy.drop_answer(lambda said: b"EVAL" in said.upper())
            with pytest.raises(StoreUnavailable):
                await call()
            assert proxy.dropped_answers == n
            assert await call() in (True, [True, True])
            # The result is known now; another retry has lost the lock.
            assert await call() in (False, [False, False])
        await store.close()
