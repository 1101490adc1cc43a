"""Golden: flows that Node added, whose children and parents are settled by Node and by us. All keys are compared."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.scene import versions
from tests.interop.twins import Twins

pytestmark = [pytest.mark.stores("redis"), versions]

PARENT = {"name": "parent", "queueName": "parents", "data": {"n": 1}}
FAILURES: dict[str, dict[str, Any]] = {
    "fails the parent": {"failParentOnFailure": True},
    "the parent goes on": {"continueParentOnFailure": True},
    "the dependency is ignored": {"ignoreDependencyOnFailure": True},
    "the dependency is removed": {"removeDependencyOnFailure": True},
    "nothing": {},
}


def child(id: str, *children: dict[str, Any], **opts: Any) -> dict[str, Any]:
    said = {"name": "child", "queueName": "children", "data": {}, "opts": {"jobId": id, **opts}}
    return said | ({"children": list(children)} if children else {})


def flow(*children: dict[str, Any], **opts: Any) -> dict[str, Any]:
    return PARENT | {"opts": {"jobId": "p", **opts}, "children": list(children)}


@pytest.mark.parametrize("opts", [{}, {"priority": 3}, {"delay": 5_000}, {"lifo": True}], ids=str)
async def test_children_complete(both: Twins, opts: dict[str, Any]) -> None:
    await both.flow(flow(child("a"), child("b"), **opts))
    await both.claim(2, queue="children")
    await both.complete("a", {"a": [1]}, queue="children")
    await both.complete("b", None, queue="children")
    await both.later(5)
    assert await both.claim(queue="parents") == ["p"]
    await both.complete("p", 3, queue="parents")


@pytest.mark.parametrize("how", FAILURES)
async def test_a_child_fails(both: Twins, how: str) -> None:
    await both.flow(flow(child("a", **FAILURES[how]), child("b", **FAILURES[how])))
    await both.claim(2, queue="children")
    await both.error("a", queue="children")
    await both.complete("b", 1, queue="children")
    if how != "nothing":
        assert await both.claim(queue="parents") == ["p"]
        await both.complete("p", 3, queue="parents")


@pytest.mark.parametrize("how", FAILURES)
async def test_the_only_child_fails_in_two_attempts(both: Twins, how: str) -> None:
    await both.flow(flow(child("a", attempts=2, **FAILURES[how])))
    for _ in range(2):
        await both.claim(queue="children")
        await both.error("a", queue="children")


async def test_grandchildren_complete(both: Twins) -> None:
    await both.flow(flow(child("a", child("c"), child("d")), child("b")))
    assert set(await both.claim(3, queue="children")) == {"b", "c", "d"}
    for id in "bcd":
        await both.complete(id, id, queue="children")
    assert await both.claim(queue="children") == ["a"]
    await both.complete("a", queue="children")
    assert await both.claim(queue="parents") == ["p"]
    await both.complete("p", queue="parents")


async def test_a_failure_goes_up_through_the_generations(both: Twins) -> None:
    await both.flow(flow(child("a", child("c", failParentOnFailure=True), failParentOnFailure=True)))
    assert await both.claim(queue="children") == ["c"]
    await both.error("c", queue="children")
    assert await both.claim(queue="children") == ["a"]
    await both.complete("a", queue="children")
    assert await both.claim(queue="parents") == ["p"]
    await both.complete("p", queue="parents")


async def test_a_child_that_leaves_at_once(both: Twins) -> None:
    await both.flow(flow(child("a", removeOnComplete=True), child("b", removeOnFail=True, failParentOnFailure=True)))
    await both.claim(2, queue="children")
    await both.complete("a", queue="children")
    await both.error("b", queue="children")


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_parent_runs_before_a_child_is_finished(both: Twins, attempts: int) -> None:
    await both.flow(flow(child("a", continueParentOnFailure=True), child("b"), attempts=attempts))
    await both.claim(2, queue="children")
    await both.error("a", queue="children")
    assert await both.claim(queue="parents") == ["p"]
    await both.complete("p", queue="parents")
    await both.complete("b", queue="children")
    assert await both.claim(queue="parents") == (["p"] if attempts == 2 else [])
    if attempts == 2:
        await both.complete("p", queue="parents")


async def test_a_child_fails_while_its_parent_runs(both: Twins) -> None:
    bad = child("b", failParentOnFailure=True)
    await both.flow(flow(child("a", continueParentOnFailure=True), bad, attempts=3))
    await both.claim(2, queue="children")
    await both.error("a", queue="children")
    assert await both.claim(queue="parents") == ["p"]
    await both.error("b", queue="children")
    await both.complete("p", queue="parents")


async def test_finished_children_leave_before_their_parent_runs(both: Twins) -> None:
    bad = {"removeOnFail": 1, "ignoreDependencyOnFailure": True}
    await both.flow(flow(*(child(id, removeOnComplete={"count": 1}, **bad) for id in "abcdef")))
    await both.claim(6, queue="children")
    for id in "abc":
        await both.complete(id, id, queue="children")
    for id in "de":
        await both.error(id, queue="children")
    await both.complete("f", 6, queue="children")
    assert await both.claim(queue="parents") == ["p"]
    values = await both.ours.redis.hvals(f"{both.ours.prefix}:parents:p:processed")
    assert sorted(values) == [b'"a"', b'"b"', b'"c"', b"6"]
    await both.complete("p", queue="parents")


@pytest.mark.parametrize("how", FAILURES)
async def test_finished_children_are_removed(both: Twins, how: str) -> None:
    await both.flow(flow(child("a", **FAILURES[how]), child("b"), child("c")))
    await both.claim(2, queue="children")
    await both.error("a", queue="children")
    await both.complete("b", queue="children")
    for id in "ab":
        await both.remove(id, queue="children")


async def test_a_failed_child_is_requeued(both: Twins) -> None:
    await both.flow(flow(child("a", ignoreDependencyOnFailure=True), child("b")))
    await both.claim(2, queue="children")
    await both.error("a", queue="children")
    await both.requeue("a", queue="children")
    await both.claim(queue="children")
    await both.complete("a", queue="children")
    await both.complete("b", queue="children")


@pytest.mark.parametrize("ids", ["a", "ab"])
async def test_children_are_removed(both: Twins, ids: str) -> None:
    await both.flow(flow(child("a"), child("b")))
    for id in ids:
        await both.remove(id, queue="children")


async def test_a_paused_parent_queue(both: Twins) -> None:
    await both.pause(queue="parents")
    await both.flow(flow(child("a")))
    await both.claim(queue="children")
    await both.complete("a", queue="children")
    await both.resume(queue="parents")


async def test_the_parent_is_removed(both: Twins) -> None:
    await both.flow(flow(child("a"), child("b")))
    await both.claim(queue="children")
    await both.complete("a", queue="children")
    await both.remove("p", queue="parents")
