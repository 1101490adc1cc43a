"""Awaiting results, and ticks: claim, run and settle in this process, with a summary."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

import jobmill
from jobmill import Client, Context
from jobmill.handlers.handler import Handler
from jobmill.testing import ManualClock
from jobmill.worker.tick import Tick


@pytest.fixture
def work(jobs: Client) -> Handler[..., Any]:
    @jobs.handler(backoff="1m")
    async def work(what: str = "ok") -> Any:
        match what:
            case "ok":
                return {"done": [1, 2]}
            case "fail":
                raise jobmill.Fail("no such customer")
            case "snooze":
                raise jobmill.Snooze("1h")
            case _:
                raise ValueError(what)

    return work


# ---------------------------------------------------------------------------------------------------- result


async def test_the_result_of_a_job_that_succeeded(jobs: Client, work: Handler[..., Any]) -> None:
    enqueued = await work.enqueue()
    await jobs.tick()
    assert await enqueued.result() == {"done": [1, 2]}
    assert await jobs.result(enqueued.id, timeout=0) == {"done": [1, 2]}


async def test_a_result_is_awaited(jobs: Client, work: Handler[..., Any]) -> None:
    enqueued = await work.enqueue()
    result = asyncio.create_task(enqueued.result(timeout="10s"))
    await asyncio.sleep(0)
    assert not result.done()
    await jobs.tick()
    assert await result == {"done": [1, 2]}


async def test_a_job_that_failed(jobs: Client, work: Handler[..., Any]) -> None:
    enqueued = await work.enqueue(what="fail")
    await jobs.tick()
    with pytest.raises(jobmill.JobFailed, match=rf"^job '{enqueued.id}' \(work\) failed: no such customer$") as caught:
        await enqueued.result()
    assert not isinstance(caught.value, jobmill.JobCancelled)


async def test_a_job_that_was_cancelled(jobs: Client, work: Handler[..., Any]) -> None:
    enqueued = await work.enqueue()
    await jobs.cancel(enqueued.id)
    with pytest.raises(jobmill.JobCancelled, match=r"\(work\) was cancelled"):
        await enqueued.result()
    assert issubclass(jobmill.JobCancelled, jobmill.JobFailed)


@pytest.mark.parametrize(("timeout", "shown"), [(0, "0s"), (0.005, "5ms"), ("5ms", "5ms")])
async def test_a_job_that_is_not_final_in_time_goes_on(work: Handler[..., Any], timeout: Any, shown: str) -> None:
    enqueued = await work.enqueue()
    with pytest.raises(jobmill.ResultTimeout, match=f"was not final after {shown}; it is still waiting"):
        await enqueued.result(timeout=timeout)
    assert issubclass(jobmill.ResultTimeout, TimeoutError)
    assert (await enqueued.job()).state == "waiting"


async def test_a_job_that_was_removed(jobs: Client, work: Handler[..., Any]) -> None:
    kept_for_nobody = await work.options(keep_succeeded=False).enqueue()
    removed = await work.enqueue()
    result = asyncio.create_task(removed.result(timeout="10s"))
    await jobs.remove(removed.id)
    await jobs.tick()
    for enqueued in (kept_for_nobody, removed):
        with pytest.raises(jobmill.JobNotFound, match="it was removed, or never existed"):
            await enqueued.result()
        with pytest.raises(jobmill.JobNotFound):
            await enqueued.job()
    with pytest.raises(jobmill.JobNotFound):
        await result
    with pytest.raises(jobmill.JobNotFound):
        await jobs.result("nope")


async def test_many_results_at_once_share_their_looks(jobs: Client, work: Handler[..., Any]) -> None:
    enqueued = await jobs.enqueue_many(work.draft() for _ in range(50))
    results = [asyncio.create_task(one.result(timeout="10s")) for one in enqueued]
    await jobs.tick(50)
    assert await asyncio.gather(*results) == [{"done": [1, 2]}] * 50


# ---------------------------------------------------------------------------------------------------- tick


async def test_a_tick_on_nothing(jobs: Client, work: Handler[..., Any]) -> None:
    assert await jobs.tick() == Tick()


async def test_a_tick_without_handlers(jobs: Client) -> None:
    await jobs.enqueue("elsewhere")
    assert await jobs.tick() == Tick()


async def test_the_summary_of_a_tick(jobs: Client, work: Handler[..., Any]) -> None:
    whats = ["ok", "ok", "fail", "snooze", "oops"]
    await jobs.enqueue_many(work.draft(what) for what in whats)
    await work.options(delay="1h").enqueue()
    await jobs.enqueue("elsewhere")
    assert await jobs.tick() == Tick(claimed=5, succeeded=2, failed=1, waiting=1, retrying=1)
    assert await jobs.tick() == Tick(), "nothing else is due"


async def test_a_tick_takes_no_more_than_its_limit(jobs: Client, work: Handler[..., Any]) -> None:
    await jobs.enqueue_many(work.draft() for _ in range(5))
    assert [(await jobs.tick(limit=2)).claimed for _ in range(4)] == [2, 2, 1, 0]


async def test_a_tick_on_some_queues(jobs: Client, work: Handler[..., Any]) -> None:
    await work.options(queue="a").enqueue()
    await work.options(queue="b").enqueue()
    assert (await jobs.tick(queues=["a"])).claimed == 1
    assert (await jobs.tick(queues=["a"])).claimed == 0
    assert (await jobs.tick(queues=["a", "b"])).claimed == 1


async def test_what_becomes_of_a_job_is_seen_afterwards(
    jobs: Client, work: Handler[..., Any], clock: ManualClock
) -> None:
    enqueued = await work.enqueue(what="oops")
    for attempt, state in ((1, "waiting"), (2, "waiting"), (3, "failed")):
        assert (await jobs.tick()).claimed == 1
        job = await enqueued.job()
        assert (job.state, job.errors, job.claims, job.error) == (state, attempt, attempt, "ValueError: oops")
        assert len(job.attempts) == attempt
        assert job.worker is not None
        clock.advance(60)


async def test_a_recurring_job_runs_slot_by_slot(jobs: Client, work: Handler[..., Any], clock: ManualClock) -> None:
    enqueued = await work.options(every="1h", key="k").enqueue()
    for run in (1, 2, 3):
        assert (await jobs.tick()).succeeded == 1
        assert (await jobs.tick()).claimed == 0
        job = await enqueued.job()
        assert (job.state, job.runs, job.result) == ("waiting", run, {"done": [1, 2]})
        assert job.due_ms == clock() + 3_600_000
        assert job.last_finished_at is not None
        clock.advance(3_600)
    clock.advance(5 * 3_600 + 60)
    assert (await jobs.tick()).claimed == 1, "what was missed runs once"
    assert (await enqueued.job()).due_ms == clock() + 3_540_000


async def test_sync_handlers_and_contexts_in_a_tick(jobs: Client) -> None:
    @jobs.handler()
    def plain(ctx: Context, a: int, *, b: int = 1) -> list[int]:
        return [ctx.attempt, ctx.fence, a, b]

    enqueued = await plain.enqueue(5, b=6)
    await jobs.tick()
    assert await enqueued.result(timeout=0) == [1, 1, 5, 6]


@dataclasses.dataclass
class Invoice:
    """What a handler of these tests returns."""

    order: int
    due: datetime


async def test_a_result_comes_back_as_the_type_that_the_handler_returns(jobs: Client) -> None:
    @jobs.handler
    async def bill(order: int) -> Invoice:
        return Invoice(order, datetime(2030, 1, 1, tzinfo=UTC))

    enqueued = await bill.enqueue(order=7)
    await jobs.tick()
    assert await enqueued.result(timeout=5) == Invoice(7, datetime(2030, 1, 1, tzinfo=UTC))
    assert await jobs.result(enqueued.id, timeout=5) == Invoice(7, datetime(2030, 1, 1, tzinfo=UTC))
    assert (await enqueued.job()).result == {"order": 7, "due": "2030-01-01T00:00:00Z"}, "the job has the JSON value"


async def test_a_result_that_does_not_fit_the_annotation_is_refused(jobs: Client) -> None:
    @jobs.handler
    async def lies() -> int:
        return "seven"  # type: ignore[return-value]

    enqueued = await lies.enqueue()
    await jobs.tick()
    with pytest.raises(jobmill.InvalidValue, match="result: expected a value that fits the annotation"):
        await enqueued.result(timeout=5)


async def test_a_failed_job_comes_with_its_error_and_a_repr_without_its_payload(jobs: Client) -> None:
    @jobs.handler(max_attempts=1)
    async def fails(secret: str) -> None:
        raise ValueError("no")

    enqueued = await fails.enqueue(secret="hunter2")
    await jobs.tick()
    with pytest.raises(jobmill.JobFailed) as caught:
        await enqueued.result(timeout=5)
    assert (caught.value.job.id, caught.value.job.errors) == (enqueued.id, 1)
    shown = repr(caught.value.job)
    assert shown.startswith(f"Job(id={enqueued.id!r}, name='fails', queue='default', state='failed', attempt=1")
    assert "hunter2" not in shown
    assert type(pickle.loads(pickle.dumps(caught.value))) is jobmill.JobFailed
