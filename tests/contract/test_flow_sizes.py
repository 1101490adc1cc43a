"""Flows at full size: one job for ten thousand, a chain of ten thousand, and a claim among a hundred thousand."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from jobmill.core.flows import MAX_RELEASED
from jobmill.testing.contract import Harness
from jobmill.testing.contract.flows import waits
from jobmill.testing.contract.support import QUEUE, claim, claim_one, new, put, readable, settle, succeed, wish

pytestmark = [
    pytest.mark.stores("sqlite", "postgres", "redis", "mongo"),
    pytest.mark.extended,
    pytest.mark.slow,
]

PAGES = """
    SELECT sum(pg_stat_get_xact_blocks_fetched(oid))::integer FROM pg_class
    WHERE relnamespace = 'jobmill'::regnamespace
"""
#: A link takes 25 ms on MongoDB, in a chain of any length: ten thousand would take four minutes.
FEWER = {"mongo": 2_000}
MANY, HELD, AT_ONCE = 10_000, 100_000, 5_000


async def test_one_job_releases_ten_thousand(harness: Harness) -> None:
    """No call releases more than a thousand of them."""
    store = harness.store
    await put(store, new("first"), *[waits(f"then-{number}", "first", flow="f") for number in range(MANY)])
    exchanged = await store.exchange([succeed(await claim_one(store))], None)
    assert (exchanged.settled, exchanged.has_outbox) == (["done"], True)
    held = MANY - MAX_RELEASED
    while held:
        (depth,) = await store.depths([QUEUE], limit=2 * MANY)
        assert (depth.due, depth.held) == (MANY - held, held)
        released = await store.flush_outbox()
        assert 0 < released <= MAX_RELEASED
        held -= released
    assert await store.flush_outbox() == 0
    ran: list[str] = []
    while claimed := await claim(store, 1_000):
        ran += [one.job.id for one in claimed]
        assert await settle(store, *map(succeed, claimed)) == ["done"] * len(claimed)
    assert len(ran) == len(set(ran)) == MANY


async def test_a_chain_of_ten_thousand(harness: Harness, store_name: str) -> None:
    """Each job is enqueued before the one that it waits for."""
    store, count = harness.store, FEWER.get(store_name, MANY)
    links = [waits(f"job-{number}", f"job-{number - 1}", flow="f") for number in range(count - 1, 0, -1)]
    await put(store, *links, new("job-0"))
    (last,) = await claim(store, 1)
    for number in range(1, count):
        # As a worker does it: an exchange settles one job, and claims the job that it has released.
        exchanged = await store.exchange([succeed(last)], wish(10))
        (last,) = readable(exchanged.claimed) or await claim(store, 10)
        assert (exchanged.settled, last.job.id) == (["done"], f"job-{number}")
    assert await settle(store, succeed(last)) == ["done"]
    assert await claim(store) == []


async def test_a_claim_costs_the_same_among_held_jobs(harness: Harness, store_name: str) -> None:
    """By what the server reads, and not by time: each claim gets ten jobs."""
    store = harness.store
    read = READ[store_name]
    await put(store, new("gate", name="gate"), *[new() for _ in range(100)])

    async def cost() -> int:
        """The least of three: the first claim after a write may begin at the start, and read what is deleted."""
        costs: list[int] = []
        for _ in range(3):
            async with read(harness) as spent:
                assert len(await claim(store, 10)) == 10
            costs.append(spent())
        return min(costs)

    before = await cost()
    for first in range(0, HELD, AT_ONCE):
        await put(store, *[waits(f"held-{number}", "gate") for number in range(first, first + AT_ONCE)])
    (depth,) = await store.depths([QUEUE], limit=2 * HELD)
    assert depth.held == HELD
    after = await cost()
    assert before > 0
    assert after <= before * 1.2 + 10, f"{before} before, {after} among {HELD:,} held jobs"


# ---------------------------------------------------------------------------------------------------- what is read


@asynccontextmanager
async def _sqlite(harness: Any) -> AsyncIterator[Callable[[], int]]:
    """Steps of SQLite's virtual machine, in tens."""
    connection, ticks = harness.store._opened().write_connection, Counter[str]()
    connection.set_progress_handler(lambda: ticks.update(["step"]), 10)
    yield lambda: ticks["step"]
    connection.set_progress_handler(None, 0)


@asynccontextmanager
async def _postgres(harness: Any) -> AsyncIterator[Callable[[], int]]:
    """Pages of all tables and indexes. The claim runs in a transaction of ours, which knows what it has read."""
    from tests.kit.postgres import connected

    context, pages = harness.store.context, 0
    async with connected(harness.url) as connection:

        async def use(work: Callable[[Any], Awaitable[Any]], _: float | None = None) -> Any:
            return await work(connection)

        await connection.execute("BEGIN")
        context.use = use
        try:
            yield lambda: pages
        finally:
            del context.use
        pages = await connection.fetchval(PAGES)
        await connection.execute("COMMIT")


@asynccontextmanager
async def _redis(harness: Any) -> AsyncIterator[Callable[[], int]]:
    """Commands, those of scripts included."""
    import redis.asyncio

    calls = 0
    async with redis.asyncio.from_url(harness.url.partition("?")[0]) as client:
        await client.config_resetstat()
        yield lambda: calls
        stats = await client.info("commandstats")
        calls = sum(one["calls"] for name, one in stats.items() if not name.startswith("cmdstat_config"))


@asynccontextmanager
async def _mongo(harness: Any) -> AsyncIterator[Callable[[], int]]:
    """Entries of indexes, and documents."""
    from tests.stores.mongo_scene import examined, profiled

    async with profiled(harness.store) as done:
        yield lambda: examined(done)


READ = {"sqlite": _sqlite, "postgres": _postgres, "redis": _redis, "mongo": _mongo}
