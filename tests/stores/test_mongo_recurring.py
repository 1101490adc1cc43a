"""Recurring jobs on MongoDB: due times and occurrences that change in the middle of a run, as in the memory store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from jobmill.core.job import DAY_MS
from jobmill.core.lifecycle import DEFAULT_POLICY, Suspended
from jobmill.core.lifecycle import settle as decide
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import NewJob, at
from jobmill.testing.contract.support import (
    LEASE_MS,
    claim_one,
    enqueue_one,
    look,
    new,
    release,
    retry,
    settle,
    started,
    succeed,
)
from tests.stores.mongo_scene import Scene

pytestmark = pytest.mark.stores("mongo")

DAILY = Recurrence(key="report", cron="0 4 * * *")
EVERY_TWO_DAYS = Recurrence(key="report", every_ms=2 * DAY_MS)
#: A due time after 20 days is in another field.
LATER = pytest.mark.parametrize("later_ms", [60_000, 90 * DAY_MS], ids=["soon", "much_later"])
RULES = pytest.mark.parametrize("rule", [DAILY, EVERY_TWO_DAYS], ids=["cron", "interval"])


@pytest.fixture
async def scene(mongo_url: str) -> AsyncIterator[Scene]:
    scene = Scene(mongo_url)
    await scene.open()
    yield scene
    await scene.store.close()


def recurring(rule: Recurrence, due_ms: int) -> NewJob:
    return new(key=rule.key, recurrence=rule, due=at(due_ms))


@LATER
@RULES
async def test_a_lost_run_is_claimed_before_the_due_time_of_an_update(
    scene: Scene, rule: Recurrence, later_ms: int
) -> None:
    store = scene.store
    claimed = await started(store, recurring(rule, store.now()))
    due_ms = store.now() + later_ms
    await enqueue_one(store, recurring(rule, due_ms))
    scene.clock.advance(LEASE_MS / 1_000)
    again = await claim_one(store)
    assert (again.job.id, again.job.crashes) == (claimed.job.id, 1)
    assert await settle(store, release(again)) == ["done"]
    job = await look(store, again.job.id)
    assert (job.state, job.due_ms, job.occurrence_ms) == ("waiting", due_ms, due_ms)


@LATER
async def test_the_occurrence_of_an_update_stays_when_the_run_is_retried(scene: Scene, later_ms: int) -> None:
    store = scene.store
    claimed = await started(store, recurring(DAILY, store.now()))
    due_ms = store.now() + later_ms
    await enqueue_one(store, recurring(EVERY_TWO_DAYS, due_ms))
    assert await settle(store, retry(claimed, 5_000)) == ["done"]
    job = await look(store, claimed.job.id)
    assert (job.due_ms, job.occurrence_ms) == (store.now() + 5_000, due_ms)
    scene.clock.advance(5)
    again = await claim_one(store)
    assert again.job.occurrence_ms == due_ms
    assert await settle(store, succeed(again, now_ms=store.now())) == ["done"]
    job = await look(store, claimed.job.id)
    assert job.due_ms == job.occurrence_ms == due_ms + 2 * DAY_MS


@RULES
async def test_a_run_that_waits_for_a_child_keeps_its_occurrence(scene: Scene, rule: Recurrence) -> None:
    store, child = scene.store, new()
    occurrence_ms = store.now()
    claimed = await started(store, recurring(rule, occurrence_ms))
    scene.clock.advance(2)
    suspended = decide(claimed, Suspended(children=(child,)), DEFAULT_POLICY, 0)
    assert await settle(store, suspended) == ["done"]
    assert (await look(store, claimed.job.id)).occurrence_ms == occurrence_ms
    assert await settle(store, succeed(await claim_one(store))) == ["done"]
    job = await look(store, claimed.job.id)
    assert (job.held, job.due_ms <= store.now(), job.occurrence_ms) == (None, True, occurrence_ms)
