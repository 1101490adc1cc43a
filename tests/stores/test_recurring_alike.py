"""Recurring jobs have the same states and times on every store: the memory store takes the same random steps.

Not on Redis, where each run is a job of its own, as in BullMQ.
"""

from __future__ import annotations

import random
from collections.abc import Callable
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
from jobmill.core.job import Job
from jobmill.core.lifecycle import DEFAULT_POLICY, Errored, Outcome, Policy, Released, Snoozed, Succeeded
from jobmill.core.lifecycle import settle as decide
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import Claimed, Due, Settlement, after, at
from jobmill.store import Store
from jobmill.stores.memory import MemoryStore
from jobmill.testing import ManualClock
from jobmill.testing.contract.support import LEASE_MS, new, seize, wish
from tests.stores_under_test import make_store, make_url

KEYS = ("hourly", "often")
STEPS = 60


class Twins:
    """Two stores that do the same steps with recurring jobs, and the leases that both have given."""

    def __init__(self, ours: Store, reference: Store, clock: ManualClock, chance: random.Random) -> None:
        self.stores = (ours, reference)
        self.clock = clock
        self.chance = chance
        #: The ids of the same job in both stores, and the leases of those that run.
        self.ids: list[tuple[str, str]] = []
        self.running: dict[tuple[str, str], tuple[Claimed, Claimed]] = {}
        self.steps: list[Callable[[], Any]] = [
            *[self.enqueue] * 3,
            *[self.claim] * 4,
            *[self.settle] * 4,
            *[self.change] * 3,
            *(self.seize, self.wait, self.wait, self.end_all_leases),
        ]

    async def step(self) -> str:
        step = self.chance.choice(self.steps)
        about = await step()
        self.clock.advance(0.001)
        return f"{step.__name__} {about}"

    def _rule(self, key: str) -> Recurrence:
        until_ms = self.chance.choice((None, None, None, self.clock.now_ms + 5_000))
        if self.chance.random() < 0.3:
            return Recurrence(key=key, cron=self.chance.choice(("* * * * *", "*/5 * * * *")), until_ms=until_ms)
        return Recurrence(key=key, every_ms=self.chance.choice((1_000, 2_500)), until_ms=until_ms)

    def _due(self) -> Due:
        return self.chance.choice((after(0), after(0), after(700), at(self.clock.now_ms + 3_000)))

    async def enqueue(self) -> str:
        key, due = self.chance.choice(KEYS), self._due()
        rule = self._rule(key)
        job = new(f"job-{len(self.ids):03}", key=key, recurrence=rule, due=due, payload=len(self.ids))
        job = structs.replace(job, keeps_due=self.chance.random() < 0.3)
        one, other = [(await store.enqueue([job]))[0] for store in self.stores]
        assert one.status == other.status, (one, other)
        if one.status == "created":
            self.ids.append((one.id, other.id))
        else:
            assert (one.id, other.id) in self.ids, (one, other, self.ids)
        return f"{key} {rule} {due} {job.keeps_due} -> {other.id} {one.status}"

    async def claim(self, done: list[tuple[Settlement, Settlement]] | None = None) -> str:
        done = await self._some_settlements() if self.chance.random() < 0.5 and done is None else done or []
        taken = []
        for number, store in enumerate(self.stores):
            exchanged = await store.exchange([one[number] for one in done], wish())
            assert exchanged.settled == ["done"] * len(done), (number, exchanged.settled)
            taken.append({one.job.id: one for one in exchanged.claimed if isinstance(one, Claimed)})
        pairs = [pair for pair in self.ids if pair[0] in taken[0] or pair[1] in taken[1]]
        assert [pair[0] for pair in pairs if pair[0] in taken[0]] == [pair[0] for pair in pairs if pair[1] in taken[1]]
        assert len(pairs) == len(taken[0]) == len(taken[1])
        self.running |= {pair: (taken[0][pair[0]], taken[1][pair[1]]) for pair in pairs}
        return f"{[pair[1] for pair in pairs]} after {outcomes(done)}"

    async def settle(self) -> str:
        done = await self._some_settlements()
        for number, store in enumerate(self.stores):
            exchanged = await store.exchange([one[number] for one in done], None)
            assert exchanged.settled == ["done"] * len(done), (number, exchanged.settled)
        return outcomes(done)

    async def _some_settlements(self) -> list[tuple[Settlement, Settlement]]:
        found = []
        for pair in self.chance.sample(sorted(self.running), min(len(self.running), self.chance.choice((1, 2)))):
            both = self.running.pop(pair)
            ends: tuple[Outcome, ...] = (Succeeded(b'"good"'), Succeeded(b'"good"'), Errored(error="boom", final=True))
            waits = (Errored(error="boom", delay_ms=400), Snoozed(1_700), Released(None), Released(600))
            outcome = self.chance.choice(ends + waits)
            rules = self.chance.choice((DEFAULT_POLICY, Policy(max_attempts=2)))
            ours, theirs = [decide(claimed, outcome, rules, self.clock.now_ms) for claimed in both]
            found.append((ours, theirs))
        return found

    async def change(self) -> str:
        if not self.ids:
            return "nothing"
        changes: tuple[Change, ...] = (Cancel(), Remove(), Requeue(), Requeue(after(700)), Reschedule(after(900)))
        changes += (Reschedule(after(0)), Reprioritize(5), Hold(), Hold(), Release(), Release(), Release())
        pair = self.chance.choice(self.ids[-3:])
        job = (await self.stores[1].get([pair[1]]))[0]
        if job is not None and job.recurrence is not None:
            changes += (Pin(self._rule(job.recurrence.key)), ReleasePin())
        change = self.chance.choice(changes)
        one, other = [await store.change([id], change) for store, id in zip(self.stores, pair, strict=True)]
        assert bool(one.ids) == bool(other.ids), (change, one, other)
        if isinstance(change, Cancel) and one.ids:
            self.running.pop(pair, None)
        return f"{change} {other.ids}"

    async def seize(self) -> str:
        live = []
        for pair in self.ids[-4:]:
            job = (await self.stores[1].get([pair[1]]))[0]
            if job is not None and job.state == "waiting" and job.held is None:
                live.append(pair)
        if not live:
            return "nothing"
        pair = self.chance.choice(live)
        one, other = [await seize(store, id) for store, id in zip(self.stores, pair, strict=True)]
        self.running[pair] = (one, other)
        return pair[1]

    async def wait(self) -> str:
        seconds = self.chance.choice((0.05, 0.6, 2, 4))
        self.clock.advance(seconds)
        return f"{seconds}"

    async def end_all_leases(self) -> str:
        """All processes have died."""
        self.clock.advance(LEASE_MS / 1_000)
        self.running = {}
        return await self.claim([])

    async def compare(self) -> None:
        """Both stores show the same jobs."""
        for pair in self.ids:
            one, other = [(await store.get([id]))[0] for store, id in zip(self.stores, pair, strict=True)]
            if one is None or other is None:
                assert one is other is None, (pair, one, other)
                continue
            ours, theirs = shown(one), shown(other)
            different = {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}
            assert not different, f"{pair}: {different}"


def outcomes(done: list[tuple[Settlement, Settlement]]) -> str:
    return ", ".join(f"{other.lease.id} {other.outcome} {other.due} {other.rearm}" for _, other in done)


def shown(job: Job) -> dict[str, Any]:
    names = ("state", "held", "due_ms", "occurrence_ms", "runs", "failed_runs", "errors", "crashes", "recurrence")
    return {name: getattr(job, name) for name in (*names, "unique_key", "priority", "payload", "last_error", "claims")}


@pytest.mark.stores("sqlite", "postgres", "mongo")
@pytest.mark.parametrize("seed", range(6))
async def test_a_store_does_as_the_memory_store(
    store_name: str, seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    clock = ManualClock()
    ours = make_store(await make_url(store_name, tmp_path, request), clock)
    await ours.migrate()
    await ours.open()
    twins = Twins(ours, MemoryStore(clock=clock), clock, random.Random(seed))
    done: list[str] = []
    try:
        for _ in range(STEPS):
            try:
                done.append(await twins.step())
                await twins.compare()
            except AssertionError as error:
                history = "\n".join(done[-25:])
                raise AssertionError(f"{error}\nafter:\n{history}") from error
    finally:
        await ours.close()
