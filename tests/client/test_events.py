"""The feed for other processes, and hooks in this one."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

import jobmill
from jobmill import Client, Context, Event, JobmillError
from jobmill.core.events import EVENT_TYPES
from jobmill.handlers.handler import Handler
from jobmill.handlers.hooks import MOMENTS, Hooks
from jobmill.runtime.tasks import end
from jobmill.testing import ManualClock


@pytest.fixture
def work(jobs: Client) -> Handler[..., Any]:
    @jobs.handler(backoff="1m", max_attempts=2)
    async def work(what: str = "ok") -> Any:
        if what == "fail":
            raise jobmill.Fail("no such customer")
        if what != "ok":
            raise ValueError(what)
        return 42

    return work


async def feed(jobs: Client, queue: str = "default", after: str | None = None) -> list[Event]:
    return [event async for event in jobs.events(queue, after=after, follow=False)]


# ---------------------------------------------------------------------------------------------------- the feed


async def test_a_feed_is_off_until_it_is_switched_on(jobs: Client, work: Handler[..., Any]) -> None:
    await work.enqueue()
    assert await feed(jobs) == []
    await jobs.queue("default").feed()
    await work.enqueue()
    assert [event.type for event in await feed(jobs)] == ["enqueued"]
    await jobs.queue("default").feed(False)
    await work.enqueue()
    assert len(await feed(jobs)) <= 1


async def test_the_feed_tells_a_jobs_life(jobs: Client, work: Handler[..., Any], clock: ManualClock) -> None:
    await jobs.queue("default").feed()
    enqueued = await work.enqueue(what="oops")
    await jobs.tick()
    clock.advance(60)
    await jobs.tick()
    await jobs.requeue(enqueued.id)
    await jobs.cancel(enqueued.id)
    await jobs.remove(enqueued.id)
    events = await feed(jobs)
    assert [event.type for event in events] == [
        *("enqueued", "claimed", "errored", "retrying"),
        *("claimed", "errored", "failed"),
        *("enqueued", "cancelled", "removed"),
    ]
    assert {(event.job_id, event.name, event.queue) for event in events} == {(enqueued.id, "work", "default")}
    assert [event.attempt for event in events[:7]] == [1, 1, 1, 1, 2, 2, 2]
    assert events[3].data == {"delay_ms": 60_000}
    assert events[2].data["error"] == "ValueError: oops"
    assert "Traceback" in events[2].data["traceback"]
    assert events[6].at_ms == clock()
    ids = [event.id for event in events]
    assert None not in ids
    assert len(set(ids)) == len(ids)


async def test_reading_on_from_an_event(jobs: Client, work: Handler[..., Any]) -> None:
    await jobs.queue("default").feed()
    await jobs.enqueue_many(work.draft() for _ in range(5))
    events = await feed(jobs)
    assert await feed(jobs, after=events[2].id) == events[3:]
    assert await feed(jobs, after=events[4].id) == []


async def test_the_last_events_are_kept(jobs: Client, work: Handler[..., Any]) -> None:
    await jobs.queue("default").feed(events_max_len=3)
    ids = [(await work.enqueue()).id for _ in range(8)]
    assert [event.job_id for event in await feed(jobs)] == ids[-3:]


async def test_following_a_feed_that_is_off_is_refused(jobs: Client) -> None:
    with pytest.raises(JobmillError, match=r"the feed of queue 'default' is off.* jobs.queue\('default'\).feed\(\)"):
        async with asyncio.timeout(10):
            await anext(aiter(jobs.events("default")))


async def test_following_a_feed(jobs: Client, work: Handler[..., Any]) -> None:
    await jobs.queue("default").feed()
    first = await work.enqueue()
    seen: asyncio.Queue[Event] = asyncio.Queue()

    async def follow() -> None:
        async for event in jobs.events("default", every="1ms"):
            seen.put_nowait(event)

    following = asyncio.create_task(follow())
    try:
        assert (await asyncio.wait_for(seen.get(), 10)).job_id == first.id
        second = await work.enqueue()
        assert (await asyncio.wait_for(seen.get(), 10)).job_id == second.id
        assert seen.empty()
    finally:
        await end([following])


async def test_events_of_ones_own(jobs: Client, work: Handler[..., Any], clock: ManualClock) -> None:
    await jobs.queue("default").feed()
    job = await (await work.enqueue()).job()
    await jobs.publish("mail.sent", job, to="ada", at=datetime(2026, 5, 1, tzinfo=UTC), count=2)
    event = (await feed(jobs))[-1]
    assert (event.type, event.job_id, event.name, event.queue, event.at_ms) == (
        *("mail.sent", job.id, "work", "default"),
        clock(),
    )
    assert event.data == {"to": "ada", "at": "2026-05-01T00:00:00Z", "count": 2}
    assert event.id is not None


async def test_an_event_of_ones_own_goes_nowhere_where_the_feed_is_off(jobs: Client, work: Handler[..., Any]) -> None:
    await jobs.publish("mail.sent", await (await work.enqueue()).job())
    await jobs.queue("default").feed()
    assert await feed(jobs) == []


# ---------------------------------------------------------------------------------------------------- hooks


async def test_hooks_are_told_what_happens_in_this_process(jobs: Client, work: Handler[..., Any]) -> None:
    told: list[tuple[str, str, dict[str, Any]]] = []

    @jobs.on("*")
    async def everything(event: Event) -> None:
        told.append((event.job_id, event.type, event.data))

    ok, bad = await work.enqueue(), await work.enqueue(what="fail")
    await jobs.tick()
    assert [type for id, type, _ in told if id == ok.id] == ["enqueued", "claimed", "succeeded"]
    assert [type for id, type, _ in told if id == bad.id] == ["enqueued", "claimed", "errored", "failed"]
    assert (ok.id, "succeeded", {"result": 42}) in told
    assert (bad.id, "failed", {"error": "no such customer"}) in told


async def test_progress_is_told(jobs: Client) -> None:
    told: list[Event] = []
    jobs.on("progress")(told.append)

    @jobs.handler()
    async def slow(ctx: Context) -> None:
        ctx.progress(40, "nearly")

    await slow.enqueue()
    await jobs.tick()
    assert [event.data for event in told] == [{"value": 40, "message": "nearly"}]


async def test_moments_of_a_worker(jobs: Client, work: Handler[..., Any]) -> None:
    moments: list[str] = []
    errors: list[tuple[BaseException, Any]] = []
    jobs.on("start")(lambda worker: moments.append(f"start {type(worker).__name__}"))
    jobs.on("stop")(lambda worker: moments.append(f"stop {type(worker).__name__}"))
    jobs.on("error")(lambda error, job: errors.append((error, job)))
    enqueued = await work.enqueue(what="oops")
    await jobs.tick()
    assert moments == ["start Worker", "stop Worker"]
    ((error, job),) = errors
    assert (str(error), job.id) == ("oops", enqueued.id)


async def test_hooks_are_told_in_their_order_and_those_for_everything_last() -> None:
    told: list[str] = []
    hooks = Hooks()
    wanted = [hooks.wants_events]
    hooks.add("start", lambda *_: told.append("moment"))
    wanted.append(hooks.wants_events)
    hooks.add("*", lambda _: told.append("all 1"))
    hooks.add("failed", lambda _: told.append("failed 1"))
    hooks.add("*", lambda _: told.append("all 2"))
    hooks.add("failed", lambda _: told.append("failed 2"))
    hooks.add("succeeded", lambda _: told.append("succeeded"))
    assert [*wanted, hooks.wants_events] == [False, False, True], "a moment is no fact"
    await hooks.call_event(Event(type="failed", job_id="1", name="n", queue="q", at_ms=1))
    assert told == ["failed 1", "failed 2", "all 1", "all 2"]
    await hooks.call_moment("start", 1)
    assert told[-1] == "moment"


async def test_a_hook_is_awaited_before_the_next_is_told() -> None:
    told: list[str] = []
    hooks = Hooks()

    async def slow(event: Event) -> None:
        await asyncio.sleep(0)
        told.append("slow")

    hooks.add("failed", slow)
    hooks.add("failed", lambda _: told.append("quick"))
    await hooks.call_event(Event(type="failed", job_id="1", name="n", queue="q", at_ms=1))
    assert told == ["slow", "quick"]


async def test_a_hook_that_raises_does_no_harm(
    jobs: Client, work: Handler[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    @jobs.on("succeeded")
    def bad(event: Event) -> None:
        raise RuntimeError("a bad hook")

    @jobs.on("succeeded")
    async def worse(event: Event) -> None:
        raise RuntimeError("a worse hook")

    jobs.on("start")(bad)
    jobs.on("succeeded")(lambda event: told.append(event.type))
    enqueued = await work.enqueue()
    with caplog.at_level(logging.ERROR, "jobmill"):
        assert (await jobs.tick()).succeeded == 1
    assert told == ["succeeded"]
    assert await enqueued.result(timeout=0) == 42
    assert [record.message.endswith("raised an error; no job is affected") for record in caplog.records] == [True] * 3
    assert "a worse hook" in caplog.text


def test_a_hook_stays_what_it_was_and_hooks_to_nothing_are_refused() -> None:
    jobs = jobmill.connect("memory://")

    def hook(*_: Any) -> None: ...

    for what in (*MOMENTS, *EVENT_TYPES, "*"):
        assert jobs.hooks.add(what, hook) is hook
    with pytest.raises(
        jobmill.InvalidValue, match="hook: expected one of start, stop, idle, error, enqueued, .*, got 'done'"
    ):
        jobs.on("done")(hook)  # type: ignore[arg-type]
