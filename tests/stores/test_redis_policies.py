"""Policies of unique keys on Redis: keys with a time, what stays of them, and how many calls they take."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from msgspec import structs
from redis.asyncio import Redis

from jobmill.bullmq import Deduplication, Queue
from jobmill.core.changes import Cancel, Hold, Release, Requeue, Reschedule
from jobmill.core.flows import After
from jobmill.core.job import LIVE, JobOptions, Keep
from jobmill.core.unique_policy import UniquePolicy
from jobmill.core.values import NOW, Filter, NewJob, QueueChange, Receipt, after, at
from jobmill.stores.redis import RedisStore
from jobmill.stores.redis.url import RedisUrl
from jobmill.testing.contract.events import events_of
from jobmill.testing.contract.support import (
    QUEUE,
    claim_one,
    enqueue_one,
    find_all,
    in_state,
    look,
    new,
    put,
    put_one,
    settle,
    started,
    state_of,
    succeed,
)
from jobmill.testing.contract.unique_policy import CANCEL, FOR_A_MINUTE, REPLACE, debounced, keyed

pytestmark = pytest.mark.stores("redis")


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(redis_url)
    await store.open()
    yield store
    await store.close()


class Keys:
    """The keys of the queue."""

    def __init__(self, client: Redis, url: str) -> None:
        self.client = client
        self.base = f"{RedisUrl.read(url).prefix}:{QUEUE}"
        self.owner = f"{self.base}:de:{new().name} k"
        self.timed = f"{self.base}:jobmill:timed"

    async def end_time(self) -> None:
        """The time of the key is over."""
        assert await self.client.pttl(self.owner) > 0
        await self.client.delete(self.owner)


@pytest.fixture
async def keys(redis_url: str) -> AsyncIterator[Keys]:
    async with Redis.from_url(redis_url.partition("?")[0], decode_responses=True) as client:
        yield Keys(client, redis_url)


def plain() -> NewJob:
    return new(key="k")


async def test_a_job_without_a_policy_sees_a_live_job_whose_time_is_over(store: RedisStore, keys: Keys) -> None:
    id = await put_one(store, keyed(FOR_A_MINUTE))
    await keys.end_time()
    assert await enqueue_one(store, plain()) == Receipt(id, "duplicate")
    await settle(store, succeed(await claim_one(store)))
    assert (await enqueue_one(store, plain())).created


async def test_a_debounced_job_whose_time_is_over_takes_over_the_payload(store: RedisStore, keys: Keys) -> None:
    id = await put_one(store, debounced("first"))
    await keys.end_time()
    assert await enqueue_one(store, debounced("second")) == Receipt(id, "updated")
    assert await keys.client.get(keys.owner) == id
    assert 4_000 < await keys.client.pttl(keys.owner) <= 5_000


async def test_a_debounced_job_that_has_ended_before_its_time_loses_no_payload(store: RedisStore) -> None:
    id = await put_one(store, debounced("first", seconds=60))
    await store.change([id], Reschedule(NOW))
    await settle(store, succeed(await claim_one(store)))
    assert (await enqueue_one(store, debounced("second"))).created


async def test_a_debounce_gives_no_time_to_a_key_without_one(store: RedisStore, keys: Keys) -> None:
    id = await put_one(store, keyed(REPLACE))
    assert await enqueue_one(store, debounced("second")) == Receipt(id, "updated")
    assert await keys.client.pttl(keys.owner) == -1


async def test_a_job_of_node_that_we_debounce_has_its_key_longer_than_the_time(store: RedisStore, keys: Keys) -> None:
    node = Queue(store, QUEUE)
    once = Deduplication(id=f"{new().name} k", ttl=60_000, replace=True)
    id = f"{QUEUE}:{await node.add(new().name, {}, deduplication=once, delay=60_000)}"
    assert await enqueue_one(store, debounced("ours")) == Receipt(id, "updated")
    await keys.end_time()
    assert await enqueue_one(store, debounced("again")) == Receipt(id, "updated")


@pytest.mark.parametrize("policy", ["debounce", "cancel"])
async def test_a_job_that_node_keeps_back_is_replaced(store: RedisStore, keys: Keys, policy: str) -> None:
    node = Queue(store, QUEUE)
    last = Deduplication(id=f"{new().name} k", keep_last_if_active=True)
    await node.add(new().name, {}, deduplication=last)
    running = await claim_one(store)
    await node.add(new().name, {"kept": True}, deduplication=last)
    receipt = await enqueue_one(store, debounced() if policy == "debounce" else keyed(CANCEL))
    await settle(store, succeed(running))
    assert await find_all(store, Filter(unique_key="k", states=LIVE)) == [receipt.id]
    assert not await keys.client.exists(f"{keys.base}:dn:{last.id}")


async def test_a_requeue_respects_a_live_job_whose_time_is_over(store: RedisStore, keys: Keys) -> None:
    old = await in_state(store, "failed", plain())
    id = await put_one(store, keyed(FOR_A_MINUTE))
    await keys.end_time()
    changed = await store.change([old], Requeue())
    assert changed.refused == {old: f"the live job {id} has its unique key"}


async def test_a_requeued_job_has_its_key_longer_than_the_time(store: RedisStore, keys: Keys) -> None:
    id = await in_state(store, "succeeded", keyed(FOR_A_MINUTE))
    await keys.client.delete(keys.timed)  # as a purge does, for the job is final
    assert (await store.change([id], Requeue())).ids == [id]
    await keys.end_time()
    assert await enqueue_one(store, keyed(FOR_A_MINUTE)) == Receipt(id, "duplicate")


async def test_a_job_can_be_requeued_while_a_final_one_has_its_key_for_a_time(store: RedisStore, keys: Keys) -> None:
    old = await in_state(store, "failed", plain())
    await in_state(store, "succeeded", keyed(FOR_A_MINUTE))
    assert (await store.change([old], Requeue())).ids == [old]
    assert await enqueue_one(store, plain()) == Receipt(old, "duplicate")
    await keys.end_time()
    assert await enqueue_one(store, plain()) == Receipt(old, "duplicate")


@pytest.mark.parametrize("policy", [REPLACE, CANCEL], ids=["replace", "cancel"])
async def test_another_policy_does_not_end_the_time(store: RedisStore, policy: UniquePolicy) -> None:
    await in_state(store, "succeeded", keyed(FOR_A_MINUTE))
    second = await started(store, keyed(policy))
    await settle(store, succeed(second))
    assert (await enqueue_one(store, keyed(FOR_A_MINUTE))).status == "duplicate"


async def test_a_purge_forgets_jobs_that_are_not_live(store: RedisStore, keys: Keys) -> None:
    ids = await put(store, *(keyed(FOR_A_MINUTE, key=f"k-{number}") for number in range(6)))
    await settle(store, succeed(await claim_one(store)))
    await store.change(ids[1:3], Cancel())
    await keys.client.delete(f"{keys.base}:{ids[3]}")  # as Node removes a job
    await store.purge()
    assert set(await keys.client.hvals(keys.timed)) == set(ids[4:])


async def test_a_purge_goes_on_while_most_are_not_live(store: RedisStore, keys: Keys) -> None:
    ids = await put(store, *(keyed(FOR_A_MINUTE, key=f"k-{number}") for number in range(500)))
    await keys.client.delete(*(f"{keys.base}:{id}" for id in ids))
    purges = 1
    while (await store.purge()).more:
        purges += 1
    assert purges < 10
    assert await keys.client.hlen(keys.timed) <= 100


async def test_many_jobs_with_policies_are_one_call(store: RedisStore, keys: Keys) -> None:
    await put(store, *(keyed(REPLACE, key=f"r-{number}") for number in range(50)))
    await store.enqueue([keyed(CANCEL, "c")])
    before = await calls(keys)
    jobs = [keyed(REPLACE, key=f"r-{number}", payload="new") for number in range(50)]
    receipts = await store.enqueue([*jobs, *(keyed(FOR_A_MINUTE, key=f"f-{number}") for number in range(50))])
    assert [receipt.status for receipt in receipts] == ["updated"] * 50 + ["created"] * 50
    assert await calls(keys) == before + 1


async def calls(keys: Keys) -> int:
    stats = await keys.client.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "eval"))


async def test_a_job_that_waits_for_jobs_is_due_later(store: RedisStore) -> None:
    """Nothing but jobs holds it: its holders are an empty list."""
    await put(store, new("a"), structs.replace(plain(), id="b", after=(After("a"),)))
    due = at(store.now() + 60_000)
    assert await enqueue_one(store, keyed(REPLACE, payload="new", due=due)) == Receipt("b", "updated")
    job = await look(store, "b")
    assert job.held is not None
    assert (job.payload, job.held.by, job.held.due) == ("new", ("jobs",), due)
    await settle(store, succeed(await claim_one(store)))
    assert (await look(store, "b")).due_ms == due.at_ms


async def test_a_held_job_keeps_who_holds_it(store: RedisStore) -> None:
    id = await put_one(store, keyed(REPLACE, payload="old"))
    await store.change([id], Hold(who="ada", note='"by":{}'))
    assert await enqueue_one(store, keyed(REPLACE, payload="new", due=after(60_000))) == Receipt(id, "updated")
    held = (await look(store, id)).held
    assert held is not None
    assert (held.by, held.who, held.note, held.due) == (("person",), "ada", '"by":{}', after(60_000))
    await store.change([id], Release())
    assert (await look(store, id)).due_ms > store.now() + 50_000


async def test_a_cancelled_job_is_removed_by_its_retention(store: RedisStore) -> None:
    await store.configure(QUEUE, QueueChange(feed=True))
    await store.enqueue([keyed(CANCEL, "a", options=JobOptions(keep_failed=Keep(last=0)))])
    await store.enqueue([keyed(CANCEL, "b")])
    assert await state_of(store, "a") is None
    told = [(event.type, event.job_id) for event in await events_of(store)]
    assert told == [("enqueued", "a"), ("cancelled", "a"), ("removed", "a"), ("enqueued", "b")]


async def test_a_cancelled_held_job_is_due_as_it_was_held(store: RedisStore) -> None:
    await put_one(store, keyed(CANCEL, "a", due=after(60_000)))
    await store.change(["a"], Hold())
    due_ms = store.now() + 90_000
    await store.change(["a"], Reschedule(at(due_ms)))
    await store.enqueue([keyed(CANCEL, "b")])
    job = await look(store, "a")
    assert (job.state, job.held, job.due_ms) == ("cancelled", None, due_ms)


async def test_workers_are_notified_of_a_cancel(store: RedisStore, keys: Keys, redis_url: str) -> None:
    running = await started(store, keyed(CANCEL))
    await store.enqueue([keyed(CANCEL)])
    await store.enqueue([keyed(CANCEL, "c"), new("d"), structs.replace(new("e"), after=(After("d"),))])
    stream = f"jobmill:{RedisUrl.read(redis_url).prefix}:{{operations}}:cancels"
    told = [fields and fields["ids"] for _, fields in await keys.client.xrange(stream) or ()]
    assert told[0] == f'["{running.job.id}"]'
    assert len(told) == 2, "also in a call with a flow"


async def test_a_policy_in_a_call_with_a_large_flow(store: RedisStore) -> None:
    """A job with a policy is not staged: what it did to another one cannot be undone."""
    await put_one(store, keyed(CANCEL, "old"))
    flow = [new(f"d-{number}") for number in range(300)]
    waits = structs.replace(new("last"), after=tuple(After(one.id) for one in flow))
    receipts = await store.enqueue(
        [keyed(CANCEL, "next"), *flow, waits, structs.replace(new("x"), after=(After("next"),))]
    )
    assert {receipt.status for receipt in receipts} == {"created"}
    assert await state_of(store, "old") == "cancelled"
    assert await find_all(store, Filter(unique_key="k", states=LIVE)) == ["next"]
    (edge,) = await store.dependencies("x")
    assert (edge.id, edge.state) == ("next", "pending")


async def test_an_owner_that_cannot_be_read_is_cancelled(store: RedisStore, keys: Keys) -> None:
    id = await put_one(store, keyed(CANCEL))
    await keys.client.delete(f"{keys.base}:{id}")
    await keys.client.set(f"{keys.base}:{id}", "no hash")
    assert (await enqueue_one(store, keyed(CANCEL, "b"))).created
    assert await state_of(store, id) == "cancelled"
    assert await keys.client.get(keys.owner) == "b"


async def test_on_a_cluster(redis_cluster_url: str) -> None:
    store = RedisStore(redis_cluster_url)
    await store.open()
    jobs = [keyed(FOR_A_MINUTE, key="a"), debounced("first", key="b"), keyed(CANCEL, key="c"), keyed(REPLACE, key="d")]
    again = [structs.replace(job, id=f"again-{number}") for number, job in enumerate(jobs)]
    receipts = [receipt.status for receipt in await store.enqueue([*jobs, *again])]
    assert receipts == ["created"] * 4 + ["duplicate", "updated", "created", "updated"]
    await store.purge()
    await store.close()
