"""Jobs that Node moves by hand: their due time is where BullMQ has them, whatever our fields say."""

from __future__ import annotations

from typing import Any

import pytest

from jobmill.core.changes import Seize
from jobmill.core.job import Job
from jobmill.core.lifecycle import DEFAULT_POLICY, Released, settle
from jobmill.core.values import Claimed, Filter, Lease
from tests.interop.conftest import BEGIN_MS
from tests.interop.twins import Twins

pytestmark = pytest.mark.stores("redis")

HOUR_MS = 3_600_000
PROMOTIONS = {"promote": ("a",), "promote_all": (), "change_delay": ("a", 1_000)}


@pytest.fixture(params=["add", "node_add"])
async def moved(request: pytest.FixtureRequest, both: Twins) -> Twins:
    """A queue with the delayed job `a`, from us or from Node."""
    await getattr(both.ours, request.param)("a", delay=HOUR_MS)
    return both


async def look(both: Twins) -> Job:
    ((job,), found) = (
        await both.ours.store.get(["mail:a"]),
        await both.ours.store.find(Filter(queue="mail", due_before_ms=both.clock.now_ms + 1)),
    )
    assert job is not None
    assert bool(found.jobs) == (job.due_ms <= both.clock.now_ms)
    return job


async def waits_in(both: Twins) -> str:
    redis, key = both.ours.redis, f"{both.ours.prefix}:mail"
    return "delayed" if await redis.zcard(f"{key}:delayed") else "wait" if await redis.llen(f"{key}:wait") else "none"


@pytest.mark.parametrize("how", PROMOTIONS)
async def test_a_promoted_job_that_is_given_back_waits(moved: Twins, how: str) -> None:
    assert (await look(moved)).due_ms == BEGIN_MS + HOUR_MS
    await getattr(moved.ours.node, how)(*PROMOTIONS[how])
    await moved.later(2)
    assert (await look(moved)).due_ms <= BEGIN_MS + 1_000
    assert await moved.ours.claim() == ["a"]
    assert moved.ours.running["a"].job.due_ms == (await look(moved)).due_ms <= BEGIN_MS + 2_000
    await moved.ours.release("a")
    assert await waits_in(moved) == "wait"
    assert (await look(moved)).due_ms <= BEGIN_MS + 2_000
    assert await moved.ours.claim() == ["a"]
    await moved.ours.complete("a")
    assert (await look(moved)).due_ms <= BEGIN_MS + 2_000


async def test_a_later_time_from_node(moved: Twins) -> None:
    await moved.ours.node.change_delay("a", 2 * HOUR_MS)
    assert (await look(moved)).due_ms == BEGIN_MS + 2 * HOUR_MS


async def test_a_promoted_job_whose_worker_in_node_died(moved: Twins) -> None:
    await moved.ours.node.promote("a")
    assert await moved.ours.node.claim() == ["a"]
    assert (await look(moved)).due_ms <= BEGIN_MS
    await moved.lose("a")
    assert await moved.ours.take_over() == ["a"]
    await moved.ours.release("a")
    assert await waits_in(moved) == "wait"


async def test_a_seized_job_waits_for_the_time_that_node_gave_it(moved: Twins) -> None:
    await moved.ours.node.change_delay("a", 2 * HOUR_MS)
    seize: dict[str, Any] = {"token": "by-hand", "worker": "console", "lease_ms": 1_000}
    assert (await moved.ours.store.change(["mail:a"], Seize(**seize))).ids == ["mail:a"]
    job = await look(moved)
    lease = Lease(job.id, "by-hand", "mail", "send", moved.clock.now_ms + 1_000)
    released = settle(Claimed(job, lease), Released(), DEFAULT_POLICY, moved.clock.now_ms)
    assert (await moved.ours.store.exchange([released], None)).settled == ["done"]
    assert await waits_in(moved) == "delayed"
    assert (await look(moved)).due_ms == BEGIN_MS + 2 * HOUR_MS
