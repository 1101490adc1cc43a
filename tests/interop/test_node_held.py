"""Held jobs beside Node: its workers, its stalled check, its flows and its cleaning leave them alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from jobmill.core.changes import Hold, Pin, Release, ReleasePin, Reschedule
from jobmill.core.due import NEVER_MS, NOW
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import Filter, after
from tests.helpers import until
from tests.interop.scene import QUEUE, Scene, node_place
from tests.interop.test_node_flows import flow

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis")]

PARENT = "parents:p"


@pytest.fixture
async def raw(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url.partition("?")[0], decode_responses=True) as client:
        yield client


async def hold(scene: Scene, id: str, **about: Any) -> None:
    assert (await scene.jobs.store.change([id], Hold(**about))).ids == [id]


async def release(scene: Scene, id: str) -> None:
    assert (await scene.jobs.store.change([id], Release())).ids == [id]


async def held_by(scene: Scene, id: str) -> tuple[str, ...] | None:
    held = (await scene.jobs.get(id)).held
    return None if held is None else held.by


async def stalled_checks(raw: Redis, base: str, number: int) -> None:
    """Wait for this many checks of Node."""
    seen: set[str] = set()

    async def enough() -> bool:
        seen.add(str(await raw.get(f"{base}:stalled-check")))
        return len(seen - {"None"}) >= number

    await until(enough, 20)


async def test_node_leaves_a_held_job_alone(scene: Scene, raw: Redis) -> None:
    base = f"{node_place(scene.url)[1]}:{QUEUE}"
    held = await scene.jobs.enqueue("send", {}, queue=QUEUE)
    urgent = await scene.jobs.enqueue("send", {}, queue=QUEUE, priority=3)
    later = await scene.jobs.enqueue("send", {}, queue=QUEUE, delay=0.1)
    theirs = f"{QUEUE}:{await scene.add()}"
    ids = [held.id, urgent.id, later.id, theirs]
    for id in ids:
        await hold(scene, id, who="ada")
    await scene.node.ask("work", queue=QUEUE, opts={"stalledInterval": 150, "lockDuration": 300})
    other = await scene.jobs.enqueue("send", {}, queue=QUEUE)
    await other.result(timeout=20)
    await stalled_checks(raw, base, 3)
    await scene.node.ask("orphans", queue=QUEUE)
    await (await scene.jobs.enqueue("send", {}, queue=QUEUE)).result(timeout=20)
    assert [await held_by(scene, id) for id in ids] == [("person",)] * 4
    assert (await scene.get(held.id))["state"] == "waiting-children"
    assert [event["job"] for event in scene.node.events if event["event"] == "run"][:1] == [other.id]
    for id in ids:
        await release(scene, id)
        node_id = id.removeprefix(f"{QUEUE}:")
        assert await scene.jobs.result(id, timeout=20) == f"Node sent {node_id}"
        assert await raw.exists(f"{base}:{node_id}:dependencies") == 0
        assert await raw.hget(f"{base}:{node_id}", "jmh") is None


async def test_a_parent_is_held_by_its_children(scene: Scene) -> None:
    await scene.node.ask("flow", queue="parents", tree=flow({"data": {}}))
    job = await scene.jobs.get(PARENT)
    assert job.held is not None
    assert (job.held.by, job.held.due, job.due_ms, job.due_at) == (("jobs",), NOW, NEVER_MS, None)
    assert [one.id for one in (await scene.jobs.store.find(Filter(held=True))).jobs] == [PARENT]
    changed = await scene.jobs.store.change([PARENT], Release())
    assert changed.refused == {PARENT: "the job is held by jobs, not by person"}


@pytest.mark.parametrize("side", ["node", "python"])
async def test_the_last_child_does_not_free_a_parent_that_a_person_holds(scene: Scene, side: str) -> None:
    await scene.node.ask("flow", queue="parents", tree=flow({"data": {"value": 7}}))
    await hold(scene, PARENT, who="ada")
    assert await held_by(scene, PARENT) == ("jobs", "person")
    if side == "node":
        await scene.node.ask("work", queue="children")
        await scene.node.ask("work", queue="parents")
    else:
        scene.worker("--queue", "children", "--queue", "parents")
    await until(lambda: _only_a_person(scene), 30)
    assert (await scene.get("p", "parents"))["state"] == "waiting-children"
    await release(scene, PARENT)
    await scene.ended("p", "parents")
    assert list((await scene.node.ask("children", queue="parents", job="p")).values()) != []


async def _only_a_person(scene: Scene) -> bool:
    return await held_by(scene, PARENT) == ("person",)


async def test_a_parent_that_is_released_first_waits_for_its_children(scene: Scene) -> None:
    await scene.node.ask("flow", queue="parents", tree=flow({"data": {}}))
    await hold(scene, PARENT)
    await release(scene, PARENT)
    assert await held_by(scene, PARENT) == ("jobs",)
    await scene.node.ask("work", queue="children")
    await scene.node.ask("work", queue="parents")
    await scene.ended("p", "parents")


async def test_a_parent_gets_another_due_time_while_it_is_held(scene: Scene) -> None:
    await scene.node.ask("flow", queue="parents", tree=flow({"data": {}}))
    assert (await scene.jobs.store.change([PARENT], Reschedule(after(3_600_000)))).ids == [PARENT]
    held = (await scene.jobs.get(PARENT)).held
    assert held is not None
    assert (held.by, held.due) == (("jobs",), after(3_600_000))
    await scene.node.ask("work", queue="children")
    await until(lambda: _is_in(scene, "delayed"), 20)
    job = await scene.jobs.get(PARENT)
    assert job.held is None
    assert 3_500_000 < job.due_ms - scene.jobs.store.now() <= 3_600_000


async def _is_in(scene: Scene, state: str) -> bool:
    return str((await scene.get("p", "parents"))["state"]) == state


@pytest.mark.parametrize("side", ["node", "python"])
async def test_a_child_that_fails_its_parent_does_so_even_if_a_person_holds_it(scene: Scene, side: str) -> None:
    bad = {"name": "broken", "data": {"fails": True}, "opts": {"jobId": "bad", "failParentOnFailure": True}}
    await scene.node.ask("flow", queue="parents", tree=flow(bad | {"name": "broken" if side == "node" else "child"}))
    await hold(scene, PARENT)
    if side == "node":
        await scene.node.ask("work", queue="children")
        await scene.node.ask("work", queue="parents")
    else:
        scene.worker("--queue", "children", "--queue", "parents")
    job = await scene.ended("p", "parents", "failed", 30)
    assert job["failedReason"].endswith(":children:bad failed")
    assert (await scene.jobs.get(PARENT)).held is None


async def test_a_parent_that_node_has_freed_can_succeed(scene: Scene, raw: Redis) -> None:
    bad = {"name": "broken", "data": {}, "opts": {"jobId": "bad", "continueParentOnFailure": True}}
    await scene.node.ask("flow", queue="parents", tree=flow(bad))
    await hold(scene, PARENT)
    await scene.node.ask("work", queue="children")
    await scene.ended("bad", "children", "failed")
    await until(lambda: _is_in(scene, "waiting"), 20)
    scene.worker("--queue", "parents")
    await scene.ended("p", "parents", timeout=30)
    assert await raw.exists(f"{node_place(scene.url)[1]}:parents:p:dependencies") == 0


async def test_a_child_that_fails_in_python_does_not_free_a_parent_that_a_person_holds(scene: Scene) -> None:
    bad = {"data": {"fails": True}, "opts": {"jobId": "bad", "continueParentOnFailure": True}}
    await scene.node.ask("flow", queue="parents", tree=flow(bad))
    await hold(scene, PARENT)
    scene.worker("--queue", "children", "--queue", "parents")
    await scene.ended("bad", "children", "failed", 30)
    assert await held_by(scene, PARENT) == ("person",)
    await release(scene, PARENT)
    await scene.ended("p", "parents", timeout=30)


async def test_node_removes_a_held_job(scene: Scene, raw: Redis) -> None:
    enqueued = await scene.jobs.enqueue("send", {}, queue=QUEUE, unique_key="k")
    await hold(scene, enqueued.id)
    await scene.node.ask("remove", queue=QUEUE, job=enqueued.id)
    base = f"{node_place(scene.url)[1]}:{QUEUE}"
    assert [key async for key in raw.scan_iter(f"{base}:{enqueued.id}*")] == []
    assert await raw.zcard(f"{base}:waiting-children") == 0
    assert await raw.llen(f"{base}:wait") == 0
    assert (await scene.jobs.enqueue("send", {}, queue=QUEUE, unique_key="k")).status == "created"


async def test_a_pinned_rule_is_what_node_follows(scene: Scene) -> None:
    yearly = await scene.jobs.enqueue("send", {}, queue=QUEUE, cron="0 0 1 1 *", key="k")
    assert (await scene.jobs.store.change([yearly.id], Pin(Recurrence(key="k", every_ms=200)))).ids == [yearly.id]
    (scheduler,) = await scene.node.ask("schedulers", queue=QUEUE)
    assert (scheduler["every"], scheduler.get("pattern")) == (200, None)
    await scene.node.ask("work", queue=QUEUE)
    for _ in range(3):
        await scene.node.event("ran")
    await scene.node.ask("rest")
    shown = (await yearly.job()).recurrence
    assert shown is not None
    assert (shown.every_ms, shown.pinned) == (200, True), "also of a run that Node has added"
    again = await scene.jobs.enqueue("send", {}, queue=QUEUE, cron="0 0 2 2 *", key="k")
    assert (again.status, again.id) == ("pinned", yearly.id)
    rule = (await yearly.job()).recurrence
    assert rule is not None
    assert rule.stated is not None
    assert (rule.every_ms, rule.pinned, rule.stated.cron) == (200, True, "0 0 2 2 *")
    assert (await scene.jobs.store.change([yearly.id], ReleasePin())).ids == [yearly.id]
    (scheduler,) = await scene.node.ask("schedulers", queue=QUEUE)
    assert (scheduler.get("every"), scheduler["pattern"]) == (None, "0 0 2 2 *")


async def test_a_scheduler_of_node_cannot_be_pinned(scene: Scene) -> None:
    about = {"scheduler": "theirs", "repeat": {"every": 3_600_000}, "template": {"name": "send"}}
    await scene.node.ask("schedule", queue=QUEUE, **about)
    id = f"{QUEUE}:repeat:theirs"
    changed = await scene.jobs.store.change([id], Pin(Recurrence(key="theirs", every_ms=200)))
    assert changed.refused == {id: "Node made this job scheduler: change it with upsertJobScheduler"}
