"""Searches on Redis: what the server decides, and how many jobs are read for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from msgspec import structs
from redis.asyncio import Redis

from jobmill.core.job import LIVE
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import SEARCHED_PER_PAGE, CountUpTo, Filter, after
from jobmill.stores.redis import RedisStore
from jobmill.testing import ManualClock
from jobmill.testing.contract.support import QUEUE, claim_one, find_all, in_state, new, put, put_one, succeed
from jobmill.testing.contract.support import settle as settle_all
from tests.kit.redis import RedisServer
from tests.stores.test_redis_queues import commands

pytestmark = pytest.mark.stores("redis")

WAITING = Filter(queue=QUEUE, states=("waiting",))
RECURRING = Filter(states=LIVE, recurring=True)
BASE = f"bull:{QUEUE}"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(own_redis: RedisServer, clock: ManualClock) -> AsyncIterator[RedisStore]:
    store = RedisStore(own_redis.url(), clock=clock)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def raw(own_redis: RedisServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(own_redis.url(), decode_responses=True) as client:
        yield client


async def waiting(raw: Redis, count: int, **fields: str) -> None:
    """Jobs that wait, quickly made."""
    about: dict[Any, Any] = {"name": "send", "data": "{}", "opts": "{}", "timestamp": "1000", "jm": "1"} | fields
    pipeline = raw.pipeline(transaction=False)
    for number in range(count):
        pipeline.hset(f"{BASE}:job-{number}", mapping=about)
    pipeline.lpush(f"{BASE}:wait", *[f"job-{number}" for number in range(count)])
    await pipeline.execute()


async def test_only_jobs_that_may_match_are_read_whole(own_redis: RedisServer, store: RedisStore) -> None:
    jobs = [new(f"job-{number}", payload={"to": "bob", "n": number}, tenant="acme") for number in range(300)]
    rare = [new(f"rare-{number}", name="rare.x", payload={"to": "ada"}, tenant="ada") for number in range(3)]
    await put(store, *jobs[:150], *rare, *jobs[150:])
    ids = [job.id for job in rare]
    for field, value in {"name": "rare.x", "name_prefix": "rare.", "tenant": "ada", "payload": {"to": "ada"}}.items():
        wanted = structs.replace(WAITING, **{field: value})
        used, page = await commands(own_redis, partial(store.find, wanted))
        assert [job.id for job in page.jobs] == ids
        assert used["hgetall"] == 3, field
    used, page = await commands(own_redis, lambda: store.find(structs.replace(WAITING, payload={"n": 299})))
    assert [job.id for job in page.jobs] == ["job-299"]
    assert used["hgetall"] == 1


async def test_a_search_ends_after_a_number_of_jobs(own_redis: RedisServer, store: RedisStore, raw: Redis) -> None:
    await store.depths()
    await waiting(raw, SEARCHED_PER_PAGE + 5_000)
    wanted = structs.replace(WAITING, name="another")
    used, page = await commands(own_redis, lambda: store.find(wanted, None, 50))
    assert (page.jobs, page.next is None) == ([], False)
    assert SEARCHED_PER_PAGE <= used["hget"] < SEARCHED_PER_PAGE + 2_500
    assert used["hgetall"] == 0
    assert used["evalsha"] < 20
    last = await store.find(wanted, page.next, 50)
    assert (last.jobs, last.next) == ([], None)
    used, counted = await commands(own_redis, lambda: store.count_up_to(wanted, 10))
    assert counted == CountUpTo(0, exact=False)
    assert used["hget"] < SEARCHED_PER_PAGE + 2_500


async def test_a_count_by_name_reads_no_job_whole(own_redis: RedisServer, store: RedisStore) -> None:
    names = ["send", "mail", "mail.x"]
    await put(store, *[new(name=names[number % 3]) for number in range(300)])
    due = structs.replace(WAITING, held=False, due_before_ms=store.now() + 1)
    for wanted, count in (
        (structs.replace(due, name="mail"), 100),
        (structs.replace(due, name_prefix="mail"), 200),
        (structs.replace(due, recurring=False), 300),
        (structs.replace(due, created_after_ms=store.now() + 1), 0),
        (structs.replace(WAITING, due_before_ms=store.now()), 0),
    ):
        used, counted = await commands(own_redis, partial(store.count_up_to, wanted, 1_000))
        assert counted == CountUpTo(count, exact=True)
        assert used["hgetall"] == 0


async def test_jobs_that_are_due_later_are_found_by_their_scores(own_redis: RedisServer, store: RedisStore) -> None:
    await put(store, *[new() for _ in range(300)])
    await put(store, new("near", due=after(1_000)), new("mid", due=after(5_000)), new("far", due=after(9_000)))
    now_ms = store.now()
    wanted = structs.replace(WAITING, held=False, due_after_ms=now_ms + 2_000, due_before_ms=now_ms + 9_000)
    used, page = await commands(own_redis, lambda: store.find(wanted))
    assert [job.id for job in page.jobs] == ["mid"]
    assert (used["hgetall"], used["hmget"] < 5) == (1, True)
    assert await find_all(store, structs.replace(wanted, due_before_ms=None), 1) == ["mid", "far"]


async def test_jobs_that_finished_lately_are_found_by_their_scores(
    own_redis: RedisServer, store: RedisStore, clock: ManualClock
) -> None:
    for number in range(40):
        await in_state(store, "failed", new(f"job-{number:02}"))
        clock.advance(1)
    start_ms = store.now() - 40_000
    failed = Filter(states=("failed",), finished_after_ms=start_ms + 30_000, finished_before_ms=start_ms + 35_000)
    used, page = await commands(own_redis, lambda: store.find(failed, None, 3))
    assert [job.id for job in page.jobs] == ["job-34", "job-33", "job-32"]
    assert used["hgetall"] == 4
    rest = await store.find(failed, page.next, 3)
    assert [job.id for job in rest.jobs] == ["job-31", "job-30"]
    assert (await store.find(failed, rest.previous, 3)).jobs == page.jobs
    assert await store.count_up_to(failed, 10) == CountUpTo(5, exact=True)
    assert sum(one.count for one in await store.count(failed)) == 5


async def test_other_forms_of_the_same_json_are_found(store: RedisStore, raw: Redis) -> None:
    await put(store, new("text"), new("number"), new("field"), new("other"))
    payloads = {
        "text": r'{"to":"\u0061da"}',
        "number": '{"n":1e3}',
        "field": r'{"\u0074o":"ada"}',
        "other": '{"to":"a"}',
    }
    for id, data in payloads.items():
        await raw.hset(f"{BASE}:{id}", "data", data)
    assert sorted(await find_all(store, structs.replace(WAITING, payload={"to": "ada"}))) == ["field", "text"]
    assert await find_all(store, structs.replace(WAITING, payload={"n": 1_000})) == ["number"]


# ---------------------------------------------------------------------------------------------------- recurring


async def test_live_recurring_jobs_are_found_without_a_search(
    own_redis: RedisServer, store: RedisStore, clock: ManualClock
) -> None:
    await put(store, *[new() for _ in range(300)])
    rules = [new(f"r{n}", key=f"k{n}", recurrence=Recurrence(key=f"k{n}", every_ms=60_000)) for n in range(3)]
    await put(store, *rules, new("other", queue="b", key="k", recurrence=Recurrence(key="k", every_ms=60_000)))
    used, page = await commands(own_redis, lambda: store.find(RECURRING))
    assert [job.unique_key for job in page.jobs] == ["k", "k0", "k1", "k2"]
    assert (used["hgetall"], used["lrange"]) == (4, 0)
    assert await find_all(store, RECURRING, 1) == [job.id for job in page.jobs]
    assert await store.count_up_to(RECURRING, 10) == CountUpTo(4, exact=True)
    late = Filter(states=("waiting",), recurring=True, held=False, due_before_ms=store.now() - 60_000)
    assert await find_all(store, late) == []
    clock.advance(3_600)
    assert len(await find_all(store, structs.replace(late, due_before_ms=store.now() - 60_000))) == 4


async def test_recurring_jobs_of_node_are_found(store: RedisStore, raw: Redis) -> None:
    await store.depths()
    door = store.bullmq("bull")
    await door.schedule("nightly", 0, {"every": 60_000}, data={}, opts={}, name="n", every=60_000)
    # A scheduler whose job Node has not made yet, or has removed.
    await raw.zadd("bull:bull:repeat", {"gone": store.now()})
    (found,) = (await store.find(RECURRING)).jobs
    assert (found.id, found.recurrence is not None) == ("bull:repeat:nightly", True)


async def test_the_last_run_of_a_scheduler_that_has_ended_is_found(store: RedisStore, raw: Redis) -> None:
    rule = Recurrence(key="k", every_ms=60_000)
    id = await put_one(store, new(key="k", recurrence=rule))
    (sid,) = await raw.zrange(f"{BASE}:repeat", 0, -1)
    await raw.zrem(f"{BASE}:repeat", str(sid))
    assert await find_all(store, RECURRING) == [id]


async def test_a_recurring_job_is_found_while_it_runs_and_after(store: RedisStore, clock: ManualClock) -> None:
    id = await put_one(store, new(key="k", recurrence=Recurrence(key="k", every_ms=60_000)))
    claimed = await claim_one(store)
    assert await find_all(store, structs.replace(RECURRING, states=("running",))) == [id]
    assert await find_all(store, structs.replace(RECURRING, states=("waiting",))) == []
    await settle_all(store, succeed(claimed))
    clock.advance(1)
    assert await find_all(store, Filter(recurring=True)) == await find_all(store, Filter())
