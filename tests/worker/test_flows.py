"""Workflows that run: the programs of examples/workflows.py on every store, and what handlers must not do."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import jobmill
from jobmill import Client, Context, JobFailed
from jobmill.core.flows import Dependency, Recorded, Signal
from jobmill.errors import StoreUnavailable
from jobmill.stores.memory import MemoryStore
from jobmill.worker.outbox import EVERY_S, UNCLAIMED_MS, OutboxLoop, fail_unclaimed
from jobmill.worker.worker import Worker
from tests.helpers import until
from tests.stores_under_test import make_store

EXPECTED = {
    "chain": 3,
    "fan_in": "both: a, b",
    "fan_in_with_failures": "a, OSError: no such page",
    "nested_groups": "eu: eu1, eu2 | us: us1, us2",
    "diamond": True,
    "progress_of_many": "200 of 200, 0 failed",
    "order_only": "tidy",
    "saga": "StepFailed: step 'charge' failed in an earlier run: ValueError: no money for charge",
    "approval": "shipped, approved by ann",
    "retry_a_branch": "2 jobs run again",
    "cancel_all": "2 jobs cancelled",
}


@pytest.fixture
async def jobs(store_url: str) -> AsyncIterator[Client]:
    async with jobmill.connect(store_url) as client:
        yield client


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    return importlib.import_module("workflows")


async def test_the_programs(store_url: str, programs: Any) -> None:
    store = make_store(store_url)
    async with programs.jobs.using(store) as client:
        worker = Worker(client, concurrency=20)
        await worker.start()
        try:
            assert {one.__name__: await one() for one in programs.PROGRAMS} == EXPECTED
            crawled = await programs.crawl.enqueue(url="a")
            assert await crawled.result(timeout="30s") == 3
            assert (await crawled.job()).errors == 0
        finally:
            await worker.stop()


@pytest.fixture
async def worker(jobs: Client) -> AsyncIterator[Worker]:
    """Started by the test, when its handlers are there."""
    worker = Worker(jobs, concurrency=10)
    yield worker
    await worker.stop()


async def test_a_sync_handler(jobs: Client, worker: Worker) -> None:
    calls: list[str] = []

    @jobs.handler
    def double(n: int) -> int:
        return 2 * n

    def noted(text: str) -> str:
        calls.append(text)
        return text

    @jobs.handler
    def work(context: Context, n: int) -> list[object]:
        first = context.sync.step("note", noted, "once")
        doubled = context.sync.run(double.draft(n=n))
        both = context.sync.run_all(double.draft(n=m) for m in (3, 4))
        context.sync.sleep("nap", 0.01)
        return [first, doubled, both, context.sync.wait_for("go", int, timeout="1h")]

    await worker.start()
    enqueued = await work.enqueue(n=5)
    assert await jobs.signal(enqueued.id, "go", 7)
    assert await enqueued.result(timeout="30s") == ["once", 10, [6, 8], 7]
    assert calls == ["once"]
    job = await enqueued.job()
    assert (job.errors, job.crashes, job.attempts) == (0, 0, ())


async def test_steps_are_taken_once(jobs: Client, worker: Worker) -> None:
    calls: list[str] = []

    async def charge(key: str) -> dict[str, str]:
        calls.append(key)
        return {"key": key}

    @jobs.handler(max_attempts=5, backoff="1ms")
    async def pay(context: Context) -> list[str]:
        first = await context.step("charge", charge, context.key("charge"))
        second = await context.step("charge", charge, context.key("charge"))
        if context.attempt < 3:
            raise ValueError("after the steps")
        return [first["key"], second["key"]]

    await worker.start()
    enqueued = await pay.enqueue()
    keys = [f"{enqueued.id}:charge", f"{enqueued.id}:charge#2"]
    assert await enqueued.result(timeout="30s") == keys
    assert calls == keys
    assert [step.name for step in (await jobs.store.recorded(enqueued.id)).steps] == ["charge", "charge#2"]


async def test_a_requeue_takes_the_steps_again_unless_they_are_kept(jobs: Client, worker: Worker) -> None:
    calls: list[int] = []

    def note() -> int:
        calls.append(1)
        return len(calls)

    @jobs.handler
    async def work(context: Context) -> int:
        return await context.step("note", note)

    await worker.start()
    enqueued = await work.enqueue()
    assert await enqueued.result(timeout="30s") == 1
    await jobs.requeue(enqueued.id, keep_steps=True)
    assert await enqueued.result(timeout="30s") == 1
    await jobs.requeue(enqueued.id)
    assert await enqueued.result(timeout="30s") == 2


async def test_steps_at_once_keep_their_numbers(jobs: Client, worker: Worker) -> None:
    @jobs.handler(max_attempts=2, backoff="1ms")
    async def both(context: Context) -> list[int]:
        async def wait(n: int) -> int:
            await asyncio.sleep(0.01 * n)
            if context.attempt == 1 and n == 2:
                raise ValueError("the slower one fails")
            return n

        return list(await asyncio.gather(context.step("slow", wait, 2), context.step("fast", wait, 0)))

    await worker.start()
    enqueued = await both.enqueue()
    assert await enqueued.result(timeout="30s") == [2, 0]
    steps = (await jobs.store.recorded(enqueued.id)).steps
    assert [(step.number, step.name) for step in steps] == [(0, "slow"), (1, "fast")]


@pytest.mark.parametrize("second", ["other", None])
async def test_a_handler_that_takes_other_steps_fails(jobs: Client, worker: Worker, second: str | None) -> None:
    @jobs.handler(max_attempts=5, backoff="1ms")
    async def changed(context: Context) -> None:
        if context.attempt == 1:
            await context.step("first", str, 1)
            raise ValueError("once more")
        if second is not None:
            await context.step(second, str, 1)

    await worker.start()
    with pytest.raises(JobFailed, match="StepsChanged.*'first'"):
        await (await changed.enqueue()).result(timeout="30s")


async def test_a_handler_must_not_catch_its_suspension(jobs: Client, worker: Worker) -> None:
    @jobs.handler(max_attempts=1)
    async def greedy(context: Context) -> str:
        try:
            await context.sleep("nap", "1h")
        except BaseException:
            return "caught"
        return "never"

    await worker.start()
    with pytest.raises(JobFailed, match="caught Suspend"):
        await (await greedy.enqueue()).result(timeout="30s")


async def test_except_exception_does_not_catch_it(jobs: Client, worker: Worker) -> None:
    @jobs.handler(max_attempts=1)
    async def careful(context: Context) -> str:
        try:
            await context.sleep("nap", 0.01)
        except Exception:
            return "caught"
        return "slept"

    await worker.start()
    assert await (await careful.enqueue()).result(timeout="30s") == "slept"


async def test_a_recurring_job_cannot_wait(jobs: Client, worker: Worker) -> None:
    @jobs.handler(max_attempts=1)
    async def nightly(context: Context) -> None:
        await context.sleep("nap", 1)

    await worker.start()
    enqueued = await nightly.options(every="1h", key="k").enqueue()
    await jobs.reschedule(enqueued.id, delay=0)

    async def last_error() -> str | None:
        return (await enqueued.job()).last_error

    assert "recurring job cannot" in str(await until(last_error))


async def test_a_wait_ends_at_its_timeout_for_ever(jobs: Client, worker: Worker) -> None:
    @jobs.handler(max_attempts=2, backoff="1ms")
    async def ask(context: Context) -> str:
        answer = await context.wait_for("go", int, timeout=0.01)
        if context.attempt == 1:
            await jobs.store.signal(context.job.id, Signal(name="go", value_json=b"1"))
            raise ValueError("the signal came after the timeout")
        return str(answer)

    await worker.start()
    assert await (await ask.enqueue()).result(timeout="30s") == "None"


async def test_a_child_that_fails_raises_in_the_handler(jobs: Client, worker: Worker) -> None:
    @jobs.handler(max_attempts=1)
    async def bad() -> None:
        raise ValueError("no luck")

    @jobs.handler(max_attempts=1)
    async def parent(context: Context) -> str:
        try:
            await context.run(bad.draft())
        except jobmill.DependencyFailed as error:
            return str(error)
        return "never"

    await worker.start()
    enqueued = await parent.enqueue()
    assert await enqueued.result(timeout="30s") == f"job {enqueued.id}.0 (bad) failed: ValueError: no luck"


async def test_a_handler_adds_jobs_that_its_dependents_wait_for(jobs: Client, worker: Worker) -> None:
    ran: list[str] = []

    @jobs.handler
    async def part(n: int) -> None:
        ran.append(f"part {n}")

    @jobs.handler
    async def split(context: Context) -> str:
        ran.append("split")
        await context.add(part.draft(n=1), part.draft(n=2))
        return "result"

    @jobs.handler
    async def last(text: str) -> str:
        ran.append("last")
        return text

    await worker.start()
    enqueued = await last.draft(split.draft().result).enqueue()
    assert await enqueued.result(timeout="30s") == "result"
    assert (ran[0], sorted(ran[1:3]), ran[3]) == ("split", ["part 1", "part 2"], "last")
    assert len(ran) == 4


async def test_children_that_wait_for_each_other(jobs: Client, worker: Worker) -> None:
    @jobs.handler
    async def one(n: int) -> int:
        return n

    @jobs.handler
    async def add(parts: list[int]) -> int:
        return sum(parts)

    @jobs.handler
    async def parent(context: Context) -> list[int]:
        group = jobs.group(one.draft(n=n) for n in range(4))
        return [await context.run(add.draft(parts=group.results)), await context.run(one.draft(n=9))]

    await worker.start()
    enqueued = await parent.enqueue()
    assert await enqueued.result(timeout="30s") == [6, 9]
    assert (await (await jobs.flow(enqueued.id)).progress()).succeeded == 6


async def test_a_job_that_must_fail_and_that_nobody_claims(jobs: Client, worker: Worker) -> None:
    @jobs.handler(max_attempts=1)
    async def first() -> None:
        raise ValueError("no luck")

    await worker.start()
    last = await jobs.draft("nobody").after(first.draft()).enqueue()
    await until(lambda: is_doomed(jobs, last.id))
    context = worker._context
    await fail_unclaimed(context, "default", jobs.store.now())
    assert (await last.job()).state == "waiting"
    await fail_unclaimed(context, "default", jobs.store.now() + UNCLAIMED_MS + 1_000)
    job = await last.job()
    assert (job.state, job.error) == ("failed", job.attempts[-1].error)
    assert "no luck" in str(job.error)


async def is_doomed(jobs: Client, id: str) -> bool:
    return (await jobs.get(id)).deferred_error is not None


async def test_many_dependents_are_released_at_once(jobs: Client, worker: Worker) -> None:
    """More than one call may release: the outbox loop does the rest, and does not wait for its next turn."""

    @jobs.handler
    async def first() -> None: ...

    @jobs.handler
    async def then(n: int) -> int:
        return n

    start = first.draft()
    flow = await jobs.group([then.draft(n=n).after(start) for n in range(2_500)]).enqueue()
    await worker.start()

    async def is_done() -> bool:
        return (await flow.progress()).succeeded == 2_501

    await until(is_done, timeout=60)
    assert worker._context.counts.outbox_flushed >= 1_500


class Outbox(MemoryStore):
    """An exchange of another task leaves something while the first flush is under way."""

    def __init__(self, left: asyncio.Event) -> None:
        super().__init__()
        self.left = left
        self.flushes = 0

    async def flush_outbox(self, limit: int = 1_000) -> int:
        self.flushes += 1
        if self.flushes == 1:
            self.left.set()
        return 0


async def test_what_is_left_during_a_flush_does_not_wait_for_the_next_look() -> None:
    left, random = asyncio.Event(), SimpleNamespace(random=lambda: 0.5)
    store = Outbox(left)
    counts, settings = SimpleNamespace(outbox_flushed=0), SimpleNamespace(queues=())
    context: Any = SimpleNamespace(store=store, outbox=left, random=random, counts=counts, settings=settings)
    loop = OutboxLoop(context)
    left.set()
    for _ in range(2):
        async with asyncio.timeout(EVERY_S / 2):
            await loop.turn()
    assert store.flushes == 2


# ---------------------------------------------------------------------------------------------------- outages


class Unreachable(MemoryStore):
    """A store that cannot be reached by the first calls of these verbs."""

    def __init__(self, *verbs: str) -> None:
        super().__init__()
        self.verbs = list(verbs)

    async def recorded(self, id: str) -> Recorded:
        self._fail("recorded")
        return await super().recorded(id)

    async def dependencies(self, id: str, first: int = 0, limit: int = 1_000) -> list[Dependency]:
        self._fail("dependencies")
        return await super().dependencies(id, first, limit)

    def _fail(self, verb: str) -> None:
        if verb in self.verbs:
            self.verbs.remove(verb)
            raise StoreUnavailable("away")


@pytest.mark.stores("memory")
async def test_an_outage_is_no_error_of_a_job_that_takes_no_steps() -> None:
    store = Unreachable("recorded")
    async with jobmill.connect(store=store) as jobs:

        @jobs.handler(max_attempts=2, backoff="1ms")
        async def fetch(context: Context) -> int:
            if context.attempt == 1:
                raise ValueError("once more")
            return context.attempt

        async with Worker(jobs):
            enqueued = await fetch.enqueue()
            assert await enqueued.result(timeout="30s") == 2
    assert store.verbs == [], "the second run has asked whether steps were recorded"


@pytest.mark.stores("memory")
async def test_an_outage_before_the_run_is_no_error_of_the_job() -> None:
    store = Unreachable("dependencies")
    async with jobmill.connect(store=store) as jobs:

        @jobs.handler
        async def one() -> int:
            return 1

        @jobs.handler(max_attempts=1)
        async def add(n: int) -> int:
            return n + 1

        async with Worker(jobs):
            enqueued = await add.draft(one.draft().result).enqueue()
            assert await enqueued.result(timeout="30s") == 2
        job = await enqueued.job()
        assert (job.errors, job.claims) == (0, 2)
    assert store.verbs == []


# ---------------------------------------------------------------------------------------------------- isolated handlers


@pytest.fixture
async def isolated(store_url: str) -> AsyncIterator[Any]:
    """A module with isolated handlers, on a store of this test, and a worker that runs them."""
    from tests.worker import durable_handlers

    async with durable_handlers.jobs.using(make_store(store_url)) as client:
        worker = Worker(client, concurrency=10)
        await worker.start()
        yield durable_handlers
        await worker.stop()


@pytest.mark.parametrize("kind", ["forked", "pooled", "spawned", "sync_forked", "sync_pooled", "sync_spawned"])
async def test_an_isolated_handler(isolated: Any, kind: str, tmp_path: Path) -> None:
    enqueued = await getattr(isolated, kind).enqueue(n=5, path=str(tmp_path / "calls"))
    assert await isolated.jobs.signal(enqueued.id, "go", 7)
    *values, pid = await enqueued.result(timeout="60s")
    assert values == [1, 10, [6, 8], 7]
    assert pid != os.getpid()
    job = await enqueued.job()
    assert (job.errors, job.crashes, job.attempts) == (0, 0, ())


async def test_the_steps_of_an_isolated_process_that_died(isolated: Any, tmp_path: Path) -> None:
    enqueued = await isolated.dies.enqueue(path=str(tmp_path / "calls"))
    assert await enqueued.result(timeout="60s") == 1
    assert (tmp_path / "calls").read_text() == "x\n"


async def test_an_isolated_handler_that_leaves_a_step_out(isolated: Any) -> None:
    with pytest.raises(JobFailed, match="StepsChanged.*'first'"):
        await (await isolated.forgets.enqueue()).result(timeout="60s")
