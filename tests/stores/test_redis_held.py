"""Held jobs on Redis: several holders at once, and what stays in the keys."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from jobmill.core.changes import Cancel, Hold, Pin, Release, Requeue, Reschedule
from jobmill.core.values import after
from jobmill.stores.redis import RedisStore
from jobmill.stores.redis.url import RedisUrl
from jobmill.testing.contract.pin import DAILY, MINUTELY, stated
from jobmill.testing.contract.support import (
    QUEUE,
    claim_ids,
    claim_one,
    look,
    new,
    put,
    put_one,
    seize,
    settle,
    succeed,
)

pytestmark = pytest.mark.stores("redis")


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


async def test_holders_that_come_at_once_all_hold(store: RedisStore, redis_url: str) -> None:
    other = RedisStore(redis_url)
    for number in range(20):
        id = await put_one(store, new(f"job-{number}"))
        await asyncio.gather(
            store.change([id], Hold(by="rule")),
            other.change([id], Hold(who="ada")),
            store.change([id], Reschedule(after(5_000))),
        )
        held = (await look(store, id)).held
        assert held is not None
        assert (held.by, held.who) == (("person", "rule"), "ada")
        changed = await asyncio.gather(store.change([id], Release("rule")), other.change([id], Release()))
        assert [one.ids for one in changed] == [[id], [id]]
        assert (await look(store, id)).held is None
    await other.close()


async def test_a_released_job_goes_to_the_middle_of_its_priority(store: RedisStore) -> None:
    ids = await put(store, *[new(f"job-{number}", priority=5) for number in range(5)])
    first = await put_one(store, new("first", priority=1))
    last = await put_one(store, new("last", priority=9))
    await store.change([ids[2]], Hold())
    await store.change([ids[2]], Release())
    assert await claim_ids(store) == [first, *ids, last]


async def test_nothing_stays_of_a_hold(store: RedisStore, raw: Redis, redis_url: str) -> None:
    base = f"{RedisUrl.read(redis_url).prefix}:{QUEUE}"
    released, cancelled, seized = await put(store, new("released"), new("cancelled"), new("seized"))
    await store.change([released, cancelled, seized], Hold(who="ada"))
    assert await raw.exists(*[f"{base}:{id}:dependencies" for id in (released, cancelled, seized)]) == 3
    await store.change([released], Release())
    await store.change([cancelled], Cancel())
    claimed = await seize(store, seized)
    for id in (released, cancelled, seized):
        assert await raw.exists(f"{base}:{id}:dependencies") == 0
        assert await raw.hget(f"{base}:{id}", "jmh") is None
    assert await settle(store, succeed(claimed)) == ["done"]
    await store.change([cancelled], Requeue())
    for _ in range(2):
        assert await settle(store, succeed(await claim_one(store))) == ["done"]
    assert await raw.zcard(f"{base}:waiting-children") == 0


async def test_garbage_about_a_hold_does_not_keep_a_job(store: RedisStore, raw: Redis, redis_url: str) -> None:
    base = f"{RedisUrl.read(redis_url).prefix}:{QUEUE}"
    id = await put_one(store)
    await store.change([id], Hold())
    await raw.hset(f"{base}:{id}", "jmh", "{garbage")
    held = (await look(store, id)).held
    assert held is not None
    assert held.by == ("jobs",)
    assert (await store.change([id], Release("jobs"))).ids == [id]
    assert await claim_ids(store) == [id]


async def test_a_process_of_an_older_version_ends_a_pin(store: RedisStore, raw: Redis, redis_url: str) -> None:
    base = f"{RedisUrl.read(redis_url).prefix}:{QUEUE}"
    id = await put_one(store, stated(DAILY, due_ms=store.now() + 3_600_000))
    await store.change([id], Pin(MINUTELY))
    (key,) = [key async for key in raw.scan_iter(f"{base}:repeat:*:*")]
    # It replaces the rule, and keeps what it does not know.
    runs = json.loads(str(await raw.hget(key, "jmr")))
    runs["rule"] = '{"key":"report","every_ms":3600000}'
    await raw.hset(key, "jmr", json.dumps(runs))
    rule = (await look(store, id)).recurrence
    assert rule is not None
    assert (rule.every_ms, rule.pinned, rule.stated) == (3_600_000, False, None)
    (receipt,) = await store.enqueue([stated(DAILY)])
    assert receipt.status == "updated"
    rule = (await look(store, id)).recurrence
    assert rule is not None
    assert (rule.cron, rule.pinned, rule.stated) == (DAILY.cron, False, None)
