"""Two stores that take the same random steps with jobs of lanes: the memory store, which asks the core, and another."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import structs

from jobmill.core.changes import Cancel, Change, Hold, Release, Remove, Reprioritize, Requeue, Reschedule
from jobmill.core.flows import After, IfFailed
from jobmill.core.job import Job
from jobmill.core.lifecycle import DEFAULT_POLICY, Suspended
from jobmill.core.lifecycle import settle as decide
from jobmill.core.queue_settings import LaneChange, LaneRule, Pause, RateLimit
from jobmill.core.unique_policy import UniquePolicy
from jobmill.core.values import Claimed, QueueChange, Settlement, after, at
from jobmill.store import Store
from jobmill.testing import ManualClock
from jobmill.testing.contract.lanes import laned
from jobmill.testing.contract.support import LEASE_MS, QUEUE, fail, new, release, retry, seize, snooze, succeed, wish

NAMES = ("send", "count", "draw")
LANES = ("a", "b", "c")
IF_FAILED: tuple[IfFailed, ...] = ("fail", "run", "now", "forget")


class Twins:
    """Two stores that do the same steps, and the leases that both have given."""

    def __init__(self, ours: Store, reference: Store, clock: ManualClock, chance: random.Random) -> None:
        self.stores = (ours, reference)
        self.clock = clock
        self.chance = chance
        self.has_rate = False
        self.ids: list[str] = []
        #: These are not requeued: Redis opens edges again that the core does not, also without lanes.
        self.waited_for: set[str] = set()
        self.running: dict[str, tuple[Claimed, Claimed]] = {}
        self.steps: list[Callable[[], Any]] = [
            *[self.enqueue] * 5,
            *[self.claim] * 4,
            *[self.settle] * 5,
            *[self.change] * 4,
            *[self.enqueue_by_policy] * 3,
            *[self.suspend] * 2,
            *(self.set_rule, self.set_lane, self.seize, self.wait, self.end_all_leases),
        ]

    async def step(self) -> str:
        step = self.chance.choice(self.steps)
        about = await step()
        self.clock.advance(0.001)
        return f"{step.__name__} {about}"

    async def enqueue(self) -> str:
        jobs = []
        for _ in range(self.chance.choice((1, 1, 2, 5))):
            id, due = f"job-{len(self.ids):03}", after(self.chance.choice((0, 0, 0, 500, 3_000)))
            name, priority = self.chance.choice(NAMES), self.chance.choice((0, 0, 3, 7))
            lane = self.chance.choice((*LANES, None))
            job = new(id, name=name, due=due, priority=priority)
            job = job if lane is None else laned(id, lane, name=name, due=due, priority=priority)
            if self.ids and self.chance.random() < 0.2:
                waits_for = self.chance.choice(self.ids[-8:])
                if all([(await store.get([waits_for]))[0] for store in self.stores]):
                    if_failed = self.chance.choice(IF_FAILED)
                    job = structs.replace(job, after=(After(waits_for, if_failed),))
                    self.waited_for.add(waits_for)
            self.ids.append(id)
            jobs.append(job)
        for store in self.stores:
            await store.enqueue(jobs)
        return ", ".join(
            f"{job.id} {job.lane} {job.name} {job.priority} {job.due.after_ms} {job.after}" for job in jobs
        )

    async def enqueue_by_policy(self) -> str:
        """With a unique key, which a live job may have."""
        id, lane, due = f"job-{len(self.ids):03}", self.chance.choice(LANES), after(self.chance.choice((0, 0, 600)))
        key, priority = self.chance.choice("kl"), self.chance.choice((0, 3))
        policy = self.chance.choice((None, UniquePolicy(when_live="replace"), UniquePolicy(when_live="cancel")))
        job = structs.replace(laned(id, lane, name="send", key=key, due=due, priority=priority), policy=policy)
        self.ids.append(id)
        receipts = [await store.enqueue([job]) for store in self.stores]
        assert receipts[0] == receipts[1], receipts
        for running in list(self.running):
            (job_now,) = await self.stores[1].get([running])
            if job_now is None or job_now.state != "running":
                self.running.pop(running)
        return f"{id} {lane} {key} {priority} {due.after_ms} {policy and policy.when_live}: {receipts[0][0]}"

    async def suspend(self) -> str:
        """A run waits for a time, or for a child that may be in its lane."""
        if not self.running:
            return "nothing"
        id = self.chance.choice(sorted(self.running))
        both, child = self.running.pop(id), None
        if self.chance.random() < 0.5:
            child = laned(f"job-{len(self.ids):03}", self.chance.choice(LANES), name=self.chance.choice(NAMES))
            self.ids.append(child.id)
            self.waited_for |= {id, child.id}
        for store, claimed in zip(self.stores, both, strict=True):
            outcome = Suspended(children=() if child is None else (child,), due=None if child else after(800))
            done = decide(claimed, outcome, DEFAULT_POLICY, self.clock.now_ms)
            assert (await store.exchange([done], None)).settled == ["done"]
        return f"{id}, {child and (child.id, child.lane, child.name)}"

    async def end_all_leases(self) -> str:
        """All processes have died."""
        await self._advance(LEASE_MS / 1_000)
        self.running = {}
        return await self._claim(NAMES, [])

    async def claim(self) -> str:
        names = self.chance.sample(NAMES, self.chance.choice((1, 2, 3)))
        return await self._claim(names, await self._some_settlements() if self.chance.random() < 0.5 else [])

    async def _claim(self, names: Sequence[str], done: list[tuple[Settlement, Settlement]]) -> str:
        taken = []
        for number, store in enumerate(self.stores):
            exchanged = await store.exchange([one[number] for one in done], wish(1_000, names=names))
            taken.append({one.job.id: one for one in exchanged.claimed if isinstance(one, Claimed)})
        assert sorted(taken[0]) == sorted(taken[1]), f"claimed {sorted(taken[0])}, not {sorted(taken[1])}"
        self.running |= {id: (taken[0][id], taken[1][id]) for id in taken[0]}
        return f"{names} {sorted(taken[0])} after {outcomes(done)}"

    async def settle(self) -> str:
        done = await self._some_settlements()
        for number, store in enumerate(self.stores):
            await store.exchange([one[number] for one in done], None)
        return outcomes(done)

    async def _some_settlements(self) -> list[tuple[Settlement, Settlement]]:
        ids = sorted(self.running)
        found = []
        for id in self.chance.sample(ids, min(len(ids), self.chance.choice((1, 2, 4)))):
            ours, theirs = self.running.pop(id)
            how: Any = self.chance.choice((succeed, succeed, fail, retry, snooze, release, self._later, self._again))
            found.append((how(ours), how(theirs)))
        return found

    def _later(self, claimed: Claimed) -> Settlement:
        return release(claimed, 2_000)

    def _again(self, claimed: Claimed) -> Settlement:
        return retry(claimed, 0)

    async def change(self) -> str:
        changes: tuple[Change, ...] = (Cancel(), Remove(), Requeue(), Requeue(after(700)), Reschedule(after(900)))
        changes += (Reschedule(after(0)), Reprioritize(0), Reprioritize(5), Hold(), Release(), Release())
        change, ids = self.chance.choice(changes), self.chance.sample(self.ids, min(len(self.ids), 2))
        if isinstance(change, Requeue):
            ids = [id for id in ids if id not in self.waited_for]
        answers = [await store.change(ids, change) for store in self.stores]
        assert sorted(answers[0].ids) == sorted(answers[1].ids), (change, answers)
        if isinstance(change, Cancel):
            for id in answers[0].ids:
                self.running.pop(id, None)
        return f"{change} {answers[0].ids}"

    async def seize(self) -> str:
        live = [id for id in self.ids[-10:] if await self._is_waiting(id)]
        if not live:
            return "nothing"
        id = self.chance.choice(live)
        one, other = [await seize(store, id) for store in self.stores]
        self.running[id] = (one, other)
        return id

    async def _is_waiting(self, id: str) -> bool:
        job = (await self.stores[1].get([id]))[0]
        return job is not None and job.state == "waiting" and (job.held is None or "jobs" not in job.held.by)

    async def set_rule(self) -> str:
        rate = self.chance.choice((None, None, RateLimit(2, 1_500)))
        running = self.chance.choice((None, 1, 2, 4)) if rate is None else None
        rule = LaneRule(running=running, rate=rate, strict=self.chance.random() < 0.3)
        given = self.chance.choice((rule, rule, rule, None))
        # When a window begins in a lane that is full depends on who looks at the lane: a rate is alone.
        self.has_rate = given is not None and given.rate is not None
        if self.has_rate:
            await self._configure_lanes(LaneChange(running=None))
        await self._end_windows()
        for store in self.stores:
            await store.configure(QUEUE, QueueChange(lanes=given))
        return f"{given}"

    async def set_lane(self) -> str:
        changes = [LaneChange(pause=Pause(who="ada")), *[LaneChange(pause=None)] * 2]
        changes += [LaneChange(strict=True), LaneChange(strict=None)]
        limits = [] if self.has_rate else [LaneChange(running=limit) for limit in (1, 5, None)]
        change, lane = self.chance.choice(changes + limits), self.chance.choice(LANES)
        answers = [await store.configure_lane(QUEUE, lane, change) for store in self.stores]
        assert answers[0] == answers[1]
        return f"{lane} {change}"

    async def wait(self) -> str:
        seconds = self.chance.choice((0.05, 0.6, 2, 4))
        await self._advance(seconds)
        return f"{seconds}"

    async def _end_windows(self) -> None:
        """Before a rate changes: where there is none, the core counts on in a window, and Redis does not."""
        await self._advance(2)

    async def _advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        # Both begin the new windows of rates now. Otherwise each does when it next looks at a lane.
        await self._configure_lanes(LaneChange())

    async def _configure_lanes(self, change: LaneChange) -> None:
        for lane in LANES:
            for store in self.stores:
                await store.configure_lane(QUEUE, lane, change)

    async def compare(self) -> None:
        """Both stores show the same jobs and lanes, after a claim of a name that no job has."""
        due_ms, _ = [(await store.exchange([], wish(1, names=("nobody",)))).next_due_ms for store in self.stores]
        now_ms = self.clock.now_ms
        jobs = [{job.id: shown(job, now_ms) for job in await store.get(self.ids) if job} for store in self.stores]
        different = {id: (jobs[0].get(id), jobs[1].get(id)) for id in self.ids if jobs[0].get(id) != jobs[1].get(id)}
        assert not different, f"{different}"
        # The core computes the end of a rate again when a job begins, and Redis when a job gets a slot.
        lanes = [
            [structs.replace(lane, limited_until_ms=None) for lane in await store.lanes(QUEUE)] for store in self.stores
        ]
        assert lanes[0] == lanes[1]
        held = [job.held for job in await self.stores[1].get(self.ids) if job and job.held and job.held.by == ("lane",)]
        later_ms = [ms for one in held if (ms := one.due.resolve(0)) > self.clock.now_ms]
        assert not later_ms or (due_ms is not None and due_ms <= min(later_ms)), "next due"


def outcomes(done: list[tuple[Settlement, Settlement]]) -> str:
    return ", ".join(f"{one.lease.id} {one.outcome}" for one, _ in done)


def shown(job: Job, now_ms: int) -> tuple[Any, ...]:
    held = job.held
    if held is not None and held.by != ("lane",) and held.due.at_ms is not None:
        # It does not matter when it would have been due.
        held = structs.replace(held, due=at(max(held.due.at_ms, now_ms)))
    return (job.state, held, job.due_ms if held is None and job.state == "waiting" else None, job.priority)


async def take_the_same_steps(ours: Store, reference: Store, clock: ManualClock, seed: int, steps: int = 80) -> None:
    """Take random steps with both stores; after each, both must show the same."""
    twins = Twins(ours, reference, clock, random.Random(seed))
    done: list[str] = []
    for _ in range(steps):
        done.append(await twins.step())
        try:
            await twins.compare()
        except AssertionError as error:
            history = "\n".join(done[-25:])
            raise AssertionError(f"{error}\nafter:\n{history}") from error
