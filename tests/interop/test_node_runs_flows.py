"""Flows that Jobmill enqueues, whose jobs Node runs; and what the port says of flows that Node adds."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from jobmill.core.changes import Remove
from jobmill.core.flows import After, Dependent, IfFailed
from jobmill.core.job import JobOptions
from jobmill.core.lifecycle import DEFAULT_POLICY, Suspended
from jobmill.core.lifecycle import settle as decide
from jobmill.core.values import NewJob
from jobmill.testing.contract.support import claim_one, fail, settle, succeed
from tests.helpers import until
from tests.interop.node_side import FAILURES
from tests.interop.scene import Scene, versions

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis"), versions]

POLICIES: list[IfFailed] = ["fail", "run", "now", "forget", "wait"]


def job(id: str, *after: str, name: str = "send", queue: str = "top", if_failed: IfFailed = "fail") -> NewJob:
    return NewJob(
        id=id,
        name=name,
        queue=queue,
        payload_json=b"{}",
        options=JobOptions(max_attempts=1),
        after=tuple(After(one, if_failed) for one in after),
    )


def step(id: str, *after: str, **about: Any) -> NewJob:
    return job(id, *after, queue="steps", **about)


async def work(scene: Scene, *queues: str) -> None:
    for queue in queues or ("top", "steps"):
        await scene.node.ask("work", queue=queue)


async def flush_until(scene: Scene, id: str, state: str = "completed") -> dict[str, Any]:
    """A job as Node sees it in this state. Meanwhile the relays are told, as a worker of ours does."""

    async def has_ended() -> bool:
        await scene.jobs.store.flush_outbox()
        return bool((await scene.get(id, "top"))["state"] == state)

    await until(has_ended, 20)
    return await scene.get(id, "top")


async def edges(scene: Scene, id: str) -> dict[str, str]:
    return {edge.id.rpartition(":")[2]: edge.state for edge in await scene.jobs.store.dependencies(id)}


async def test_node_runs_a_tree(scene: Scene) -> None:
    store = scene.jobs.store
    await store.enqueue([job("last", "middle", "c"), job("middle", "a", "b"), step("a"), step("b"), step("c")])
    assert await scene.node.ask("tree", queue="top", job="last") == [
        "last",
        [["c", []], ["middle", [["a", []], ["b", []]]]],
    ]
    await work(scene)
    await scene.ended("last", "top")
    values = await scene.node.ask("children", queue="top", job="middle")
    assert sorted(values.values()) == ["Node sent a", "Node sent b"]
    results = [msgspec.json.decode(edge.result_json or b"null") for edge in await store.dependencies("last")]
    assert results == ["Node sent middle", "Node sent c"]
    assert await store.dependents("a") == [Dependent(id="middle", state="succeeded")]


@pytest.mark.parametrize("if_failed", POLICIES)
async def test_node_fails_a_dependency(scene: Scene, if_failed: IfFailed) -> None:
    await scene.jobs.store.enqueue([job("p", "bad", if_failed=if_failed), step("bad", name="broken")])
    await work(scene)
    await scene.ended("bad", "steps", "failed")
    states = {"fail": "failed", "wait": "waiting-children"}
    parent = await scene.ended("p", "top", states.get(if_failed, "completed"))
    if if_failed == "fail":
        assert parent["failedReason"].endswith(":steps:bad failed")
    if if_failed in ("run", "now"):
        ignored = await scene.node.ask("ignored", queue="top", job="p")
        assert list(ignored.values()) == ["always broken"]
    (edge,) = await scene.jobs.store.dependencies("p")
    assert (edge.id, edge.if_failed, edge.state, edge.error) == ("bad", if_failed, "failed", "always broken")


async def test_node_runs_a_diamond(scene: Scene) -> None:
    """Two jobs wait for one that Node runs: a worker of ours tells them."""
    store = scene.jobs.store
    await store.enqueue([step("a"), job("left", "a"), job("right", "a"), job("last", "left", "right")])
    assert await scene.node.ask("tree", queue="top", job="last") == [
        "last",
        [["left", [["a", []]]], ["right", [["a", []]]]],
    ]
    await work(scene)
    await scene.ended("a", "steps")
    assert (await scene.get("left", "top"))["state"] == "waiting-children", "until somebody tells it"
    await flush_until(scene, "last")
    for id in ("left", "right"):
        assert list((await scene.node.ask("children", queue="top", job=id)).values()) == ["Node sent a"]
    assert sorted(one.id for one in await store.dependents("a")) == ["left", "right"]


async def test_node_fails_a_diamond(scene: Scene) -> None:
    """Each of the jobs that wait for one has its own policy."""
    await scene.jobs.store.enqueue(
        [
            step("bad", name="broken"),
            job("fails", "bad"),
            job("runs", "bad", if_failed="run"),
            job("waits", "bad", if_failed="wait"),
        ]
    )
    await work(scene)
    await flush_until(scene, "runs")
    await flush_until(scene, "fails", "failed")
    assert (await scene.get("waits", "top"))["state"] == "waiting-children"
    for id in ("fails", "runs", "waits"):
        assert await edges(scene, id) == {"bad": "failed"}


async def test_node_removes_a_job_that_two_wait_for(scene: Scene) -> None:
    """As in BullMQ, they run without it."""
    await scene.jobs.store.enqueue([step("a"), job("left", "a"), job("right", "a")])
    await scene.node.ask("remove", queue="steps", job="a")
    await work(scene, "top")
    for id in ("left", "right"):
        await flush_until(scene, id)


async def test_a_worker_of_ours_finds_what_node_has_ended(scene: Scene) -> None:
    await scene.ready_worker()
    await scene.jobs.store.enqueue(
        [step("a"), job("left", "a", name="send", queue="mail"), job("right", "a", name="send", queue="mail")]
    )
    await work(scene, "steps")
    for id in ("left", "right"):
        await scene.ended(id, "mail", timeout=8)  # an idle claim finds them; the loop that looks now and then is slower
    assert sorted(note.id for note in scene.notes()) == ["left", "right"]


async def test_node_runs_the_children_of_a_suspended_run(scene: Scene) -> None:
    store = scene.jobs.store
    await store.enqueue([job("p")])
    claimed = await claim_one(store, queues=("top",))
    children = (step("p.0"), step("p.1", name="broken"))
    assert await settle(store, decide(claimed, Suspended(children=children), DEFAULT_POLICY, 0)) == ["done"]
    assert (await scene.get("p", "top"))["state"] == "waiting-children"
    await work(scene, "steps")
    await scene.ended("p", "top", "waiting")
    assert await edges(scene, "p") == {"p.0": "succeeded", "p.1": "failed"}
    again = await claim_one(store, queues=("top",))
    assert (again.job.id, again.job.errors, again.job.deferred_error) == ("p", 0, None)
    assert await settle(store, succeed(again, 1)) == ["done"]
    await scene.ended("p", "top")


# ---------------------------------------------------------------------------------------------------- Node's flows


@pytest.mark.parametrize("if_failed", POLICIES)
async def test_the_edges_of_a_flow_of_node(scene: Scene, if_failed: IfFailed) -> None:
    store = scene.jobs.store
    opts = FAILURES[if_failed]
    children = [{"name": "send", "queueName": "steps", "data": {}, "opts": {"jobId": id, **opts}} for id in ("a", "b")]
    tree = {"name": "send", "queueName": "top", "data": {}, "opts": {"jobId": "p"}, "children": children}
    await scene.node.ask("flow", tree=tree)
    assert (await store.get(["top:p"]))[0].dependencies == 2  # type: ignore[union-attr]
    assert [(one.id, one.number, one.if_failed, one.state) for one in await store.dependencies("top:p")] == [
        ("steps:a", 0, if_failed, "pending"),
        ("steps:b", 1, if_failed, "pending"),
    ]
    assert await store.dependents("steps:a") == [Dependent(id="top:p", if_failed=if_failed)]
    claimed = {one.job.id: one for one in [await claim_one(store, queues=("steps",)) for _ in "ab"]}
    assert await settle(store, succeed(claimed["steps:a"], 5)) == ["done"]
    assert await settle(store, fail(claimed["steps:b"], "no luck")) == ["done"]
    good, *others = await store.dependencies("top:p")
    assert (good.state, good.result_json) == ("succeeded", msgspec.Raw(b"5"))
    # BullMQ does not keep a dependency that it forgets.
    assert [(bad.state, bad.error) for bad in others] == ([] if if_failed == "forget" else [("failed", "no luck")])
    assert [one.state for one in await store.dependents("steps:b")] == ["failed"]


async def test_our_job_waits_for_a_child_of_a_flow_of_node(scene: Scene) -> None:
    """Node's parent and ours wait for the same job: both get its result."""
    store = scene.jobs.store
    child = {"name": "send", "queueName": "steps", "data": {}, "opts": {"jobId": "a"}}
    tree = {"name": "send", "queueName": "top", "data": {}, "opts": {"jobId": "p"}, "children": [child]}
    await scene.node.ask("flow", tree=tree)
    await store.enqueue([job("ours", "steps:a")])
    assert sorted(one.id for one in await store.dependents("steps:a")) == ["ours", "top:p"]
    await work(scene)
    for id in ("p", "ours"):
        await flush_until(scene, id)
        assert list((await scene.node.ask("children", queue="top", job=id)).values()) == ["Node sent a"]
    assert (await store.change(["ours"], Remove())).ids == ["ours"]
    assert (await store.get(["steps:a"]))[0] is not None


async def test_flushing_beside_node(scene: Scene) -> None:
    """Many diamonds, two that flush at once: each job runs once."""
    store, count = scene.jobs.store, 40
    for n in range(count):
        await store.enqueue(
            [step(f"a{n}"), job(f"l{n}", f"a{n}"), job(f"r{n}", f"a{n}"), job(f"z{n}", f"l{n}", f"r{n}")]
        )
    await work(scene)

    async def are_done() -> bool:
        await asyncio.gather(store.flush_outbox(), store.flush_outbox())
        return (await scene.counts("top")).get("completed") == 3 * count

    await until(are_done, 30)
    assert await scene.counts("top") == {"completed": 3 * count}
