"""Flows that Node adds, whose children and parents a Python worker runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers import until
from tests.interop.scene import Scene, versions

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis"), versions]


def flow(*children: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "parent",
        "queueName": "parents",
        "opts": {"jobId": "p"},
        "children": [{"name": "child", "queueName": "children", **child} for child in children],
    }


def work(scene: Scene) -> None:
    scene.worker("--queue", "children", "--queue", "parents")


async def test_the_parent_runs_after_its_children(scene: Scene) -> None:
    await scene.node.ask("flow", queue="parents", tree=flow(*({"data": {"value": n}} for n in range(5))))
    work(scene)
    job = await scene.ended("p", "parents")
    assert job["returnvalue"] == "all children are done"
    values = await scene.node.ask("children", queue="parents", job="p")
    assert sorted(values.values()) == [0, 1, 2, 3, 4]
    assert [note.id.partition(":")[0] for note in scene.notes()] == ["children"] * 5 + ["parents"]


async def test_a_failed_child_fails_its_parent(scene: Scene) -> None:
    bad = {"data": {"fails": True}, "opts": {"jobId": "bad", "failParentOnFailure": True}}
    await scene.node.ask("flow", queue="parents", tree=flow(bad, {"data": {}}))
    work(scene)
    job = await scene.ended("p", "parents", "failed")
    assert job["failedReason"].endswith(":children:bad failed")
    await until(lambda: len(scene.notes()) == 2)
    assert "parents:p" not in {note.id for note in scene.notes()}, "a doomed parent is not run"


@pytest.mark.parametrize(
    "option", ["continueParentOnFailure", "ignoreDependencyOnFailure", "removeDependencyOnFailure"]
)
async def test_a_failed_child_lets_its_parent_run(scene: Scene, option: str) -> None:
    bad = {"data": {"fails": True}, "opts": {"jobId": "bad", option: True}}
    await scene.node.ask("flow", queue="parents", tree=flow(bad))
    work(scene)
    await scene.ended("p", "parents")
    assert [note.id for note in scene.notes()] == ["children:bad", "parents:p"]


async def test_children_of_one_system_and_a_parent_of_the_other(scene: Scene) -> None:
    await scene.node.ask("flow", queue="parents", tree=flow(*({"data": {"value": n}} for n in range(3))))
    await scene.node.ask("work", queue="parents")
    scene.worker("--queue", "children")
    await scene.node.event("run", lambda event: event["job"] == "p")
    await scene.ended("p", "parents")
