"""Golden: adding jobs. Each step is done by Node and by us, and every key and event is compared after it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.twins import Twins

pytestmark = pytest.mark.stores("redis")


async def test_standard(both: Twins) -> None:
    await both.add("a")
    await both.add("b")


async def test_numbered(both: Twins) -> None:
    assert await both.add() == "1"
    await both.add("b")
    assert await both.add() == "3"


async def test_lifo(both: Twins) -> None:
    await both.add("a", lifo=True)
    await both.add(lifo=True)
    await both.add("c")


async def test_delayed(both: Twins) -> None:
    await both.add("a", delay=5_000)
    await both.add("b", delay=5_000)  # in the same millisecond: the sequence of the score
    await both.add("c", delay=1_000)
    await both.later(0.5)
    await both.add("d", delay=4_500)


async def test_prioritised(both: Twins) -> None:
    await both.add("a", priority=5)
    await both.add("b", priority=1)
    await both.add("c", priority=5)
    await both.add("d", priority=2_097_151)


async def test_delayed_and_prioritised(both: Twins) -> None:
    await both.add("a", delay=1_000, priority=3)
    await both.add("b", priority=3)


@pytest.mark.parametrize("about", [{}, {"delay": 1_000}, {"priority": 3}], ids=str)
async def test_an_id_that_is_taken(both: Twins, about: dict[str, Any]) -> None:
    await both.add("a", **about)
    await both.add("a", data={"to": "bob"})
    await both.add("a", delay=7_000)


async def test_bulk_with_ids(both: Twins) -> None:
    await both.add_bulk({"id": "a"}, {"id": "b", "delay": 5_000}, {"id": "c", "priority": 2}, {"id": "a"})
    await both.add_bulk({"id": "d", "data": {"to": "bob"}}, {"id": "e"})


async def test_bulk_numbered(both: Twins) -> None:
    await both.add_bulk({}, {"delay": 5_000}, {"lifo": True}, {"priority": 2}, {"id": "b"}, {})


@pytest.mark.parametrize(
    "about",
    [
        {"attempts": 1},
        {"attempts": 5, "backoff": {"type": "fixed", "delay": 250}},
        {"backoff": {"type": "exponential", "delay": 300, "jitter": 0.5}},
        {"remove_on_complete": True, "remove_on_fail": False},
        {"remove_on_complete": 5, "remove_on_fail": 7},
        {"remove_on_complete": {"age": 60}, "remove_on_fail": {"age": 60, "count": 3}},
    ],
    ids=str,
)
async def test_options(both: Twins, about: dict[str, Any]) -> None:
    await both.add("a", **about)


@pytest.mark.parametrize(
    "data", [{}, [], "text", 5, 1.5, True, {"a": {"b": [1, None, 'ü/\\"\u2028😀']}, "empty": []}], ids=str
)
async def test_data(both: Twins, data: object) -> None:
    await both.add("a", data=data)


async def test_other_names_and_queues(both: Twins) -> None:
    await both.add("a", name="send", queue="other-queue")
    await both.add("Ünïcode.id_-", name="grüße/send")
    await both.add("c", queue="third.queue", delay=1_000)


async def test_while_paused(both: Twins) -> None:
    await both.pause()
    await both.add("a")
    await both.add("b", priority=1)
    await both.add("c", delay=1_000)
    await both.resume()


async def test_while_full(both: Twins) -> None:
    await both.set_running_limit(1)
    await both.add("a")
    await both.claim()
    await both.add("b")
    await both.add("c", priority=1)
    await both.add("d", delay=1_000)
