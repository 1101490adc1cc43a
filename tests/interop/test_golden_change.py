"""Golden: changes of jobs that nobody runs. Every key and event is compared after each step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.twins import Twins

pytestmark = pytest.mark.stores("redis")

PLACES = {"wait": {}, "delayed": {"delay": 60_000}, "prioritized": {"priority": 3}}


@pytest.mark.parametrize("about", [{}, {"priority": 2}], ids=str)
async def test_promote(both: Twins, about: dict[str, Any]) -> None:
    await both.add("a", delay=5_000, **about)
    await both.add("b", delay=60_000)
    await both.promote("a")
    assert await both.claim() == ["a"]


async def test_promote_all(both: Twins) -> None:
    await both.add("a", delay=9_000)
    await both.add("b", delay=5_000)
    await both.add("c", delay=7_000, priority=1)
    await both.promote_all()


async def test_promote_while_paused(both: Twins) -> None:
    await both.add("a", delay=9_000)
    await both.pause()
    await both.promote("a")


async def test_change_delay(both: Twins) -> None:
    await both.add("a", delay=5_000)
    await both.add("b", delay=60_000)
    await both.later(1)
    await both.change_delay("a", 90_000)
    await both.change_delay("b", 1_000)


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("after", [0, 1, 7])
async def test_change_priority(both: Twins, before: int, after: int) -> None:
    about = {"priority": before} if before else {}
    await both.add("a", **about)
    await both.add("b", **about)
    await both.change_priority("a", after)


async def test_change_priority_of_a_delayed_job(both: Twins) -> None:
    await both.add("a", delay=1_000)
    await both.change_priority("a", 4)
    await both.later(1)
    assert await both.claim() == ["a"]


@pytest.mark.parametrize("place", PLACES)
async def test_remove(both: Twins, place: str) -> None:
    await both.add("a", **PLACES[place])
    await both.add("b", **PLACES[place])
    await both.remove("a")
    await both.remove("b")


async def test_remove_what_is_finished(both: Twins) -> None:
    await both.add("a")
    await both.add("b", attempts=1)
    await both.claim(2)
    await both.log("a", "a line")
    await both.complete("a")
    await both.error("b")
    await both.remove("a")
    await both.remove("b")


@pytest.mark.parametrize("about", [{}, {"priority": 2}], ids=str)
async def test_requeue_what_failed(both: Twins, about: dict[str, Any]) -> None:
    await both.add("a", attempts=2, backoff={"type": "fixed", "delay": 500}, **about)
    await both.claim()
    await both.error("a")
    await both.later(0.5)
    await both.claim()
    await both.error("a")
    await both.later(1)
    await both.requeue("a")
    assert await both.claim() == ["a"]
    await both.complete("a", 1)


async def test_requeue_what_completed(both: Twins) -> None:
    await both.add("a")
    await both.claim()
    await both.progress("a", 10)
    await both.complete("a", 1)
    await both.requeue("a", "completed")


async def test_requeue_while_paused(both: Twins) -> None:
    await both.add("a", attempts=1)
    await both.claim()
    await both.error("a")
    await both.pause()
    await both.requeue("a")


@pytest.mark.parametrize("state", ["failed", "completed"])
async def test_retry_all(both: Twins, state: str) -> None:
    for id, about in {"a": {}, "b": {"priority": 2}, "c": {}}.items():
        await both.add(id, attempts=1, **about)
        await both.claim()
        await (both.error(id) if state == "failed" else both.complete(id))
        await both.later(1)
    await both.retry_all(state=state)
