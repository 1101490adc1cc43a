"""The connection that the PostgreSQL store spares for leases: a full pool, or a full server, never costs one."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

import jobmill
from jobmill.errors import StoreUnavailable
from jobmill.stores.postgres import PostgresStore
from jobmill.testing.contract.support import LEASE_MS, claim_ids, put_one, started, succeed, wish
from jobmill.worker.worker import Worker
from tests.helpers import until
from tests.kit.postgres import connected
from tests.kit.proxy import Proxy
from tests.stores.meddling import locked, role_with, waiting_for_locks

pytestmark = pytest.mark.stores("postgres")

#: Below the deadline of a call, which would wait for the lock until then.
GRACE_S = 8.0


async def test_a_full_pool_costs_no_lease(migrated_url: str) -> None:
    store = PostgresStore(migrated_url, pool=2)
    await store.open()
    claimed = await started(store)
    async with locked(migrated_url, "history"):
        looks = [asyncio.create_task(store.get(["x"])) for _ in range(5)]

        async def full() -> bool:
            return await waiting_for_locks(migrated_url) == 2

        await until(full)
        for _ in range(3):
            async with asyncio.timeout(GRACE_S):
                assert await store.extend([claimed.lease], LEASE_MS) == []
        with pytest.raises(StoreUnavailable, match=r"all 2 connections were in use for 0.1 s; see pool="):
            await store.context.loops.here().pool.use(lambda connection: connection.fetchval("SELECT 1"), 0.1)
    assert await asyncio.gather(*looks) == [[None]] * 5
    await store.close()


async def test_a_job_that_somebody_holds_locked_does_not_cost_the_other_leases(
    direct: PostgresStore, migrated_url: str
) -> None:
    first, second = await started(direct), await started(direct)
    async with connected(migrated_url) as rude:
        await rude.execute(f"BEGIN; UPDATE jobmill.jobs SET token = '' WHERE id = '{first.job.id}'")
        before = await lease_ends(rude)
        async with asyncio.timeout(GRACE_S):
            # It is not lost yet either.
            assert await direct.extend([first.lease, second.lease], 10 * LEASE_MS) == []
        ends = await lease_ends(rude)
        assert ends[first.job.id] == before[first.job.id]
        assert ends[second.job.id] > before[second.job.id] + 8 * LEASE_MS
        await rude.execute("COMMIT")
    assert await direct.extend([first.lease, second.lease], LEASE_MS) == [first.job.id]


async def lease_ends(connection: asyncpg.Connection) -> dict[str, int]:
    rows = await connection.fetch("SELECT id, lease_until_ms FROM jobmill.jobs")
    return {row["id"]: row["lease_until_ms"] for row in rows}


async def test_nothing_is_claimed_without_the_spare_connection(migrated_url: str, direct: PostgresStore) -> None:
    running, waiting = await started(direct), await put_one(direct)
    async with role_with(migrated_url, 1) as url:
        store = PostgresStore(url)
        await store.open()
        with pytest.raises(StoreUnavailable, match='too many connections for role "few"'):
            await store.exchange([], wish())
        # What is finished is settled all the same.
        answer = await store.exchange([succeed(running)], wish())
        assert (answer.settled, answer.claimed) == (["done"], [])
        async with connected(migrated_url) as connection:
            await connection.execute("ALTER ROLE few CONNECTION LIMIT 2")
        assert await claim_ids(store) == [waiting]
        await store.close()


async def test_fewer_connections_than_we_may_have_are_shared(migrated_url: str) -> None:
    async with role_with(migrated_url, 2) as url:
        store = PostgresStore(url, pool=8)
        await store.open()
        assert await asyncio.gather(*(store.get(["x"]) for _ in range(50))) == [[None]] * 50
        await store.close()


async def test_a_claimed_job_is_extended_though_every_connection_was_cut(proxied: PostgresStore, proxy: Proxy) -> None:
    claimed = await started(proxied)
    proxy.cut()
    await until(lambda: not proxy.connections)
    assert await proxied.extend([claimed.lease], LEASE_MS) == []


@pytest.mark.slow
async def test_a_worker_keeps_its_jobs_while_the_pool_is_full(migrated_url: str) -> None:
    jobs = jobmill.connect(store=PostgresStore(migrated_url, pool=2))
    go, fences = asyncio.Event(), list[int]()

    @jobs.handler()
    async def long(context: jobmill.Context) -> None:
        fences.append(context.fence)
        await go.wait()

    async with Worker(jobs, concurrency=2, lease="3s"):
        enqueued = await long.enqueue()
        await until(lambda: fences)
        async with locked(migrated_url, "history") as rude:
            looks = [asyncio.create_task(jobs.store.get(["x"])) for _ in range(4)]

            async def full() -> bool:
                return await waiting_for_locks(migrated_url) == 2

            await until(full)
            before = (await lease_ends(rude))[enqueued.id]

            async def extended_often() -> bool:
                return (await lease_ends(rude))[enqueued.id] > before + 3_000

            await until(extended_often, 20)
        await asyncio.gather(*looks)
        go.set()
        await enqueued.result(timeout=10)
    job = await enqueued.job()
    assert (job.claims, job.crashes, fences) == (1, 0, [1])
    await jobs.close()
