"""We add, Node works: real processes on one queue."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

import jobmill
from tests.helpers import until
from tests.interop.scene import QUEUE, Scene, longer_than, node_place
from tests.kit.measure import best_of

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis")]


def runs(scene: Scene) -> list[str]:
    """The ids of what Node ran, in order."""
    return [event["job"] for event in scene.node.events if event["event"] == "run"]


async def test_every_kind_of_job(scene: Scene) -> None:
    await scene.node.ask("work", queue=QUEUE)
    enqueued = [
        await scene.jobs.enqueue("send", {"to": "ada"}, queue=QUEUE),
        await scene.jobs.enqueue("send", {}, queue=QUEUE, id="a-job"),
        await scene.jobs.enqueue("send", {}, queue=QUEUE, delay=0.2),
        await scene.jobs.enqueue("send", {}, queue=QUEUE, priority=3),
        *await scene.jobs.enqueue_many([scene.jobs.draft("send", {}, queue=QUEUE) for _ in range(3)]),
    ]
    for one in enqueued:
        node_id = one.id.removeprefix(f"{QUEUE}:")
        assert await one.result(timeout=20) == f"Node sent {node_id}"
        job = await one.job()
        assert (job.state, job.claims, job.errors) == ("succeeded", 1, 0)
    assert len(runs(scene)) == len(enqueued)


@pytest.mark.alone
async def test_a_delayed_job_is_not_run_early(scene: Scene) -> None:
    await scene.node.ask("work", queue=QUEUE)
    enqueued = await scene.jobs.enqueue("send", {}, queue=QUEUE, delay=0.7)
    await enqueued.result(timeout=20)
    job = await enqueued.job()
    run = await scene.node.event("run")
    late = run["at"] - (job.created_ms + 700)
    assert 0 <= late < 2000, "without the marker of the delayed job, Node would look after five seconds only"


async def test_in_order_of_priority(scene: Scene) -> None:
    enqueued = [await scene.jobs.enqueue("send", {}, queue=QUEUE, priority=n) for n in (5, 1, 5, 0, 1)]
    await scene.node.ask("work", queue=QUEUE)
    for one in enqueued:
        await one.result(timeout=20)
    assert runs(scene) == [enqueued[n].id for n in (3, 1, 4, 0, 2)]


async def test_unique(scene: Scene) -> None:
    first = await scene.jobs.enqueue("send", {}, queue=QUEUE, unique_key="once")
    second = await scene.jobs.enqueue("send", {}, queue=QUEUE, unique_key="once")
    assert (second.status, second.id) == ("duplicate", first.id)
    await scene.node.ask("work", queue=QUEUE)
    await first.result(timeout=20)
    third = await scene.jobs.enqueue("send", {}, queue=QUEUE, unique_key="once")
    await third.result(timeout=20)
    assert runs(scene) == [first.id, third.id]


async def test_retries_with_our_backoff(scene: Scene) -> None:
    await scene.node.ask("work", queue=QUEUE)

    async def longer() -> float:
        """How many times as long as asked for the longer of both waits was."""
        enqueued = await scene.jobs.enqueue(
            "flaky", {"failures": 2}, queue=QUEUE, max_attempts=3, backoff=jobmill.exponential(0.2)
        )
        assert await enqueued.result(timeout=20) == 2
        ran = [event for event in scene.node.events if event["event"] == "run" and event["job"] == enqueued.id]
        first, second, third = (event["at"] for event in ran)
        return longer_than((second - first, 200), (third - second, 400))

    assert await best_of(longer, below=2) < 2, "twice as long would be the wait of the next attempt"


async def test_three_attempts_unless_said_otherwise(scene: Scene) -> None:
    await scene.node.ask("work", queue=QUEUE)
    enqueued = await scene.jobs.enqueue("broken", {}, queue=QUEUE, backoff=0.01)
    with pytest.raises(jobmill.JobFailed, match="always broken"):
        await enqueued.result(timeout=20)
    job = await enqueued.job()
    assert (job.errors, job.claims, len(job.attempts)) == (3, 3, 3)


async def test_a_recurring_job_of_ours(scene: Scene) -> None:
    await scene.node.ask("work", queue=QUEUE)
    enqueued = await scene.jobs.enqueue("send", {"to": "ada"}, queue=QUEUE, every=0.3, key="often")
    await until(lambda: len(runs(scene)) >= 4, 20)
    (scheduler,) = await scene.node.ask("schedulers", queue=QUEUE)
    assert (scheduler["key"], scheduler["name"], scheduler["every"]) == ("send often", "send", 300)
    await scene.jobs.cancel(enqueued.id)
    assert await scene.node.ask("schedulers", queue=QUEUE) == []
    so_far = len(runs(scene))
    await asyncio.sleep(0.7)  # nothing to await: nothing may happen
    assert len(runs(scene)) <= so_far + 1


async def test_we_await_and_read_what_node_does(scene: Scene) -> None:
    await scene.node.ask("work", queue=QUEUE)
    enqueued = await scene.jobs.enqueue("slow", {"ms": 100}, queue=QUEUE)
    assert await enqueued.result(timeout=20) == 100
    assert (await scene.get(enqueued.id))["state"] == "completed"


EACH_DAY = ",".join(f"{day}#{n}" for day in range(7) for n in range(1, 6))  # no other weekday beside a # in Node


@pytest.mark.parametrize(
    "cron", ["*,0 * * * * *", "0-59/1,5 * * * * 0-6,0,7", "@every 1s", "TZ=Asia/Tokyo * * * * * *"]
)
async def test_a_recurrence_goes_on_in_node(scene: Scene, cron: str) -> None:
    """Node computes the next run from what we wrote; a rule that it cannot read would leave the run in active."""
    await scene.node.ask("work", queue=QUEUE)
    await scene.jobs.enqueue("send", {}, queue=QUEUE, key="k", cron=cron)
    await until(lambda: len(runs(scene)) >= 3)
    assert not [event for event in scene.node.events if event["event"] == "error"]


async def test_a_recurrence_that_node_cannot_express_goes_on_beside_python(scene: Scene) -> None:
    """Node runs it, and a Python worker, even one that does not know its name, adds the next run."""
    await scene.node.ask("work", queue=QUEUE)
    await scene.jobs.enqueue("other", {"a": 1}, queue=QUEUE, key="k", cron=f"* * * * * {EACH_DAY}", tenant="t")
    await until(lambda: len(runs(scene)) == 1)
    await scene.ready_worker()
    await until(lambda: len(runs(scene)) >= 2, 20)
    assert not [event for event in scene.node.events if event["event"] == "error"]
    await scene.node.ask("rest")
    job = await until(lambda: _next_run(scene))
    assert (job.payload, job.tenant, job.unique_key) == ({"a": 1}, "t", "k")
    await scene.jobs.cancel(job.id)
    await until(lambda: _forgot(scene))


async def _next_run(scene: Scene) -> jobmill.Job | None:
    return next(iter((await scene.jobs.find(queue=QUEUE, states="waiting")).jobs), None)


async def _forgot(scene: Scene) -> bool:
    async with Redis.from_url(node_place(scene.url)[0]) as redis:
        return not await redis.exists(f"{node_place(scene.url)[1]}:{QUEUE}:jobmill:rearm")
