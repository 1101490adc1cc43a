"""Golden: claims and how they end. Each step is done by Node and by us, and every key and event is compared."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.twins import Twins

pytestmark = pytest.mark.stores("redis")


async def test_claim(both: Twins) -> None:
    await both.add("a")
    await both.add("b")
    assert await both.claim() == ["a"]
    assert await both.claim() == ["b"]
    assert await both.claim() == []


async def test_claim_several_at_once(both: Twins) -> None:
    await both.add_bulk(*({"id": id} for id in "abcde"))
    assert await both.claim(3) == ["a", "b", "c"]
    assert await both.claim(5) == ["d", "e"]


async def test_claim_by_priority(both: Twins) -> None:
    await both.add("a", priority=2)
    await both.add("b", priority=1)
    await both.add("c", priority=2)
    await both.add("d")
    assert await both.claim() == ["d"]
    assert await both.claim(2) == ["b", "a"]
    assert await both.claim(2) == ["c"]
    await both.add("e", priority=2)  # the counter of ties began again when a claim found nothing


async def test_claim_what_has_become_due(both: Twins) -> None:
    await both.add("a", delay=2_000)
    await both.add("b", delay=1_000, priority=4)
    await both.add("c", delay=1_000)
    await both.add("d", delay=60_000)
    assert await both.claim() == []
    await both.later(1)
    assert await both.claim() == ["c"]
    await both.later(1)
    assert await both.claim(2) == ["a", "b"]
    assert await both.claim() == []


async def test_claim_while_paused(both: Twins) -> None:
    await both.add("a")
    await both.add("b", delay=1_000)
    await both.pause()
    await both.later(1)
    assert await both.claim() == []
    await both.resume()
    assert await both.claim(2) == ["a", "b"]


@pytest.mark.parametrize("value", [None, 5, "text", {"a": [1, "ü/"]}, [], False], ids=str)
async def test_complete(both: Twins, value: object) -> None:
    await both.add("a")
    await both.claim()
    await both.later(0.25)
    await both.complete("a", value)


async def test_complete_one_of_two(both: Twins) -> None:
    await both.add("a")
    await both.add("b")
    await both.claim(2)
    await both.complete("b", 1)
    await both.complete("a", 2)


async def test_complete_and_claim_the_next(both: Twins) -> None:
    await both.add("a")
    await both.add("b")
    await both.add("c", priority=3)
    await both.claim()
    assert await both.complete("a", next=True) == ["b"]
    assert await both.complete("b", next=True) == ["c"]
    assert await both.complete("c", next=True) == []


async def test_complete_the_last_while_another_is_delayed(both: Twins) -> None:
    await both.add("a")
    await both.add("b", delay=60_000)
    await both.claim()
    assert await both.complete("a", next=True) == []


async def test_complete_the_last_without_claiming_while_another_is_delayed(both: Twins) -> None:
    await both.add("a")
    await both.add("b", delay=60_000)
    await both.claim()
    assert await both.complete("a") == []


@pytest.mark.parametrize("next", [False, True], ids=["alone", "and claim"])
async def test_complete_while_paused(both: Twins, next: bool) -> None:
    await both.add("a")
    await both.claim()
    await both.pause()
    await both.complete("a", next=next)


async def test_fail(both: Twins) -> None:
    await both.add("a", attempts=1)
    await both.add("b")
    await both.claim(2)
    await both.error("a", "wörse luck")
    await both.error("b", final=True)


async def test_retry_later(both: Twins) -> None:
    await both.add("a")
    for seconds in (1, 2):
        await both.claim()
        await both.error("a")
        await both.later(seconds)
    await both.claim()
    await both.error("a", "for good")


async def test_retry_later_and_succeed(both: Twins) -> None:
    await both.add("a", priority=2, backoff={"type": "fixed", "delay": 500})
    await both.claim()
    await both.error("a", next=True)
    await both.later(0.5)
    assert await both.claim() == ["a"]
    await both.complete("a", 1)


@pytest.mark.parametrize("opts", [{}, {"lifo": True}, {"priority": 2}, {"backoff": 0}], ids=str)
async def test_retry_at_once(both: Twins, opts: dict[str, Any]) -> None:
    await both.node_add("a", attempts=2, **opts)
    await both.claim()
    await both.node_add("b", **opts)
    await both.error("a")
    await both.claim(2)
    await both.error("a", "for good")


async def test_a_job_of_nodes_has_one_attempt(both: Twins) -> None:
    await both.node_add("a")
    await both.claim()
    await both.error("a")


@pytest.mark.parametrize("about", [{}, {"priority": 3}], ids=str)
async def test_give_back(both: Twins, about: dict[str, Any]) -> None:
    await both.add("a", **about)
    await both.add("b", **about)
    await both.claim()
    await both.release("a")
    assert await both.claim() == ["a"]


async def test_snooze(both: Twins) -> None:
    await both.add("a")
    await both.claim()
    await both.snooze("a", 2_000)
    await both.later(2)
    assert await both.claim() == ["a"]
    await both.complete("a")


async def test_progress_and_log(both: Twins) -> None:
    await both.add("a")
    await both.claim()
    await both.progress("a", 50)
    await both.log("a", "half way")
    await both.progress("a", 99.5)
    await both.log("a", "ünd so on")
    await both.complete("a")


async def test_extend(both: Twins) -> None:
    await both.add("a")
    await both.claim()
    await both.extend("a", 60_000)
    await both.later(30)
    await both.complete("a")


async def test_stalled(both: Twins) -> None:
    await both.add("a")
    await both.add("b", priority=2)
    await both.claim(2)
    await both.lose("a")
    assert await both.take_over() == ["a"]
    await both.complete("a")
    await both.lose("b")
    assert await both.take_over() == ["b"]
    await both.complete("b")


async def test_stalled_more_often_than_node_allows(both: Twins) -> None:
    await both.node_add("a", attempts=5)
    await both.claim()
    for _ in range(2):
        await both.lose("a")
        assert await both.take_over() == ["a"]
    await both.complete("a")  # not run at all: it fails, with the reason that was put off


@pytest.mark.parametrize("said", [True, 2, {"age": 10}, {"age": 10, "count": 1}], ids=str)
async def test_keep_what_we_added(both: Twins, said: Any) -> None:
    for id in "abc":
        await both.add(id, attempts=1, remove_on_complete=said, remove_on_fail=said)
        await both.add(f"{id}-bad", attempts=1, remove_on_complete=said, remove_on_fail=said)
        await both.claim(2)
        await both.log(id, "a line")
        await both.unseen("complete", id)
        await both.unseen("error", f"{id}-bad")
        await both.purge()
        await both.later(7)


@pytest.mark.parametrize(
    "said",
    [True, False, 0, 2, -1, {"age": 10}, {"count": 1}, {"age": 10, "count": 1}, {"age": 10, "limit": 1}],
    ids=str,
)
async def test_keep_what_node_added(both: Twins, said: Any) -> None:
    for id in "abcd":
        await both.node_add(id, removeOnComplete=said, removeOnFail=said)
        await both.node_add(f"{id}-bad", removeOnComplete=said, removeOnFail=said)
        await both.claim(2)
        await both.log(id, "a line")
        await both.complete(id)
        await both.error(f"{id}-bad")
        await both.later(7)
