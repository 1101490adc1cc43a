"""Node adds, we work: real processes on one queue."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from redis.asyncio import Redis

from tests.helpers import until
from tests.interop.scene import QUEUE, Scene, longer_than, node_place
from tests.kit.measure import best_of

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis")]


async def test_every_kind_of_job(scene: Scene) -> None:
    await scene.ready_worker("--name", "py-1")
    ids = {
        "standard": await scene.add(),
        "lifo": await scene.add(lifo=True),
        "custom id": await scene.add(jobId="a-job"),
        "delayed": await scene.add(delay=200),
        "prioritised": await scene.add(priority=7),
        "data that is no object": await scene.add("send", {"to": "ada"}),
    }
    for id in ids.values():
        job = await scene.ended(id)
        assert job["returnvalue"] == f"Python sent {id}"
        assert (job["attemptsMade"], job["processedBy"]) == (1, "py-1")
    runs = [note.id for note in scene.notes()]
    assert sorted(runs) == sorted(ids.values())
    assert await scene.counts() == {"completed": len(ids)}


@pytest.mark.alone
async def test_a_delayed_job_is_not_run_early(scene: Scene) -> None:
    await scene.ready_worker()

    async def late() -> float:
        id = await scene.add(delay=700)
        job = await scene.ended(id)
        (at_ms,) = (note.at_ms for note in scene.notes() if note.id == id)
        after = at_ms - (job["timestamp"] + 700)
        assert after >= 0
        return float(after)

    assert await best_of(late, below=100) < 100


async def test_smaller_priorities_first_and_jobs_without_one_before_all(scene: Scene) -> None:
    ids = [await scene.add(priority=priority) for priority in (5, 1, 5, 2_097_151, 1)]
    ids.append(await scene.add())
    scene.worker("--concurrency", "1")
    await until(lambda: len(scene.notes()) == 6, 30)
    assert [note.id for note in scene.notes()] == [ids[n] for n in (5, 1, 4, 0, 2, 3)]


async def test_unique(scene: Scene) -> None:
    first = await scene.add(deduplication={"id": "once"})
    await scene.add(deduplication={"id": "once"})
    assert await scene.counts() == {"waiting": 1}
    scene.worker()
    await scene.ended(first)
    again = await scene.add(deduplication={"id": "once"})
    await scene.ended(again)
    assert [note.id for note in scene.notes()] == [first, again]


async def test_retries_with_nodes_own_backoff(scene: Scene) -> None:
    await scene.ready_worker()

    async def longer() -> float:
        """How many times as long as asked for the longer of both waits was."""
        id = await scene.add("flaky", {"failures": 2}, attempts=3, backoff={"type": "exponential", "delay": 200})
        job = await scene.ended(id)
        assert (job["returnvalue"], job["attemptsMade"]) == (2, 3)
        assert job["failedReason"] == "attempt 2 is no good"
        first, second, third = (note.at_ms for note in scene.notes() if note.id == id)
        return longer_than((second - first, 200), (third - second, 400))

    assert await best_of(longer, below=2) < 2, "twice as long would be the wait of the next attempt"


async def test_without_attempts_nodes_job_has_one(scene: Scene) -> None:
    scene.worker()
    await scene.node.ask("listen", queue=QUEUE)
    id = await scene.add("broken")
    job = await scene.ended(id, state="failed")
    assert (job["failedReason"], job["attemptsMade"]) == ("always broken", 1)
    assert (await scene.jobs.get(f"{QUEUE}:{id}")).error == "RuntimeError: always broken"
    (stack,) = job["stacktrace"]
    assert "Traceback" in stack
    event = await scene.node.event("failed")
    assert (event["job"], event["reason"]) == (id, "always broken")


async def test_as_many_tracebacks_as_node_keeps(scene: Scene) -> None:
    scene.worker()
    for limit in (0, 2):
        id = await scene.add("broken", attempts=3, stackTraceLimit=limit)
        job = await scene.ended(id, state="failed")
        assert (job["attemptsMade"], len(job["stacktrace"])) == (3, limit)


async def test_a_scheduler_of_nodes(scene: Scene) -> None:
    await scene.ready_worker()
    await scene.node.ask(
        "schedule", queue=QUEUE, scheduler="often", repeat={"every": 300, "limit": 4}, template={"name": "send"}
    )
    await until(lambda: len(scene.notes()) == 4, 20)
    await until(lambda: scene.counts(), 20)
    assert await scene.counts() == {"completed": 4}
    url, prefix = node_place(scene.url)
    async with Redis.from_url(url, decode_responses=True) as redis:
        ids = await redis.zrange(f"{prefix}:{QUEUE}:completed", 0, -1)
    due = sorted(int(str(id).rpartition(":")[2]) for id in ids)
    assert all(note.at_ms >= at for note, at in zip(scene.notes(), due, strict=True))
    gaps = [later - sooner for sooner, later in pairwise(due)]
    assert min(gaps) == 300, gaps
    assert not any(gap % 300 for gap in gaps), "a worker that was late leaves occurrences out"


async def test_node_awaits_hears_and_reads_what_we_do(scene: Scene) -> None:
    await scene.node.ask("listen", queue=QUEUE)
    await scene.ready_worker()
    id = await scene.add("send", {"to": "log"})
    assert await scene.node.ask("wait", queue=QUEUE, job=id) == f"Python sent {id}"
    progress = await scene.node.event("progress")
    assert (progress["job"], progress["data"]) == (id, 50)
    assert await scene.node.ask("logs", queue=QUEUE, job=id) == ["half way"]


async def test_node_awaits_a_job_that_fails_with_us(scene: Scene) -> None:
    await scene.node.ask("listen", queue=QUEUE)
    await scene.ready_worker()
    id = await scene.add("broken")
    with pytest.raises(Exception, match="always broken"):
        await scene.node.ask("wait", queue=QUEUE, job=id)


async def test_a_limit_that_node_raises_reaches_a_sleeping_worker(scene: Scene) -> None:
    await scene.node.ask("limit", queue=QUEUE, value=1)
    await scene.ready_worker()
    await scene.add("slow", {"ms": 60_000})
    await until(lambda: len(scene.notes()) == 1)
    limit = 1

    async def took() -> float:
        nonlocal limit
        await scene.add("slow", {"ms": 60_000})
        limit += 1
        began = time.monotonic()
        await scene.node.ask("limit", queue=QUEUE, value=limit)
        await until(lambda: len(scene.notes()) == limit, 20)
        return time.monotonic() - began

    assert await best_of(took, below=2.5) < 2.5, "a worker looks by itself after five seconds"
