"""The announcer: which workers there are, what they counted, and the order to stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

import jobmill
from jobmill.core.announcing import Orders, WorkerCard
from jobmill.core.tallies import Tally
from jobmill.errors import StoreUnavailable
from jobmill.stores.memory import MemoryStore
from jobmill.worker import announcer
from jobmill.worker.worker import Worker
from tests.helpers import until


class Unreliable(MemoryStore):
    """A memory store whose answers to announcements can get lost, before or after they are written."""

    def __init__(self) -> None:
        super().__init__()
        self.lose: str | None = None
        self.calls = 0

    async def announce(self, card: WorkerCard, tallies: Sequence[Tally], *, leaves: bool = False) -> Orders:
        self.calls += 1
        if self.lose == "request":
            raise StoreUnavailable("away")
        orders = await super().announce(card, tallies, leaves=leaves)
        if self.lose == "answer":
            raise StoreUnavailable("away")
        return orders


@pytest.fixture
def store() -> Unreliable:
    return Unreliable()


@pytest.fixture
async def jobs(store: Unreliable, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[jobmill.Client]:
    monkeypatch.setattr(announcer, "ANNOUNCE_EVERY_S", 0.02)
    client = jobmill.connect(store=store)

    @client.handler
    async def good() -> None: ...

    @client.handler(max_attempts=2, backoff=0.001)
    async def bad(kind: str) -> None:
        raise {"value": ValueError, "key": KeyError}[kind]("no luck")

    yield client
    await client.close()


async def _totals(jobs: jobmill.Client) -> dict[str, Tally]:
    return {one.name: one for one in await jobs.tallies("1h", step="2h")}


async def test_a_worker_is_there_while_it_runs(jobs: jobmill.Client) -> None:
    worker = Worker(jobs, concurrency=7, queues=["default", "other"], name="w1")
    await worker.start()
    await until(lambda: jobs.workers())
    (card,) = await jobs.workers()
    assert (card.name, card.concurrency, card.queues) == ("w1", 7, ("default", "other"))
    assert card.names == ("bad", "good")
    assert {"heartbeat", "announcer"} <= card.loops.keys()
    assert card.purge_age_ms is not None
    assert 0 <= card.purge_age_ms < 30_000
    assert abs(card.clock_skew_ms) < 5_000
    await worker.stop()
    assert await jobs.workers() == []


async def test_what_it_counted_is_complete_when_it_has_stopped(jobs: jobmill.Client) -> None:
    for _ in range(5):
        await jobs.enqueue("good")
    await jobs.enqueue("bad", {"kind": "value"})
    await jobs.enqueue("bad", {"kind": "key"})
    worker = Worker(jobs, name="w1")
    await worker.start()
    await until(lambda: _are_final(jobs))
    await worker.stop()
    totals = await _totals(jobs)
    good, bad = totals["good"], totals["bad"]
    assert (good.claimed, good.succeeded, sum(good.run_buckets), sum(good.wait_buckets)) == (5, 5, 5, 5)
    assert (bad.claimed, bad.errored, bad.failed, bad.succeeded) == (4, 4, 2, 0)
    groups = {group.error_type: group for group in bad.error_groups}
    assert {kind: group.count for kind, group in groups.items()} == {"ValueError": 2, "KeyError": 2}
    assert groups["ValueError"].location.startswith("test_announcer.py:")
    assert groups["ValueError"].location.endswith(" in bad")
    last = await jobs.get(groups["KeyError"].last_job_id)
    assert last.error_type == "KeyError"


async def _are_final(jobs: jobmill.Client) -> bool:
    return all(job.is_final for job in (await jobs.find()).jobs)


@pytest.mark.parametrize("lost", ["request", "answer"])
async def test_each_count_is_sent_once_through_an_outage(jobs: jobmill.Client, store: Unreliable, lost: str) -> None:
    worker = Worker(jobs)
    await worker.start()
    await until(lambda: jobs.workers())
    store.lose = lost
    calls = store.calls
    for _ in range(3):
        await jobs.enqueue("good")
    await until(lambda: _are_final(jobs))
    await until(lambda: store.calls > calls + 3)
    store.lose = None
    await until(lambda: _counted(jobs, 3))
    await jobs.enqueue("good")
    await until(lambda: _are_final(jobs))
    await worker.stop()
    assert (await _totals(jobs))["good"].claimed == 4


async def _counted(jobs: jobmill.Client, claimed: int) -> bool:
    totals = await _totals(jobs)
    return "good" in totals and totals["good"].claimed >= claimed


async def test_a_worker_stops_when_it_is_ordered_to(jobs: jobmill.Client) -> None:
    running = asyncio.create_task(Worker(jobs, name="w1").run())
    await until(lambda: jobs.workers())
    (card,) = await jobs.workers()
    assert await jobs.stop_workers(card.id, "unknown") == [card.id]
    await asyncio.wait_for(running, 5)
    assert await jobs.workers() == []
    (entry,) = (await jobs.audit_log()).entries
    assert (entry.what, entry.ids, entry.who) == ("stop_workers", (card.id,), "code")


async def test_a_started_worker_stops_when_it_is_ordered_to(jobs: jobmill.Client) -> None:
    worker = Worker(jobs)
    await worker.start()
    await until(lambda: jobs.workers())
    (card,) = await jobs.workers()
    await jobs.stop_workers(card.id)
    await until(lambda: _is_deserted(jobs))
    await worker.stop()
    await worker.start()  # it has ended, so it may start again
    await worker.stop()


async def _is_deserted(jobs: jobmill.Client) -> bool:
    return not await jobs.workers()


async def test_a_tick_counts_what_it_ran_and_leaves_no_worker(jobs: jobmill.Client, store: Unreliable) -> None:
    await jobs.tick()
    assert store.calls == 0, "a tick without jobs costs nothing"
    await jobs.enqueue("good")
    await jobs.tick()
    assert (await _totals(jobs))["good"].succeeded == 1
    assert await jobs.workers() == []


async def test_a_worker_stops_in_time_if_it_cannot_say_goodbye(
    jobs: jobmill.Client, store: Unreliable, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any, **__: Any) -> Orders:
        await asyncio.Event().wait()
        raise AssertionError

    worker = Worker(jobs)
    await worker.start()
    await until(lambda: jobs.workers())
    monkeypatch.setattr(announcer, "LEAVE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(store, "announce", never)
    await asyncio.wait_for(worker.stop(), 5)
