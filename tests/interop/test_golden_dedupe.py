"""Golden: deduplication in all its modes. Every key and event is compared after each step."""

from __future__ import annotations

import pytest

from tests.interop.twins import Twins

pytestmark = pytest.mark.stores("redis")

SIMPLE = {"id": "key"}


async def test_simple(both: Twins) -> None:
    await both.add("a", deduplication=SIMPLE)
    await both.add("b", deduplication=SIMPLE)
    await both.add(deduplication=SIMPLE)
    await both.add("c", deduplication={"id": "another"})
    await both.claim()
    await both.add("d", deduplication=SIMPLE)
    await both.complete("a")
    await both.add("e", deduplication=SIMPLE)


async def test_simple_is_held_by_a_retry_and_released_by_a_failure(both: Twins) -> None:
    await both.add("a", deduplication=SIMPLE, attempts=2, backoff={"type": "fixed", "delay": 500})
    await both.claim()
    await both.error("a")
    await both.add("b", deduplication=SIMPLE)
    await both.later(0.5)
    await both.claim()
    await both.error("a")
    await both.add("c", deduplication=SIMPLE)


async def test_simple_is_released_by_removal(both: Twins) -> None:
    await both.add("a", deduplication=SIMPLE)
    await both.remove("a")
    await both.add("b", deduplication=SIMPLE, delay=1_000)
    await both.drain(delayed=True)
    await both.add("c", deduplication=SIMPLE)


async def test_for_a_time(both: Twins) -> None:
    await both.add("a", deduplication={"id": "key", "ttl": 60_000})
    await both.add("b", deduplication={"id": "key", "ttl": 90_000})
    await both.claim()
    await both.complete("a")
    await both.add("c", deduplication={"id": "key", "ttl": 60_000})


async def test_for_a_time_from_the_last_on(both: Twins) -> None:
    await both.add("a", deduplication={"id": "key", "ttl": 30_000, "extend": True})
    await both.add("b", deduplication={"id": "key", "ttl": 90_000, "extend": True})


async def test_replace(both: Twins) -> None:
    await both.add("a", deduplication={"id": "key", "ttl": 60_000, "replace": True}, delay=5_000)
    await both.add("b", deduplication={"id": "key", "ttl": 90_000, "replace": True}, delay=6_000)
    await both.later(6)
    assert await both.claim() == ["b"]
    await both.add("c", deduplication={"id": "key", "ttl": 60_000, "replace": True}, delay=5_000)


async def test_replace_from_the_last_on(both: Twins) -> None:
    extending = {"id": "key", "ttl": 90_000, "replace": True, "extend": True}
    await both.add("a", deduplication={"id": "key", "ttl": 30_000, "replace": True}, delay=5_000)
    await both.add("b", deduplication=extending, delay=6_000, data={"to": "bob"})


async def test_replace_without_a_time(both: Twins) -> None:
    await both.add("a", deduplication={"id": "key", "replace": True}, delay=5_000)
    await both.add("b", deduplication={"id": "key", "replace": True}, delay=5_000)
    await both.add("c", deduplication={"id": "key", "replace": True})
    await both.claim()
    await both.add("d", deduplication={"id": "key", "replace": True}, delay=5_000)


async def test_reschedule(both: Twins) -> None:
    await both.add("a", deduplication={"id": "key", "reschedule": True}, delay=5_000)
    await both.later(1)
    await both.add("b", deduplication={"id": "key", "reschedule": True}, delay=9_000)


async def test_keep_the_last_while_one_runs(both: Twins) -> None:
    keeping = {"id": "key", "keepLastIfActive": True}
    await both.add("a", deduplication=keeping)
    await both.add("b", deduplication=keeping)
    await both.claim()
    await both.add("c", deduplication=keeping)
    await both.add("d", deduplication=keeping, data={"to": "bob"})
    await both.complete("a")
    assert await both.claim() == ["d"]
    await both.complete("d")


async def test_keep_the_last_while_one_fails(both: Twins) -> None:
    keeping = {"id": "key", "keepLastIfActive": True}
    await both.add("a", deduplication=keeping, attempts=1)
    await both.claim()
    await both.add("b", deduplication=keeping, priority=3)
    await both.error("a")


async def test_a_key_whose_job_is_gone(both: Twins) -> None:
    await both.add("a", deduplication=SIMPLE)
    for side in (both.node, both.ours):
        await side.redis.delete(f"{side.prefix}:mail:a", f"{side.prefix}:mail:wait")
    await both.add("b", deduplication=SIMPLE)


async def test_our_unique_key(both: Twins) -> None:
    """A unique key holds for a name: BullMQ sees both of them in the id."""
    await both.add_unique("a", "key")
    await both.add_unique("b", "key")
    await both.claim()
    await both.add_unique("c", "key")
    await both.complete("a")
    await both.add_unique("d", "key", delay=1_000)


async def test_our_unique_key_for_a_time(both: Twins) -> None:
    await both.add_by_policy("a", "key", "for", ms=60_000)
    await both.add_by_policy("b", "key", "for", ms=90_000)
    await both.claim()
    await both.add_by_policy("c", "key", "for", ms=60_000)
    await both.complete("a")
    await both.add_by_policy("d", "key", "for", ms=60_000)
    await both.add_unique("e", "key")
    await both.remove("a")
    await both.add_by_policy("f", "key", "for", ms=60_000)


async def test_our_debounced_job(both: Twins) -> None:
    await both.add_by_policy("a", "key", "debounce", ms=30_000)
    await both.later(30)
    assert await both.claim() == ["a"]
    await both.complete("a")


async def test_our_key_that_a_waiting_job_leaves_to_its_next_payload(both: Twins) -> None:
    await both.add_by_policy("a", "key", "replace", delay=5_000)
    await both.later(5)
    await both.claim()
    await both.add_by_policy("b", "key", "replace")
    await both.complete("a")
    await both.add_by_policy("c", "key", "replace")


async def test_our_key_whose_job_the_next_one_cancels(both: Twins) -> None:
    await both.add_by_policy("a", "key", "cancel")
    await both.claim()
    await both.complete("a")
    await both.add_by_policy("b", "key", "cancel", priority=3)
