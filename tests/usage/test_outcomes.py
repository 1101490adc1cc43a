"""One usage record per run that started, whatever became of it, on every store."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import pytest

import jobmill
from jobmill import Client, Context, StoreUnavailable, Usage
from jobmill.core.usage import RunEnded
from jobmill.core.values import Claim, Lease, Settlement
from jobmill.store import Store
from jobmill.testing import drain
from jobmill.worker import worker as worker_module
from jobmill.worker.worker import Worker
from tests.docs.pages import ROOT, code_of, table
from tests.helpers import FaultyStore, until


def outcomes(used: list[Usage]) -> list[str]:
    return [usage.outcome for usage in used]


async def away(leases: Sequence[Lease], for_ms: int) -> list[str]:
    raise StoreUnavailable("gone")


# ---------------------------------------------------------------------------------------------------- the words


async def test_usage_of_a_run_that_succeeded(jobs: Client, used: list[Usage]) -> None:
    @jobs.handler(queue="mail")
    async def send(to: str) -> None:
        await asyncio.sleep(0.02)

    before = jobs.store.now()
    async with Worker(jobs, name="w-1"):
        enqueued = await send.options(tenant="acme").enqueue(to="ada")
        await enqueued.result(timeout=5)
    after = jobs.store.now()
    (usage,) = used
    assert (usage.job_id, usage.name, usage.queue, usage.tenant) == (enqueued.id, "send", "mail", "acme")
    assert (usage.attempt, usage.outcome, usage.worker) == (1, "succeeded", "w-1")
    assert isinstance(usage.duration_ms, float)
    assert 20 <= usage.duration_ms < 5_000
    # A store's clock is corrected now and then, as far as the way to the store is long.
    assert before - 2_000 <= usage.started_ms <= after + 2_000
    assert usage.finished_ms == usage.started_ms + round(usage.duration_ms)


async def test_a_job_without_a_tenant_is_global(jobs: Client, used: list[Usage]) -> None:
    @jobs.handler
    async def noop() -> None: ...

    await noop.enqueue()
    await jobs.tick()
    assert [usage.tenant for usage in used] == ["global"]


async def test_every_errored_attempt_has_a_record(jobs: Client, used: list[Usage]) -> None:
    @jobs.handler(max_attempts=3, backoff="1ms")
    async def flaky(context: Context) -> None:
        if context.attempt < 3:
            raise ValueError("x")

    async with Worker(jobs):
        await (await flaky.enqueue()).result(timeout=5)
    assert [(usage.attempt, usage.outcome) for usage in used] == [(1, "errored"), (2, "errored"), (3, "succeeded")]


@pytest.mark.parametrize("how", ["fail", "timeout", "thread timeout", "result", "payload"])
async def test_other_kinds_of_errors(jobs: Client, used: list[Usage], how: str) -> None:
    let_go = threading.Event()

    @jobs.handler(max_attempts=1, timeout="20ms")
    async def bad(n: int) -> Any:
        if how == "fail":
            raise jobmill.Fail("no")
        if how == "timeout":
            await asyncio.Event().wait()
        return {1, 2}

    @jobs.handler(max_attempts=1, timeout="20ms")
    def stuck(n: int) -> None:
        let_go.wait(10)

    # As a producer without these handlers would enqueue it.
    payload = {"n": "many"} if how == "payload" else {"n": 1}
    name = "stuck" if how == "thread timeout" else "bad"
    enqueued = await jobmill.connect(store=jobs.store).enqueue(name, payload)
    async with Worker(jobs):
        await until(lambda: used)
        let_go.set()
    assert (await enqueued.job()).state == "failed"
    assert outcomes(used) == ["errored"]
    if "timeout" in how:
        # A thread runs on, but the run is over.
        assert used[0].duration_ms < 5_000


async def test_usage_of_a_snoozed_run(jobs: Client, used: list[Usage]) -> None:
    @jobs.handler
    async def not_yet(context: Context) -> None:
        if context.fence == 1:
            context.snooze("1ms")

    async with Worker(jobs):
        await (await not_yet.enqueue()).result(timeout=5)
    assert [(usage.attempt, usage.outcome) for usage in used] == [(1, "snoozed"), (1, "succeeded")]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_usage_of_a_released_run(jobs: Client, used: list[Usage], kind: str) -> None:
    let_go = threading.Event()
    runs: list[int] = []

    @jobs.handler(name="async")
    async def endless(context: Context) -> None:
        runs.append(context.fence)
        await asyncio.Event().wait()

    @jobs.handler(name="thread")
    def stuck(context: Context) -> None:
        runs.append(context.fence)
        let_go.wait(10)

    enqueued = await jobs.enqueue(kind)
    async with Worker(jobs, shutdown_timeout=0) as worker:
        await until(lambda: worker.running and runs)
    let_go.set()
    # Where two exchanges are in flight, the other may claim it once more before it has heard of the end.
    assert outcomes(used) == ["released"] * len(runs)
    assert (await enqueued.job()).state == "waiting"


@pytest.mark.parametrize("also", ["kept", "removed"])
async def test_usage_of_a_cancelled_run(jobs: Client, used: list[Usage], also: str) -> None:
    @jobs.handler
    async def endless() -> None:
        await asyncio.Event().wait()

    async with Worker(jobs, lease="3s", shutdown_timeout=0) as worker:
        enqueued = await endless.enqueue()
        await until(lambda: worker.running)
        await jobs.cancel(enqueued.id)
        if also == "removed":
            await jobs.remove(enqueued.id)
        await until(lambda: used)
    assert outcomes(used) == ["cancelled"]


async def test_usage_of_a_cancelled_run_that_ends_late(jobs: Client, used: list[Usage]) -> None:
    stopped, go = asyncio.Event(), asyncio.Event()

    @jobs.handler
    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
            await go.wait()

    told: list[str] = []
    jobs.on("cancelled")(lambda event: told.append(event.job_id))
    async with Worker(jobs, lease="3s", shutdown_timeout=0) as worker:
        enqueued = await stubborn.enqueue()
        await until(lambda: worker.running)
        await jobs.cancel(enqueued.id)
        await until(lambda: told)
        assert stopped.is_set()
        assert used == []
        go.set()
        await until(lambda: used)
    assert outcomes(used) == ["cancelled"]


@pytest.mark.slow
async def test_usage_of_a_run_whose_lease_could_not_be_extended(
    jobs: Client, used: list[Usage], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []

    @jobs.handler
    async def long(context: Context) -> None:
        # Not by the fence: on a busy machine the answer to the first claim may come after so short a lease.
        runs.append(context.fence)
        if len(runs) == 1:
            await asyncio.Event().wait()

    async with Worker(jobs, lease="2s") as worker:
        enqueued = await long.enqueue()
        await until(lambda: worker.running)
        with monkeypatch.context() as broken:
            broken.setattr(jobs.store, "extend", away)
            await until(lambda: used)
        await enqueued.result(timeout=10)
    assert [(usage.attempt, usage.outcome) for usage in used] == [(1, "lost"), (1, "succeeded")]


async def test_usage_of_a_run_whose_settlement_came_too_late(jobs: Client, used: list[Usage]) -> None:
    runs: list[int] = []

    @jobs.handler(max_crashes=50)  # on a busy machine it may be late several times
    async def blocks(context: Context) -> None:
        runs.append(context.fence)
        if len(runs) == 1:
            time.sleep(1.4)  # noqa: ASYNC251 - it is the whole loop that stands still, the heartbeat too

    async with Worker(jobs, lease="1s"):
        await (await blocks.enqueue()).result(timeout=60)
    # All handlers returned; only the last of them counts.
    assert len(runs) >= 2
    assert sorted(outcomes(used)) == ["lost"] * (len(runs) - 1) + ["succeeded"]
    assert next(one.outcome for one in used if one.duration_ms >= 1_400) == "lost"


def test_the_docs_list_all_outcomes() -> None:
    told = [code_of(row["outcome"]) for row in table(ROOT / "docs/usage.md", "Fields of a record", "outcome")]
    assert told == list(get_args(RunEnded))


# ---------------------------------------------------------------------------------------------------- every way to run


@pytest.mark.slow
async def test_ticks_and_drains_are_recorded_before_they_return(jobs: Client, used: list[Usage]) -> None:
    @jobs.handler
    def plain() -> None: ...

    await plain.enqueue()
    await jobs.tick()
    assert outcomes(used) == ["succeeded"]
    await jobs.enqueue_many(plain.draft() for _ in range(250))
    await drain(jobs)
    assert outcomes(used) == ["succeeded"] * 251


async def test_every_run_of_a_recurring_job_has_a_record(jobs: Client, used: list[Usage]) -> None:
    @jobs.handler
    async def beat() -> None: ...

    async with Worker(jobs):
        enqueued = await beat.options(every="5ms", key="beat").enqueue()
        await until(lambda: len(used) >= 3)
        await jobs.cancel(enqueued.id)
    assert {(usage.job_id, usage.outcome, usage.attempt) for usage in used[:3]} == {(enqueued.id, "succeeded", 1)}


async def test_a_job_that_is_settled_without_a_run_has_no_record(jobs: Client, used: list[Usage]) -> None:
    @jobs.handler
    async def deadly() -> None: ...

    enqueued = await deadly.options(max_crashes=1).enqueue()
    # A worker that claims it and dies.
    claim = Claim(queues=("default",), names={"deadly": 1}, n=1, lease_ms=1, worker="dead", token="t")
    answer = await jobs.store.exchange([], claim)
    assert len(answer.claimed) == 1
    await until(lambda: jobs.store.now() > answer.now_ms + 1)
    async with Worker(jobs):
        with pytest.raises(jobmill.JobFailed, match="crashed 1 times"):
            await enqueued.result(timeout=10)
    assert used == []


async def test_every_run_has_exactly_one_record(jobs: Client, used: list[Usage]) -> None:
    ran: Counter[tuple[str, int]] = Counter()

    @jobs.handler(max_attempts=2, backoff="1ms", timeout="30ms")
    async def anything(context: Context, n: int) -> None:
        ran[context.job.id, context.attempt] += 1
        match n % 5:
            case 0:
                raise ValueError(n)
            case 1 if context.fence == 1:
                context.snooze("1ms")
            case 2:
                await asyncio.Event().wait()
            case 3:
                await asyncio.sleep(0.001)

    enqueued = await jobs.enqueue_many(anything.draft(n=n) for n in range(100))
    async with Worker(jobs, concurrency=10, lease="900ms") as worker:
        await until(lambda: sum(ran.values()) > 60)
        await jobs.cancel([one.id for one in enqueued[::7]])
        await until(lambda: sum(ran.values()) > 90)
        await worker.stop(timeout=0)
    assert Counter((usage.job_id, usage.attempt) for usage in used) == ran
    assert {"succeeded", "errored", "snoozed"} <= set(outcomes(used))


# ---------------------------------------------------------------------------------------------------- awkward moments


async def test_a_run_whose_job_its_worker_claims_again(jobs: Client, used: list[Usage], store: Store) -> None:
    runs: list[int] = []

    @jobs.handler
    async def long(context: Context) -> None:
        # Not by the fence: on a busy machine the answer to the first claim may come after so short a lease.
        runs.append(context.fence)
        if len(runs) == 1:
            await asyncio.Event().wait()

    async with Worker(jobs, lease="2s") as worker:
        enqueued = await long.enqueue()
        (run,) = await until(lambda: list(worker._context.running.runs.values()))
        run.expires += 10  # as if our own clock had stood still
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(store, "extend", away)
            await until(lambda: store.now() > run.claimed.lease.until_ms)
            for exchanger in worker._exchangers:
                exchanger.wake()
            await enqueued.result(timeout=10)
    assert outcomes(used) == ["lost", "succeeded"]


def faulty() -> tuple[Client, FaultyStore, list[Usage]]:
    store, told = FaultyStore(), list[Usage]()
    jobs = jobmill.connect(store=store)
    jobs.record_usage(told.append)
    return jobs, store, told


@pytest.mark.stores("memory")
@pytest.mark.parametrize(("chokes_on", "outcome"), [("the result", "errored"), ("everything", "lost")])
async def test_usage_of_a_run_whose_settlement_raises_in_the_store(chokes_on: str, outcome: str) -> None:
    jobs, store, used = faulty()

    def choke(settlements: list[Settlement], claim: Claim | None) -> BaseException | None:
        bad = any(chokes_on == "everything" or b"poison" in one.result_json for one in settlements)
        return RuntimeError("a bug of the store's") if bad else None

    store.faults["exchange"] = choke

    @jobs.handler
    async def work() -> str:
        return "poison"

    async with Worker(jobs):
        await work.enqueue()
        await until(lambda: used)
    assert outcomes(used) == [outcome]


@pytest.mark.stores("memory")
async def test_a_run_that_the_store_never_settles_is_lost_when_the_worker_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_module, "LAST_CALLS_S", 0.05)
    jobs, store, used = faulty()
    go = asyncio.Event()

    @jobs.handler
    async def work() -> None:
        await go.wait()

    async with Worker(jobs, shutdown_timeout=0) as worker:
        await work.enqueue()
        await until(lambda: worker.running)
        store.faults["exchange"] = StoreUnavailable("gone")
        go.set()
        await until(lambda: worker._exchangers[0].has_unsettled)
        assert used == []
    assert outcomes(used) == ["lost"]


@pytest.mark.stores("memory")
async def test_usage_of_a_handler_that_outlives_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "LAST_CALLS_S", 0.05)
    jobs, _, used = faulty()
    go, ended = asyncio.Event(), asyncio.Event()

    @jobs.handler
    async def stubborn() -> None:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        ended.set()

    async with Worker(jobs, shutdown_timeout=0) as worker:
        await stubborn.enqueue()
        await until(lambda: worker.running)
    assert outcomes(used) == ["lost"]
    go.set()
    await asyncio.wait_for(ended.wait(), 5)
    await asyncio.sleep(0)
    assert len(used) == 1
