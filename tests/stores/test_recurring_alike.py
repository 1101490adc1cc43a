"""Recurring jobs have the same states and times on every store: the memory store does the same random acts.

Not on Redis, where each run is a job of its own, as in BullMQ.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from jobmill.core.changes import (
    Cancel,
    Change,
    Hold,
    Pin,
    Release,
    ReleasePin,
    Remove,
    Reprioritize,
    Requeue,
    Reschedule,
)
from jobmill.core.job import DAY_MS, Job
from jobmill.core.lifecycle import DEFAULT_POLICY, Errored, Outcome, Policy, Released, Snoozed, Succeeded, Suspended
from jobmill.core.lifecycle import settle as decide
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import NOW, Claimed, Settlement, after, at
from jobmill.store import Store
from jobmill.stores.memory import MemoryStore
from jobmill.testing import ManualClock
from jobmill.testing.contract.support import LEASE_MS, claim, enqueue_one, new, readable, seize, wish
from tests.stores_under_test import make_store, make_url

ACTS = 80
RULES: tuple[dict[str, Any], ...] = (
    *({"every_ms": ms} for ms in (700, 2_500, 90_000_000)),
    *({"cron": cron} for cron in ("* * * * *", "0 4 * * *")),
)
#: MongoDB has due times after 20 days in another field.
DELAYS_MS = (300, 2_000, 2 * DAY_MS, 40 * DAY_MS)
WAITS_S = (0.05, 0.6, 2, 4, 70, LEASE_MS / 1_000 + 1, 86_500, 12 * 86_400)
#: Jobs that wait may hide a lost one from a single claim.
CLAIMS = 3


class Acts:
    """Random acts with recurring jobs of two keys, on two stores at the same times."""

    def __init__(self, store: Store, clock: ManualClock, seed: int) -> None:
        self.clock = clock
        self.stores = (store, MemoryStore(clock=clock))
        self.chance = random.Random(seed)
        self.ids: list[str] = []
        #: The leases that both stores have given on jobs that run.
        self.running: dict[str, tuple[Claimed, Claimed]] = {}
        often: tuple[Callable[[], Any], ...] = (self.enqueue, self.claim, self.settle, self.change, self.wait)
        self.acts = [*often * 3, self.settle_and_claim, self.settle_and_claim, self.seize, self.end_all_leases]

    async def act(self) -> str:
        one = self.chance.choice(self.acts)
        about = f"{one.__name__} at {self.clock.now_ms}: {await one()}"
        self.clock.advance(0.001)
        for id in list(self.running):
            (job,) = await self.stores[1].get([id])
            if job is None or job.state != "running":
                del self.running[id]
        return about

    def _rule(self, key: str) -> Recurrence:
        until_ms = self.chance.choice((None, None, None, self.clock.now_ms + 5_000))
        return Recurrence(key=key, until_ms=until_ms, **self.chance.choice(RULES))

    def _new_id(self) -> str:
        self.ids.append(f"job-{len(self.ids):03}")
        return self.ids[-1]

    async def enqueue(self) -> object:
        key = self.chance.choice("kl")
        due = self.chance.choice((NOW, NOW, at(self.clock.now_ms + 500), *map(after, DELAYS_MS)))
        job = new(self._new_id(), due=due, key=key, recurrence=self._rule(key), payload=len(self.ids))
        job = structs.replace(job, keeps_due=self.chance.random() < 0.4)
        answers = [await enqueue_one(store, job) for store in self.stores]
        assert answers[0] == answers[1]
        return job, answers[0]

    async def claim(self, first: Sequence[Sequence[Claimed]] = ((), ())) -> object:
        """`first`: what calls have claimed that settled, too."""
        taken = [
            {one.job.id: one for batch in [some, *[await claim(store) for _ in range(CLAIMS)]] for one in batch}
            for store, some in zip(self.stores, first, strict=True)
        ]
        assert taken[0].keys() == taken[1].keys()
        self.running |= {id: (taken[0][id], taken[1][id]) for id in taken[0]}
        return sorted(taken[0])

    def _settlements(self) -> list[tuple[Settlement, Settlement]]:
        """Of one or two jobs that run."""
        ids = self.chance.sample(sorted(self.running), min(len(self.running), self.chance.choice((1, 2))))
        found = []
        for both in map(self.running.pop, ids):
            outcome, rules = self._outcome(), self.chance.choice((DEFAULT_POLICY, Policy(max_attempts=2)))
            one, other = [decide(claimed, outcome, rules, self.clock.now_ms) for claimed in both]
            found.append((one, other))
        return found

    def _outcome(self) -> Outcome:
        if self.chance.random() < 0.1:
            has_child = self.chance.random() < 0.5
            return Suspended(children=(new(self._new_id()),)) if has_child else Suspended(children=(), due=after(800))
        delay_ms = self.chance.choice((0, *DELAYS_MS))
        ends = (Succeeded(b'"good"'), Succeeded(b'"good"'), Errored(error="boom", final=True))
        waits = (Errored(error="boom", delay_ms=delay_ms), Snoozed(delay_ms), Released(None), Released(delay_ms))
        return self.chance.choice((*ends, *waits))

    async def settle(self) -> object:
        done = self._settlements()
        answers = [
            (await store.exchange([one[number] for one in done], None)).settled
            for number, store in enumerate(self.stores)
        ]
        assert answers[0] == answers[1]
        return _outcomes(done), answers[0]

    async def settle_and_claim(self) -> object:
        """In one call, which never claims a job that it settles."""
        done = self._settlements()
        exchanged = [
            await store.exchange([one[number] for one in done], wish()) for number, store in enumerate(self.stores)
        ]
        assert exchanged[0].settled == exchanged[1].settled
        return _outcomes(done), await self.claim([readable(one.claimed) for one in exchanged])

    async def change(self) -> object:
        changes: tuple[Change, ...] = (Cancel(), Remove(), Requeue(), Requeue(after(700)), Pin(self._rule("x")))
        changes += (ReleasePin(), Hold(), Hold(), Release(), Release(), Reprioritize(5))
        changes += tuple(Reschedule(after(ms)) for ms in (0, *DELAYS_MS))
        change, ids = self.chance.choice(changes), [self.chance.choice(self.ids[-8:])] if self.ids else []
        answers = [await store.change(ids, change) for store in self.stores]
        assert answers[0] == answers[1]
        return change, answers[0]

    async def seize(self) -> object:
        """A job that waits or runs. Nobody seizes a job that is held, and lets it wait again."""
        jobs = [job for job in await self.stores[1].get(self.ids) if job is not None and job.held is None]
        if not (live := [job.id for job in jobs if job.state in ("waiting", "running")]):
            return None
        id = self.chance.choice(live)
        self.running[id] = (await seize(self.stores[0], id), await seize(self.stores[1], id))
        return id

    async def wait(self) -> object:
        seconds = self.chance.choice(WAITS_S)
        self.clock.advance(seconds)
        return seconds

    async def end_all_leases(self) -> object:
        """All processes have died."""
        self.clock.advance(LEASE_MS / 1_000)
        self.running = {}
        return await self.claim()

    async def compare(self) -> None:
        ours, theirs = [
            [None if job is None else shown(job) for job in await store.get(self.ids)] for store in self.stores
        ]
        different = [
            f"{one['id']}: {name} is {one[name]}, expected {other[name]}"
            for one, other in zip(ours, theirs, strict=True)
            if one and other
            for name in one
            if one[name] != other[name]
        ]
        assert not different, different
        assert ours == theirs


def _outcomes(done: Sequence[tuple[Settlement, Settlement]]) -> str:
    return ", ".join(f"{one.lease.id} {one.outcome} {one.due} {one.rearm}" for one, _ in done)


def shown(job: Job) -> dict[str, Any]:
    times = ("due_ms", "occurrence_ms", "last_finished_ms", "updated_ms")
    counts = ("runs", "failed_runs", "errors", "crashes", "claims")
    others = ("id", "state", "held", "recurrence", "unique_key", "priority", "payload", "last_error")
    return {name: getattr(job, name) for name in (*others, *times, *counts)}


@pytest.mark.stores("sqlite", "postgres", "mongo")
@pytest.mark.parametrize("seed", range(6))
async def test_a_store_does_as_the_memory_store(
    store_name: str, seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    clock = ManualClock()
    store = make_store(await make_url(store_name, tmp_path, request), clock)
    await store.migrate()
    await store.open()
    acts, done = Acts(store, clock, seed), list[str]()
    try:
        for _ in range(ACTS):
            try:
                done.append(await acts.act())
                await acts.compare()
            except AssertionError as error:
                raise AssertionError("\n".join((str(error), "after:", *done[-25:]))) from error
    finally:
        await store.close()
