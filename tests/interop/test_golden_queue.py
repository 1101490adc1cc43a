"""Golden: what concerns a whole queue. Every key and event is compared after each step."""

from __future__ import annotations

import pytest

from tests.interop.twins import Twins

pytestmark = pytest.mark.stores("redis")


async def test_pause_and_resume(both: Twins) -> None:
    await both.pause()
    await both.resume()
    await both.add("a")
    await both.pause()
    await both.pause()
    await both.resume()
    await both.resume()


async def test_pause_and_resume_with_a_delayed_job(both: Twins) -> None:
    await both.add("a", delay=5_000)
    await both.pause()
    await both.add("b", delay=1_000)
    await both.resume()


async def test_pause_while_a_job_runs(both: Twins) -> None:
    await both.add("a")
    await both.add("b")
    await both.claim()
    await both.pause()
    await both.error("a")
    await both.resume()
    assert await both.claim() == ["b"]


@pytest.mark.parametrize("delayed", [False, True])
async def test_drain(both: Twins, delayed: bool) -> None:
    await both.add("running")
    await both.claim()
    await both.add("a")
    await both.add("b", priority=2)
    await both.add("c", delay=1_000)
    await both.drain(delayed=delayed)
    await both.complete("running")


@pytest.mark.parametrize("state", ["completed", "failed"])
async def test_clean_what_is_finished(both: Twins, state: str) -> None:
    for id in "abcd":
        await both.add(id, attempts=1)
        await both.claim()
        await (both.error(id) if state == "failed" else both.complete(id))
        await both.later(10)
    await both.clean(15_000, 2, state)
    await both.clean(15_000, 0, state)
    await both.clean(0, 0, state)


@pytest.mark.parametrize("state", ["wait", "delayed", "prioritized"])
async def test_clean_what_waits(both: Twins, state: str) -> None:
    about = {"wait": {}, "delayed": {"delay": 900_000}, "prioritized": {"priority": 3}}[state]
    for id in "abc":
        await both.add(id, **about)
        await both.later(10)
    await both.clean(15_000, 0, state)
    await both.clean(0, 0, state)


async def test_clean_what_runs_without_a_lock(both: Twins) -> None:
    await both.add("a")
    await both.add("b")
    await both.claim(2)
    await both.lose("a")
    await both.clean(1_000, 0, "active")


async def test_limit_of_the_rate(both: Twins) -> None:
    await both.set_rate_limit(2, 60_000)
    for id in "abc":
        await both.add(id)
    assert await both.claim() == ["a"]
    assert await both.claim(2) == ["b"]
    await both.complete("a", next=True)
    await both.complete("b")
    await both.set_rate_limit(None)
    assert await both.claim() == ["c"]


async def test_no_claims_for_a_while(both: Twins) -> None:
    await both.set_rate_limit(2, 60_000)
    await both.add("a")
    await both.rate_limit(30_000)
    assert await both.claim() == []


async def test_limit_of_running_jobs(both: Twins) -> None:
    await both.set_running_limit(2)
    for id in "abcd":
        await both.add(id)
    assert await both.claim(3) == ["a", "b"]
    assert await both.claim() == []
    await both.complete("a")
    assert await both.claim(2) == ["c"]
    assert await both.complete("b", next=True) == ["d"]
    await both.set_running_limit(None)


async def test_full_while_jobs_come_back(both: Twins) -> None:
    await both.set_running_limit(1)
    await both.add("a", backoff={"type": "fixed", "delay": 500})
    await both.add("b")
    await both.claim()
    await both.error("a")
    assert await both.claim() == ["b"]
    await both.later(1)
    assert await both.claim() == []
    await both.release("b")
