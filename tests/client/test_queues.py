"""Queues: pause, resume, limits and feed, each with what is set afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from jobmill import Client
from jobmill.core.values import QueueSettings, RateLimit
from jobmill.handlers.handler import Handler
from jobmill.testing import ManualClock


@pytest.fixture
def work(jobs: Client) -> Handler[..., Any]:
    @jobs.handler()
    async def work() -> None: ...

    return work


async def test_what_is_set_is_told_and_kept(jobs: Client) -> None:
    queue = jobs.queue("mail")
    assert queue.name == "mail"
    assert await queue.settings() == QueueSettings()
    assert (await queue.pause()).paused
    assert (await queue.rate_limit(5, per="1m")).rate_limit == RateLimit(5, 60_000)
    assert (await queue.running_limit(3)).running_limit == 3
    assert (await queue.feed(events_max_len=50)).events_max_len == 50
    everything = QueueSettings(
        paused=True, rate_limit=RateLimit(5, 60_000), running_limit=3, feed=True, events_max_len=50
    )
    settings = await queue.settings()
    assert structs.replace(settings, pause=None) == everything, "what is not spoken of stays"
    assert settings.pause is not None
    assert settings.pause.who == "code"
    assert await jobs.queue("other").settings() == QueueSettings()
    assert not (await queue.resume()).paused
    assert (await queue.rate_limit(None)).rate_limit is None
    assert (await queue.running_limit(None)).running_limit is None
    assert not (await queue.feed(False)).feed


async def test_a_rate_is_per_second_unless_said(jobs: Client) -> None:
    assert (await jobs.queue("mail").rate_limit(5)).rate_limit == RateLimit(5, 1_000)


async def test_a_paused_queue_gives_nothing_away(jobs: Client, work: Handler[..., Any]) -> None:
    await work.enqueue()
    await jobs.queue("default").pause()
    assert (await jobs.tick()).claimed == 0
    await jobs.queue("default").resume()
    assert (await jobs.tick()).claimed == 1


async def test_a_rate_limit_holds_over_ticks(jobs: Client, work: Handler[..., Any], clock: ManualClock) -> None:
    await jobs.queue("default").rate_limit(2, per="1m")
    await jobs.enqueue_many(work.draft() for _ in range(5))
    assert [(await jobs.tick()).claimed for _ in range(2)] == [2, 0]
    clock.advance(60)
    assert [(await jobs.tick()).claimed for _ in range(2)] == [2, 0]


async def test_a_running_limit_holds_within_a_tick(jobs: Client, work: Handler[..., Any]) -> None:
    await jobs.queue("default").running_limit(2)
    await jobs.enqueue_many(work.draft() for _ in range(5))
    assert [(await jobs.tick()).claimed for _ in range(4)] == [2, 2, 1, 0]


async def test_all_queues_that_have_jobs_or_settings(jobs: Client, work: Handler[..., Any]) -> None:
    assert await jobs.queues() == []
    await work.options(queue="b").enqueue()
    await jobs.queue("a").pause()
    assert await jobs.queues() == ["a", "b"]
