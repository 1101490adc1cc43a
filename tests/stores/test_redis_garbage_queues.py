"""A queue that cannot be used holds up no other that the same worker works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import jobmill
from jobmill import Client
from jobmill.errors import StoreError, StoreUnavailable
from jobmill.stores.redis import RedisStore
from jobmill.stores.redis.url import RedisUrl
from jobmill.testing.contract.support import claim_one, new, put, put_one, succeed, wish
from tests.helpers import until
from tests.kit.redis import Rooms
from tests.kit.redis_groups import RedisCluster
from tests.stores.redis_planting import Field, working

pytestmark = pytest.mark.stores("redis")


@pytest.fixture
def broken(redis_server: Rooms, redis_url: str) -> Iterator[Field]:
    """A queue whose waiting line is something else."""
    with redis_server.client() as raw:
        field = Field(raw, RedisUrl.read(redis_url).prefix, "broken")
        raw.set(f"{field.Q}:wait", "mine")
        yield field


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(redis_url)
    await store.open()
    yield store
    await store.close()


def two_queues(url: str, *queues: str) -> Client:
    jobs = jobmill.connect(url)
    for queue in queues:

        @jobs.handler(name=f"in {queue}".replace(" ", "_"), queue=queue)
        async def work(n: int) -> int:
            await asyncio.sleep(0.001)
            return n

    return jobs


async def run_many(jobs: Client, name: str, many: int = 60) -> None:
    """So many jobs are run, each of them once."""
    enqueued = [await jobs.enqueue(name, {"n": n}) for n in range(many)]
    assert [await one.result(timeout=20) for one in enqueued] == list(range(many))
    for one in enqueued:
        job = await one.job()
        assert (job.claims, job.crashes) == (1, 0)


@pytest.mark.usefixtures("broken")
async def test_a_worker_goes_on_with_its_other_queues(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    jobs = two_queues(redis_url, "broken", "healthy")
    async with jobs, working(jobs):
        await run_many(jobs, "in_healthy")
    # Said, but not each time.
    said = [record.getMessage() for record in caplog.records if "queue broken is left out" in record.getMessage()]
    assert 1 <= len(said) <= 10
    assert "WRONGTYPE" in said[0]


@pytest.mark.slow
async def test_what_was_claimed_is_not_forgotten_when_another_queue_fails(store: RedisStore, broken: Field) -> None:
    one, two = await put(store, new(queue="first"), new(queue="last"))
    answer = await store.exchange([], wish(queues=("first", "broken", "last")))
    assert {claimed.job.id for claimed in answer.claimed} == {one, two}  # type: ignore[union-attr]
    # Where there is nothing else, it is said at once, each time.
    for _ in range(2):
        with pytest.raises(StoreError, match="WRONGTYPE"):
            await store.exchange([], wish(queues=("broken",)))
    broken.raw.delete(f"{broken.Q}:wait")
    three = await put_one(store, new(queue="broken"))

    async def comes() -> bool:
        claimed = (await store.exchange([], wish(queues=("first", "broken", "last")))).claimed
        return {one.job.id for one in claimed} == {three}  # type: ignore[union-attr]

    await until(comes, 10)


async def test_what_was_claimed_goes_back_when_a_settlement_fails(store: RedisStore, broken: Field) -> None:
    broken.raw.delete(f"{broken.Q}:wait")
    await put_one(store, new(queue="broken"))
    running = await claim_one(store, queues=("broken",))
    broken.raw.set(f"{broken.Q}:wait", "mine")
    one = await put_one(store, new(queue="first"))
    with pytest.raises(StoreError, match="WRONGTYPE"):
        await store.exchange([succeed(running)], wish(queues=("first", "broken")))
    (job,) = await store.get([one])
    assert job is not None
    assert (job.state, job.crashes) == ("waiting", 0)
    broken.raw.delete(f"{broken.Q}:wait")


async def test_the_default_queue_may_be_one_that_a_cluster_cannot_have(
    redis_cluster: RedisCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It needs a hash tag there; the worker works it unless it is told otherwise, and its handlers' own queues."""
    jobs = two_queues(redis_cluster.url(prefix="untagged"), "{tagged}")
    async with jobs, working(jobs):
        await run_many(jobs, "in_{tagged}")
    said = [record.getMessage() for record in caplog.records if "queue default is left out" in record.getMessage()]
    assert len(said) == 1
    assert "hash tag" in said[0]


@pytest.mark.slow
async def test_a_node_that_is_down_holds_up_its_own_queues_only(own_redis_cluster: RedisCluster) -> None:
    cluster = own_redis_cluster
    there = "{a}"
    here = next(tag for tag in ("{b}", "{c}", "{d}") if cluster.primary_of(tag) is not cluster.primary_of(there))
    jobs = two_queues(cluster.url(), there, here)
    async with jobs, working(jobs):
        await run_many(jobs, f"in_{here}")
        # Without a replica that could take over, until it is back.
        dead = cluster.primary_of(there)
        for node in cluster.nodes:
            node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
            if node.ask("ROLE")[0] == b"slave":
                node.ask("CONFIG", "SET", "cluster-replica-no-failover", "yes")
        dead.kill()
        with pytest.raises(StoreUnavailable):
            await jobs.enqueue(f"in_{there}", {"n": 1})
        for n in range(60):
            await jobs.enqueue(f"in_{here}", {"n": n})

        async def all_ran() -> bool:
            found = [job async for job in jobs.find_all(queue=here)]
            return [(job.state, job.claims, job.crashes) for job in found] == [("succeeded", 1, 0)] * 120

        await until(all_ran, 20)
        dead.start()

        async def is_back() -> Any:
            try:
                return await jobs.enqueue(f"in_{there}", {"n": 1})
            except StoreUnavailable:
                return None

        assert await (await until(is_back, 20)).result(timeout=20) == 1
