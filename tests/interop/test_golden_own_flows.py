"""Golden: flows that FlowProducer adds and flows that we add, which Node or we run. All keys are compared."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.scene import versions
from tests.interop.twins import Twins

pytestmark = [pytest.mark.stores("redis"), versions]

POLICIES = ["fail", "run", "now", "forget", "wait"]


def child(id: str, if_failed: str = "fail", *children: dict[str, Any], **about: Any) -> dict[str, Any]:
    made = {"id": id, "name": "child", "queue": "children", "if_failed": if_failed, **about}
    return made | ({"children": list(children)} if children else {})


def tree(*children: dict[str, Any], **about: Any) -> dict[str, Any]:
    return {"id": "p", "name": "parent", "queue": "parents", **about, "children": list(children)}


@pytest.mark.parametrize("if_failed", POLICIES)
async def test_a_flow_is_added(both: Twins, if_failed: str) -> None:
    await both.tree(tree(child("a", if_failed), child("b", if_failed, delay=5_000), child("c", if_failed, priority=3)))


@pytest.mark.parametrize("about", [{"priority": 3}, {"delay": 5_000}], ids=str)
async def test_a_parent_is_added(both: Twins, about: dict[str, Any]) -> None:
    await both.tree(tree(child("a"), **about))


async def test_generations_are_added(both: Twins) -> None:
    await both.tree(tree(child("a", "run", child("c"), child("d")), child("b", "run")))


async def test_children_complete(both: Twins) -> None:
    await both.tree(tree(child("a"), child("b", "run")))
    await both.claim(2, queue="children")
    await both.complete("a", {"a": [1]}, queue="children")
    await both.complete("b", None, queue="children")
    assert await both.claim(queue="parents") == ["p"]
    await both.complete("p", 3, queue="parents")


@pytest.mark.parametrize("if_failed", POLICIES)
async def test_a_child_fails(both: Twins, if_failed: str) -> None:
    await both.tree(tree(child("a", if_failed, attempts=1), child("b", if_failed)))
    await both.claim(2, queue="children")
    await both.error("a", queue="children")
    if if_failed != "now":
        await both.complete("b", 1, queue="children")
    if if_failed != "wait":
        assert await both.claim(queue="parents") == ["p"]


async def test_grandchildren_complete(both: Twins) -> None:
    both.events_by_job = True  # a job completes before the one is free that waited for it; in Node it is the other way
    await both.tree(tree(child("a", "run", child("c"), child("d")), child("b", "run")))
    await both.claim(3, queue="children")
    for id in "bcd":
        await both.complete(id, id, queue="children")
    assert await both.claim(queue="children") == ["a"]
    await both.complete("a", queue="children")
    assert await both.claim(queue="parents") == ["p"]


async def test_paused_queues(both: Twins) -> None:
    """Version 5 has the jobs of paused queues in another list."""
    await both.pause(queue="parents")
    await both.pause(queue="children")
    await both.tree(tree(child("a"), child("b", "run", priority=3)))
    await both.resume(queue="children")
    await both.claim(2, queue="children")
    await both.complete("a", queue="children")
    await both.complete("b", queue="children")
    await both.resume(queue="parents")
    assert await both.claim(queue="parents") == ["p"]
