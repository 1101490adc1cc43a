"""Recurring jobs on MongoDB: due times and occurrences that change in the middle of a run, as in the memory store."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec import structs

from jobmill.core.changes import Cancel, Change, Hold, Pin, Release, ReleasePin, Remove, Requeue, Reschedule
from jobmill.core.job import DAY_MS, Job
from jobmill.core.lifecycle import DEFAULT_POLICY, Suspended
from jobmill.core.lifecycle import settle as decide
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import NOW, Claimed, NewJob, Settlement, after, at
from jobmill.store import Store
from jobmill.stores.memory import MemoryStore
from jobmill.testing import ManualClock
from jobmill.testing.contract.support import (
    LEASE_MS,
    claim,
    claim_one,
    enqueue_one,
    fail,
    look,
    new,
    release,
    retry,
    seize,
    settle,
    snooze,
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

SOME_RULES: tuple[dict[str, Any], ...] = (
    *({"every_ms": ms} for ms in (700, 5_000, 90_000_000)),
    *({"cron": cron} for cron in ("* * * * *", "0 4 * * *")),
)
DELAYS_MS = (300, 2_000, 2 * DAY_MS, 40 * DAY_MS)
CLAIMS = 3


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


class Acts:
    """Random acts with recurring jobs of two keys, on two stores at the same times."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self.clock: ManualClock = scene.clock
        self.stores: tuple[Store, Store] = (scene.store, MemoryStore(clock=scene.clock))
        self.chance = random.Random(seed)
        self.ids: list[str] = []
        self.running: dict[str, tuple[Claimed, Claimed]] = {}

    async def act(self) -> str:
        acts: list[Callable[[], Any]] = [self.enqueue, self.claim, self.settle, self.change, self.wait]
        one = self.chance.choice([*acts, *acts, *acts, self.seize, self.suspend])
        about = f"{one.__name__} at {self.clock.now_ms}: {await one()}"
        self.clock.advance(0.001)
        for id in list(self.running):
            (job,) = await self.stores[1].get([id])
            if job is None or job.state != "running":
                del self.running[id]
        return about

    def _rule(self, key: str) -> Recurrence:
        return Recurrence(key=key, **self.chance.choice(SOME_RULES))

    def _new_id(self) -> str:
        self.ids.append(f"job-{len(self.ids):03}")
        return self.ids[-1]

    async def enqueue(self) -> object:
        key = self.chance.choice("kl")
        due = self.chance.choice((NOW, at(self.clock.now_ms + 500), *map(after, DELAYS_MS)))
        job = new(self._new_id(), due=due, key=key, recurrence=self._rule(key))
        job = structs.replace(job, keeps_due=self.chance.random() < 0.5)
        answers = [await enqueue_one(store, job) for store in self.stores]
        assert answers[0] == answers[1]
        return job, answers[0]

    async def claim(self) -> object:
        # Jobs that wait may hide a lost one from a single claim.
        taken = [{one.job.id: one for _ in range(CLAIMS) for one in await claim(store)} for store in self.stores]
        assert taken[0].keys() == taken[1].keys()
        self.running |= {id: (taken[0][id], taken[1][id]) for id in taken[0]}
        return sorted(taken[0])

    def _one_running(self) -> tuple[Claimed, Claimed] | None:
        return self.running.pop(self.chance.choice(sorted(self.running))) if self.running else None

    async def _settle(self, outcome: Callable[[Claimed], Settlement], both: tuple[Claimed, Claimed]) -> object:
        answers = [await settle(store, outcome(claimed)) for store, claimed in zip(self.stores, both, strict=True)]
        assert answers[0] == answers[1]
        return both[0].job.id, answers[0]

    async def settle(self) -> object:
        delay_ms, now_ms, both = self.chance.choice((0, *DELAYS_MS)), self.clock.now_ms, self._one_running()
        outcomes: tuple[Callable[[Claimed], Settlement], ...] = (
            *[lambda one: succeed(one, now_ms=now_ms)] * 2,
            lambda one: fail(one, now_ms=now_ms),
            lambda one: retry(one, delay_ms),
            lambda one: snooze(one, delay_ms),
            lambda one: release(one, delay_ms),
            release,
        )
        outcome = self.chance.choice(outcomes)
        return await self._settle(outcome, both) if both else None

    async def suspend(self) -> object:
        if (both := self._one_running()) is None:
            return None
        children = (new(self._new_id()),) if self.chance.random() < 0.5 else ()
        outcome = Suspended(children=children, due=None if children else after(800))
        return await self._settle(lambda one: decide(one, outcome, DEFAULT_POLICY, self.clock.now_ms), both)

    async def change(self) -> object:
        changes: tuple[Change, ...] = (Cancel(), Remove(), Requeue(), Requeue(after(700)), Pin(self._rule("x")))
        changes += (ReleasePin(), Hold(), Hold(), Release(), Release())
        changes += tuple(Reschedule(after(ms)) for ms in (0, *DELAYS_MS))
        change, ids = self.chance.choice(changes), [self.chance.choice(self.ids[-8:])] if self.ids else []
        answers = [await store.change(ids, change) for store in self.stores]
        assert answers[0] == answers[1]
        return change, answers[0]

    async def seize(self) -> object:
        jobs = [job for job in await self.stores[1].get(self.ids) if job and job.state in ("waiting", "running")]
        if not jobs:
            return None
        id = self.chance.choice(jobs).id
        self.running[id] = (await seize(self.stores[0], id), await seize(self.stores[1], id))
        return id

    async def wait(self) -> object:
        seconds = self.chance.choice((0.05, 0.6, 2, 70, LEASE_MS / 1_000 + 1, 86_500, 12 * 86_400))
        self.clock.advance(seconds)
        return seconds

    async def compare(self) -> None:
        ours, theirs = [[job and shown(job) for job in await store.get(self.ids)] for store in self.stores]
        assert ours == theirs


def shown(job: Job) -> tuple[object, ...]:
    times = (job.due_ms, job.occurrence_ms, job.last_finished_ms, job.updated_ms)
    counts = (job.runs, job.failed_runs, job.errors, job.crashes)
    return (job.id, job.state, job.held, job.recurrence, *times, *counts)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
async def test_recurring_jobs_do_as_in_the_memory_store(scene: Scene, seed: int) -> None:
    acts, done = Acts(scene, seed), list[str]()
    for _ in range(100):
        done.append(await acts.act())
        try:
            await acts.compare()
        except AssertionError as error:
            raise AssertionError("\n".join((str(error), "after:", *done[-25:]))) from error
