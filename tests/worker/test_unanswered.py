"""A settlement whose answer is lost: the worker asks who ended the job, and reports the true outcome once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

import jobmill
from jobmill import Client, StoreUnavailable
from jobmill.core.values import Claim, Exchanged, Settlement
from jobmill.worker.worker import Worker
from tests.helpers import until


class Unanswered:
    """The exchanges that settle a job: the first `losses` are done by the store, but not answered."""

    def __init__(self, store: Any, losses: int = 1) -> None:
        self._exchange = store.exchange
        self.left = losses
        store.exchange = self

    async def __call__(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        answer: Exchanged = await self._exchange(settlements, None if self.left and settlements else claim)
        if settlements and self.left:
            self.left -= 1
            raise StoreUnavailable("the answer was lost")
        return answer


@pytest.fixture
async def jobs(store_url: str, store_name: str) -> AsyncIterator[Client]:
    async with jobmill.connect(store_url) as client:
        if store_name in ("postgres", "mongo"):
            await client.store.migrate()
        yield client


async def test_a_success_without_an_answer_is_reported_as_a_success_once(
    jobs: Client, caplog: pytest.LogCaptureFixture
) -> None:
    events, usage = list[str](), list[str]()
    jobs.on("*")(lambda event: events.append(event.type))
    jobs.record_usage(lambda record: usage.append(record.outcome))

    @jobs.handler()
    async def fine() -> int:
        return 3

    Unanswered(jobs.store, losses=2)
    async with Worker(jobs):
        enqueued = await fine.enqueue()
        assert await enqueued.result(timeout=20) == 3
        await until(lambda: "succeeded" in events and usage)
    assert events.count("succeeded") == 1
    assert "lease_lost" not in events
    assert usage == ["succeeded"]
    assert "came too late" not in caplog.text


async def test_a_retry_without_an_answer_is_reported_as_a_retry(jobs: Client) -> None:
    events = list[str]()
    jobs.on("*")(lambda event: events.append(event.type))
    runs = list[int]()

    @jobs.handler(backoff="1ms")
    async def flaky() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("x")

    Unanswered(jobs.store)
    async with Worker(jobs):
        await (await flaky.enqueue()).result(timeout=20)
        await until(lambda: "succeeded" in events)
    assert len(runs) == 2
    assert "lease_lost" not in events
    assert events.count("errored") == 1


async def test_a_job_that_is_not_kept_counts_as_settled_when_it_is_gone(jobs: Client) -> None:
    events = list[str]()
    jobs.on("*")(lambda event: events.append(event.type))

    @jobs.handler(keep_succeeded=False)
    async def fine() -> None: ...

    Unanswered(jobs.store)
    async with Worker(jobs):
        await fine.enqueue()
        await until(lambda: "succeeded" in events)
    assert "lease_lost" not in events


async def test_a_job_that_was_cancelled_meanwhile_is_still_lost(jobs: Client) -> None:
    events = list[str]()
    jobs.on("*")(lambda event: events.append(event.type))

    @jobs.handler()
    async def fine() -> None:
        await jobs.cancel((await jobs.find()).jobs[0].id)

    Unanswered(jobs.store)
    async with Worker(jobs):
        enqueued = await fine.enqueue()
        await until(lambda: {"lease_lost", "cancelled"} & set(events))
    assert "succeeded" not in events
    assert (await enqueued.job()).state == "cancelled"


async def test_the_store_is_asked_again_if_it_does_not_answer_that_question(
    jobs: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, asked = list[str](), list[int]()
    jobs.on("*")(lambda event: events.append(event.type))
    get = jobs.store.get

    @jobs.handler()
    async def fine() -> None: ...

    async def away_at_first(ids: Sequence[str]) -> Any:
        asked.append(1)
        if len(asked) == 1:
            raise StoreUnavailable("gone")
        return await get(ids)

    Unanswered(jobs.store)
    monkeypatch.setattr(jobs.store, "get", away_at_first)
    async with Worker(jobs):
        await fine.enqueue()
        await until(lambda: "succeeded" in events)
    assert len(asked) == 2
    assert events.count("succeeded") == 1
    assert "lease_lost" not in events
