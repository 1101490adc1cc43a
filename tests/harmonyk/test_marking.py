"""mark_success and mark_failure: a job is settled by somebody who did not claim it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

import jobmill
from jobmill import Client, Event, InvalidValue, Job, JobNotFound, StoreError, StoreUnavailable, fixed, harmonyk
from jobmill.core.changes import Cancel, Change, Changed, Requeue, Seize
from jobmill.core.values import Claim, Exchanged, Filter, Refused, Settlement
from jobmill.harmonyk import Marked
from jobmill.store import Store
from jobmill.stores.memory import MemoryStore
from jobmill.testing import ManualClock
from jobmill.testing.contract.support import claim_one, settle, succeed


@pytest.fixture
def repository(jobs: Client) -> harmonyk.Repository:
    return harmonyk.Repository(jobs)


# ---------------------------------------------------------------------------------------------------- success


async def test_a_queued_job_has_succeeded(jobs: Client, repository: harmonyk.Repository, clock: ManualClock) -> None:
    id = (await jobs.enqueue("scan", delay="1h")).id
    clock.advance(5)
    assert await repository.mark_success(id) == Marked(changed=True, status="success")
    job = await jobs.get(id)
    assert (job.state, job.finished_ms, job.result, job.error, job.errors) == ("succeeded", clock(), None, None, 0)
    assert (job.claims, job.crashes) == (1, 0)
    assert job.worker
    assert job.worker.endswith("-repository")


async def test_a_worker_that_held_it_has_lost_it(jobs: Client, repository: harmonyk.Repository) -> None:
    id = await repository.enqueue("scan")
    held = await claim_one(jobs.store, queues=("default",), names=("scan",))
    assert await repository.mark_success(id) == Marked(changed=True, status="success")
    assert await jobs.store.extend([held.lease], 60_000) == [id]
    assert await settle(jobs.store, succeed(held, "late")) == ["lost"]
    assert (await jobs.get(id)).result is None


async def test_a_real_worker_that_runs_it_loses_it(
    jobs: Client, repository: harmonyk.Repository, caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.handler
    async def scan(context: jobmill.Context, how: str) -> str:
        if how == "success":
            await repository.mark_success(context.job.id)
        else:
            await repository.mark_failure(context.job.id, "by hand")
        return "late"

    good = await repository.enqueue("scan", payload={"how": "success"})
    bad = await repository.enqueue("scan", payload={"how": "failure"})
    with caplog.at_level(logging.ERROR):
        tick = await jobs.tick()
    assert (tick.claimed, tick.lost, tick.succeeded) == (2, 2, 0)
    assert (harmonyk.status(await jobs.get(good)), harmonyk.status(await jobs.get(bad))) == ("success", "queued")
    assert (await jobs.get(bad)).errors == 1


async def test_a_recurring_job_goes_on(jobs: Client, repository: harmonyk.Repository) -> None:
    id = (await jobs.enqueue("scan", every="1h", key="hourly")).id
    assert await repository.mark_success(id) == Marked(changed=True, status="queued")
    (job,) = (await jobs.find(unique_key="hourly", states=["waiting", "running"])).jobs
    assert (job.state, job.runs, job.failed_runs) == ("waiting", 1, 0)


async def test_a_success_is_kept_as_its_handler_says(jobs: Client, repository: harmonyk.Repository) -> None:
    @jobs.handler(keep_succeeded=False)
    async def scan() -> None: ...

    id = (await jobmill.connect(store=jobs.store).enqueue("scan")).id
    assert (await repository.mark_success(id)).changed
    with pytest.raises(JobNotFound):
        await jobs.get(id)


# ---------------------------------------------------------------------------------------------------- failure


async def test_failures_are_retried_by_the_rule(
    jobs: Client, repository: harmonyk.Repository, clock: ManualClock
) -> None:
    id = await repository.enqueue("scan")
    for attempts in range(1, 6):
        assert harmonyk.can_retry("failed", attempts - 1)
        assert await repository.mark_failure(id, f"error {attempts}") == Marked(changed=True, status="queued")
        job = await jobs.get(id)
        assert (job.errors, job.error, job.state) == (attempts, f"error {attempts}", "waiting")
        assert job.due_ms - clock() == harmonyk.backoff_delay_ms(attempts)
        clock.advance(3)
    assert not harmonyk.can_retry("failed", 5)
    assert await repository.mark_failure(id, "error 6") == Marked(changed=True, status="failed")
    job = await jobs.get(id)
    assert (job.state, job.errors, job.crashes, harmonyk.last_error(job)) == ("failed", 6, 0, "error 6")


SAID: list[tuple[dict[str, Any], list[int]]] = [
    ({"max_attempts": 3}, [1, 2]),
    ({"backoff": fixed("5s")}, [5, 5, 5, 5, 5]),
    ({"max_attempts": 4, "backoff": lambda attempt, error: attempt * 10 + len(str(error))}, [14, 24, 34]),
]


@pytest.mark.parametrize(("said", "waits"), SAID, ids=[" ".join(said) for said, _ in SAID])
async def test_what_its_handler_says_goes_before_the_rule(
    jobs: Client, store: Store, repository: harmonyk.Repository, said: dict[str, Any], waits: list[int]
) -> None:
    id = await harmonyk.Repository(jobmill.connect(store=store)).enqueue("scan")

    @jobs.handler(**said)
    async def scan() -> None: ...

    waited = []
    while (await repository.mark_failure(id, "boom")).status == "queued":
        waited.append(((await jobs.get(id)).due_ms - store.now()) // 1_000)
    assert waited == waits


async def test_jobs_that_came_by_another_way_have_their_own_rule(jobs: Client, repository: harmonyk.Repository) -> None:
    id = (await jobs.enqueue("scan")).id
    answers = [(await repository.mark_failure(id, "boom")).status for _ in range(3)]
    assert answers == ["queued", "queued", "failed"]


async def test_a_worker_that_held_it_has_lost_it_to_a_failure(jobs: Client, repository: harmonyk.Repository) -> None:
    id = await repository.enqueue("scan")
    held = await claim_one(jobs.store, queues=("default",), names=("scan",))
    await repository.mark_failure(id, "stuck")
    assert await settle(jobs.store, succeed(held)) == ["lost"]
    job = await jobs.get(id)
    assert (job.state, job.errors, job.crashes, job.error) == ("waiting", 1, 0, "stuck")


@pytest.mark.parametrize(("error", "kept"), [("", ""), ("a\x00b\ud800", "a\ufffdb?"), ("x" * 9_000, "x" * 4_000)])
async def test_any_text_can_be_kept(jobs: Client, repository: harmonyk.Repository, error: str, kept: str) -> None:
    id = await repository.enqueue("scan")
    await repository.mark_failure(id, error)
    assert (await jobs.get(id)).error == kept


async def test_an_error_is_a_text(jobs: Client, repository: harmonyk.Repository) -> None:
    id = await repository.enqueue("scan")
    wrong: Any = ValueError("boom")
    with pytest.raises(InvalidValue, match=r"^error: expected a text, got ValueError\('boom'\)"):
        await repository.mark_failure(id, wrong)
    assert (await jobs.get(id)).claims == 0


# ---------------------------------------------------------------------------------------------------- neither


async def final(jobs: Client, repository: harmonyk.Repository, how: str) -> Job:
    id = (await jobs.enqueue("scan", max_attempts=1)).id
    if how == "success":
        await repository.mark_success(id)
    elif how == "failed":
        await repository.mark_failure(id, "boom")
    else:
        await jobs.cancel(id)
    return await jobs.get(id)


@pytest.mark.parametrize("how", ["success", "failed", "cancelled"])
async def test_a_final_job_is_left_as_it_is_and_that_is_said(
    jobs: Client, repository: harmonyk.Repository, how: str
) -> None:
    job = await final(jobs, repository, how)
    expected = Marked(changed=False, status="success" if how == "success" else "failed")
    assert await repository.mark_success(job.id) == expected
    assert await repository.mark_failure(job.id, "too late") == expected
    assert await jobs.get(job.id) == job


async def test_an_id_that_is_not_there(repository: harmonyk.Repository) -> None:
    with pytest.raises(JobNotFound, match="there is no job 'never-was'"):
        await repository.mark_success("never-was")
    with pytest.raises(JobNotFound, match="there is no job 'never-was'"):
        await repository.mark_failure("never-was", "boom")
    wrong: Any = 7
    with pytest.raises(InvalidValue, match="^id: expected the id of a job, got 7"):
        await repository.mark_success(wrong)


async def test_hooks_of_this_client_are_told(jobs: Client, repository: harmonyk.Repository) -> None:
    told: list[tuple[str, str]] = []

    @jobs.on("*")
    async def hear(event: Event) -> None:
        told.append((event.type, event.job_id))

    id = await repository.enqueue("scan")
    await repository.mark_failure(id, "boom")
    await repository.mark_success(id)
    await repository.mark_success(id)
    assert told == [("enqueued", id), ("errored", id), ("retrying", id), ("succeeded", id)]


# ---------------------------------------------------------------------------------------------------- races


class Rivals(MemoryStore):
    """A real store, in which others act between the calls of a mark."""

    def __init__(self) -> None:
        super().__init__()
        self.rivals: list[Change] = []

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """As the port says; then a rival acts."""
        found = await super().get(ids)
        if self.rivals:
            await super().change(ids, self.rivals.pop())
        return found


RIVAL = Seize(token="a rival's", worker="rival", lease_ms=15_000)


async def test_a_job_that_another_seizes_in_between_is_seized_again() -> None:
    store = Rivals()
    async with jobmill.connect(store=store) as jobs:
        repository = harmonyk.Repository(jobs)
        id = await repository.enqueue("scan")
        told: list[str] = []
        jobs.on("*")(lambda event: told.append(event.type))
        store.rivals = [RIVAL, RIVAL]
        assert await repository.mark_failure(id, "boom") == Marked(changed=True, status="queued")
        job = await jobs.get(id)
        assert (job.errors, job.claims, job.crashes) == (1, 5, 0)
        assert told == ["errored", "retrying"], "what was lost is not told"


async def test_a_job_that_another_cancels_in_between_is_left_alone() -> None:
    store = Rivals()
    async with jobmill.connect(store=store) as jobs:
        repository = harmonyk.Repository(jobs)
        id = await repository.enqueue("scan")
        store.rivals = [Cancel()]
        assert await repository.mark_success(id) == Marked(changed=False, status="failed")
        assert harmonyk.last_error(await jobs.get(id)) == "cancelled"


async def test_there_is_an_end_to_seizing() -> None:
    store = Rivals()
    async with jobmill.connect(store=store) as jobs:
        repository = harmonyk.Repository(jobs)
        id = await repository.enqueue("scan")
        store.rivals = [RIVAL] * 100
        with pytest.raises(StoreUnavailable, match=f"job '{id}' was claimed or changed 10 times"):
            await repository.mark_success(id)


class Requeued(MemoryStore):
    """A real store, in which somebody requeues the job after a change was refused."""

    async def change(self, which: Sequence[str] | Filter, change: Change, limit: int = 1_000) -> Changed:
        """As told."""
        changed = await super().change(which, change, limit)
        if changed.refused:
            await super().change(which, Requeue())
        return changed


async def test_a_job_that_is_requeued_in_between_is_marked() -> None:
    async with jobmill.connect(store=Requeued()) as jobs:
        repository = harmonyk.Repository(jobs)
        id = await repository.enqueue("scan")
        await repository.mark_success(id)
        assert await repository.mark_failure(id, "after all") == Marked(changed=True, status="queued")


class Slow(MemoryStore):
    """A real store whose settlements wait until they may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may = asyncio.Event(), asyncio.Event()

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        """As told."""
        self.asked.set()
        await self.may.wait()
        return await super().exchange(settlements, claim)


async def test_a_caller_that_is_cancelled_leaves_no_job_seized() -> None:
    store = Slow()
    async with jobmill.connect(store=store) as jobs:
        repository = harmonyk.Repository(jobs)
        id = await repository.enqueue("scan")
        marking = asyncio.create_task(repository.mark_success(id))
        await store.asked.wait()
        marking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await marking
        store.may.set()
        assert await jobs.result(id, timeout=5) is None


class Refusing(MemoryStore):
    """A real store that cannot hold what a settlement says."""

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        """As told."""
        exchanged = await super().exchange([], claim)
        return Exchanged(
            settled=[Refused("no room") for _ in settlements],
            claimed=exchanged.claimed,
            next_due_ms=exchanged.next_due_ms,
            now_ms=exchanged.now_ms,
        )


async def test_what_a_store_refuses_is_an_error() -> None:
    async with jobmill.connect(store=Refusing()) as jobs:
        repository = harmonyk.Repository(jobs)
        id = await repository.enqueue("scan")
        with pytest.raises(StoreError, match=f"job '{id}' cannot be marked: no room"):
            await repository.mark_failure(id, "boom")
