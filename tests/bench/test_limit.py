"""The bare loops of the benchmark: they send what the store would send, and what they settle is settled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench import ceiling
from bench.child import start
from bench.figures import RATE, Ran, Results
from bench.measures import limit
from bench.metering import followed
from bench.ours.noop import Noops, noops
from bench.peers import bare_postgres, bare_redis
from jobmill.client.client import connect
from jobmill.core.lifecycle import DEFAULT_POLICY, Succeeded, settle
from jobmill.core.values import Claim, Claimed, Settlement
from jobmill.stores.postgres.settle import parameters
from jobmill.stores.redis.settle import settle_requests

pytestmark = pytest.mark.slow

JOBS = 230


@asynccontextmanager
async def filled(url: str) -> AsyncIterator[Noops]:
    client = connect(url)
    await client.store.migrate()
    await client.close()
    async with noops(url) as ours:
        await ours.fill(JOBS)
        yield ours


async def settlement(url: str, token: str) -> Settlement:
    """What our worker would say of a job that it ran."""
    claim = Claim(queues=("default",), names={"noop": 1}, n=1, lease_ms=60_000, worker="bench", token=token)
    async with filled(url) as ours:
        (claimed,) = (await ours.client.store.exchange([], claim)).claimed
        assert isinstance(claimed, Claimed)
        return settle(claimed, Succeeded(), DEFAULT_POLICY, ours.client.store.now())


async def drained(store: str, url: str, flights: int) -> tuple[Ran, dict[str, int]]:
    """What the loop says, and in which states the jobs are afterwards."""
    async with filled(url) as ours:
        child = start(limit.BARE[store], url=url, batch=50 // flights, flights=flights)
        ran, _, _ = followed(child, lambda: None)
        return ran, {one.state: one.count for one in await ours.client.count()}


@pytest.mark.stores("postgres")
@pytest.mark.parametrize("flights", limit.FLIGHTS)
async def test_on_postgres_every_job_is_settled_once(postgres_url: str, flights: int) -> None:
    ran, states = await drained("postgres", postgres_url, flights)
    assert ran.jobs == JOBS
    assert states == {"succeeded": JOBS}


@pytest.mark.stores("redis")
@pytest.mark.parametrize("flights", limit.FLIGHTS)
async def test_on_redis_every_job_is_settled_once(redis_url: str, flights: int) -> None:
    ran, states = await drained("redis", redis_url, flights)
    assert ran.jobs == JOBS
    assert states == {"succeeded": JOBS}


@pytest.mark.stores("mongo")
@pytest.mark.parametrize("flights", limit.FLIGHTS)
async def test_on_mongo_every_job_is_settled_once(mongo_url: str, flights: int) -> None:
    ran, states = await drained("mongo", mongo_url, flights)
    # Two exchanges of each flight are the store's own, before the clock runs: what they send is what is sent later.
    assert ran.jobs == JOBS - 100
    assert states == {"succeeded": JOBS}


@pytest.mark.stores("postgres")
async def test_on_postgres_a_settlement_is_sent_as_the_store_sends_it(postgres_url: str) -> None:
    one = await settlement(postgres_url, "t")
    assert bare_postgres.settled([one.lease.id], "t") == parameters([one], {one.lease.queue})
    assert bare_postgres.settled([], "t") == parameters([], set())


@pytest.mark.stores("redis")
async def test_on_redis_a_settlement_is_sent_as_the_store_sends_it(redis_url: str) -> None:
    one = await settlement(redis_url, bare_redis.TOKEN)
    plain, others, _ = settle_requests([one], now_ms=0, feed_on=False)
    assert (plain, others) == ([bare_redis.settled(plain[0][0])], [])


def test_the_better_of_the_loops_is_the_limit() -> None:
    results = Results()
    for who, what, rate in (
        ("jobmill on Redis", limit.WORKER, 30_000),
        ("bare loop on Redis", "1 in flight, 50 a call", 40_000),
        ("bare loop on Redis", "2 in flight, 25 a call", 60_000),
        (limit.CEILING, ceiling.what(1), 20_000),
    ):
        results.add(limit.NAME, what, who, RATE, rate)
    loop, cheapest = limit.verdicts(results)
    assert "2 in flight" in loop.what
    assert [loop.measured, cheapest.measured] == ["0.5 x", "1.5 x"]


@pytest.mark.stores("redis")
def test_what_redis_benchmark_says_is_understood(redis_url: str) -> None:
    program = ceiling.program()
    if program is None:
        pytest.skip("no redis-benchmark on this machine")
    reached = ceiling.measure(program, redis_url, 16)
    assert 0 < reached.jobs < reached.pings


def test_a_program_beside_the_server_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "valkey-benchmark").write_text("#!/bin/sh\n")
    (tmp_path / "valkey-benchmark").chmod(0o755)
    found = ceiling.program()
    assert found is not None
    assert found.name in ceiling.PROGRAMS
