"""The measure `operations`: a small crowd of jobs has the states that it should have, and every call is timed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from msgspec import structs

import jobmill
from bench.clocks import Crowd
from bench.figures import Figure, Results
from bench.grounds import Grounds
from bench.lab import QUICK, Lab, Run
from bench.measures import BARE, CORES, EACH, HOW, OTHERS, P95, TOGETHER, flows, operations
from bench.targets import verdicts
from jobmill.core.values import Depth

STORES = ("memory", "sqlite", "postgres", "redis", "mongo")
SHARED = STORES[1:]


@pytest.fixture(scope="module")
def grounds() -> Iterator[Grounds]:
    with Grounds(None) as made:
        yield made


def _depths(url: str) -> list[Depth]:
    async def read() -> list[Depth]:
        async with jobmill.connect(url) as client:
            return await client.store.depths()

    return asyncio.run(read())


@pytest.mark.slow
@pytest.mark.parametrize("store", SHARED)
def test_a_crowd_has_jobs_in_all_states(grounds: Grounds, store: str) -> None:
    ground = grounds[store]
    with ground.fresh(ground.ours) as url:
        ground.crowd(url, [Crowd(queue="a", final=400), Crowd(queue="a", waiting=90, running=10)])
        (depth,) = _depths(url)
    assert (depth.due + depth.later, depth.later, depth.running) == (90, 10, 10)
    assert (depth.succeeded, depth.failed) == (396, 4)


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_each_operation_is_timed_beside_a_bare_query(grounds: Grounds, store: str) -> None:
    results, name = Results(), f"{store} operations"
    scale = structs.replace(QUICK, crowd=2_000, looks=2, rounds=1)
    run = Run(
        scale=scale, grounds=grounds, results=results, seed=1, peers=(), progress=lambda _: None, began=time.monotonic()
    )
    operations(Lab(run, name, grounds[store], 60))
    assert not results.faults
    timed = [one for one in results.of(name, P95) if one.who == "jobmill"]
    shapes = {one.what.partition("; ")[2] for one in timed}
    assert len(shapes) == 2
    for shape in shapes:
        called = {one.what.partition(";")[0] for one in timed if one.what.endswith(shape)}
        assert {"depths", "workers", "page of 50: waiting, in claim order", "stats"} <= called
        assert {"dashboard /jobs/ID", "dashboard /flows", "dashboard /flows/FLOW"} <= called
        assert results.get(name, f"bare query; {shape}", BARE, P95) is not None
    assert all(value > 0 for one in timed for value in one.values)
    assert len(judged := verdicts(results, [name])) == 5
    assert "–" not in {one.word for one, _ in judged}


@pytest.mark.slow
@pytest.mark.parametrize("store", SHARED)
def test_jobs_that_others_wait_for_are_compared_with_plain_ones(grounds: Grounds, store: str) -> None:
    results, name = Results(), f"{store} flows"
    scale = structs.replace(QUICK, rounds=1)
    run = Run(
        scale=scale, grounds=grounds, results=results, seed=1, peers=(), progress=lambda _: None, began=time.monotonic()
    )
    flows(Lab(run, name, grounds[store], 60))
    assert not results.faults
    assert {one.what for one in results.of(name, TOGETHER)} == {f"{how}, {what}" for how in HOW for what in EACH}
    assert len(judged := verdicts(results, [name])) == 6
    assert "–" not in {one.word for one, _ in judged}


@pytest.mark.parametrize(("cores", "word"), [(0.05, "missed"), (1.2, "reported")])
def test_a_busy_machine_is_not_judged(cores: float, word: str) -> None:
    results = Results()
    for what, who, unit, value in (("depths; 1 queue", "jobmill", P95, 25.0), ("; 1 queue", OTHERS, CORES, cores)):
        results.figures.append(Figure(measure="redis operations", what=what, who=who, unit=unit, values=[value]))
    judged = {one.what: one.word for one, _ in verdicts(results, ["redis operations"])}
    assert judged["depths(), p95"] == word
