"""A Hypothesis state machine: any store against a small model, over any sequence of verbs.

The model does not say which job a claim must take, for stores may differ in that: it says whether a claim was legal.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from jobmill.core.changes import CHANGES_FROM, Cancel, Change, Remove, Reprioritize, Requeue, Reschedule, Seize
from jobmill.core.job import FINAL, LIVE, Job
from jobmill.core.values import EVERYTHING, Claim, Claimed, Exchanged, Lease, QueueChange, after
from jobmill.store import Store
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.model_parts import (
    KEPT_MS,
    NAMES,
    QUEUES,
    SETTLE,
    ModelJob,
    Wanted,
    changes,
    claims,
    new_jobs,
    picks,
    recent,
    settling,
)
from jobmill.testing.contract.support import new, readable, wish

T = TypeVar("T")


class StoreMachine(RuleBasedStateMachine):
    """The verbs as rules. A subclass has one harness, and `call` runs a coroutine in its event loop."""

    harness: Harness
    loop: asyncio.AbstractEventLoop
    rounds = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.store: Store = self.harness.store
        # All rounds share one store. Each round has its own queues, with default settings.
        self.round = next(self.rounds)
        self.jobs: dict[str, ModelJob] = {}
        self.leases: list[Claimed] = []
        self.paused: set[str] = set()
        # Counted down, so that the order of ids differs from the order of enqueueing.
        self.numbers = itertools.count(9_999, -1)
        self.places = itertools.count()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def queue(self, name: str) -> str:
        return f"{name}-{self.round}"

    @property
    def now(self) -> int:
        return self.store.now()

    # ------------------------------------------------------------------------------------------------ rules

    @initialize(jobs=new_jobs)
    def begin(self, jobs: list[Wanted]) -> None:
        self.enqueues(jobs)

    @rule(jobs=new_jobs)
    def enqueue(self, jobs: list[Wanted]) -> None:
        self.enqueues(jobs)

    @rule(chosen=settling, claim=claims)
    def exchange(self, chosen: list[tuple[int, str, int]], claim: Claim) -> None:
        self.exchanges(chosen, claim)

    @rule(claim=claims)
    def claim_more(self, claim: Claim) -> None:
        self.exchanges([], claim)

    @rule(chosen=settling)
    def settle(self, chosen: list[tuple[int, str, int]]) -> None:
        self.exchanges(chosen, None)

    @rule(pick=picks, for_ms=st.sampled_from([500, 5_000]))
    def extend(self, pick: int, for_ms: int) -> None:
        if not self.leases:
            return
        lease = recent(self.leases, pick).lease
        held = self.held(lease.id, lease.token)
        assert self.call(self.store.extend([lease], for_ms)) == ([] if held else [lease.id])
        if held:
            held.until_ms = self.now + for_ms

    @rule(ms=st.sampled_from([1_000, 6_000, 2_500, 499, 1]))
    def advance(self, ms: int) -> None:
        self.call(self.harness.advance(ms / 1_000))

    @rule(pick=picks, change=changes, possible=st.sampled_from([True, True, False]))
    def change(self, pick: int, change: Change, possible: bool) -> None:
        allowed = [job for job in self.jobs.values() if job.state in CHANGES_FROM[type(change)]]
        choice = allowed if possible else list(self.jobs.values())
        if not choice:
            return
        known = recent(choice, pick)
        changed = self.call(self.store.change([known.id], change))
        taken = isinstance(change, Requeue) and self.owner(known.queue, known.name, known.key) is not None
        if known.state not in CHANGES_FROM[type(change)] or taken:
            assert (changed.ids, list(changed.refused)) == ([], [known.id])
            return
        assert (changed.ids, changed.refused) == ([known.id], {})
        self.apply(known, change)

    @rule(queue=st.sampled_from(QUEUES), paused=st.booleans())
    def pause(self, queue: str, paused: bool) -> None:
        name = self.queue(queue)
        assert self.call(self.store.configure(name, QueueChange(paused=paused))).paused is paused
        (self.paused.add if paused else self.paused.discard)(name)

    @rule()
    def purge(self) -> None:
        past = {id for id, job in self.jobs.items() if job.state in FINAL and job.finished_ms + job.kept_ms <= self.now}
        self.call(self.store.purge())
        stored = self.call(self.store.get(list(self.jobs)))
        gone = {id for id, job in zip(self.jobs, stored, strict=True) if job is None}
        assert past <= gone, "purge leaves nothing that is past its retention"
        # A purge may remove jobs early, but only final ones.
        assert all(self.jobs[id].state in FINAL for id in gone)
        for id in gone:
            del self.jobs[id]

    # ------------------------------------------------------------------------------------------------ invariants

    @invariant()
    def every_job_is_as_the_model_says(self) -> None:
        stored = self.call(self.store.get(list(self.jobs)))
        for known, job in zip(self.jobs.values(), stored, strict=True):
            assert job is not None, f"{known.id} is missing"
            assert _seen(job) == _known(known)

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        # The store has no job that the model lacks, so no second owner of a unique key either.
        counts = self.call(self.store.count(EVERYTHING))
        expected = Counter((job.queue, job.name, job.state) for job in self.jobs.values())
        assert {(one.queue, one.name, one.state): one.count for one in counts} == expected

    def teardown(self) -> None:
        """Leave the store empty for the next round."""
        for change in (Cancel(), Remove()):
            assert not self.call(self.store.change(EVERYTHING, change)).more
        assert self.call(self.store.count(EVERYTHING)) == []

    # ------------------------------------------------------------------------------------------------ the model

    def owner(self, queue: str, name: str, key: str | None) -> ModelJob | None:
        """The present owner of a unique key."""
        live = (job for job in self.jobs.values() if job.state in LIVE)
        return next((job for job in live if key and (job.queue, job.name, job.key) == (queue, name, key)), None)

    def held(self, id: str, token: str) -> ModelJob | None:
        """Whether the lease is valid."""
        known = self.jobs.get(id)
        holds = known and known.state == "running" and known.token == token and self.now < known.until_ms
        return known if holds else None

    def enqueues(self, jobs: list[Wanted]) -> None:
        made = [
            new(
                f"model-{self.round}-{next(self.numbers)}",
                queue=self.queue(queue),
                name=name,
                priority=priority,
                key=key,
                due=after(delay),
            )
            for queue, name, priority, delay, key in jobs
        ]
        for job, receipt in zip(made, self.call(self.store.enqueue(made)), strict=True):
            owner = self.owner(job.queue, job.name, job.unique_key)
            if owner is not None:
                assert (receipt.status, receipt.id) == ("duplicate", owner.id)
                continue
            assert receipt.status == "created"
            self.jobs[receipt.id] = ModelJob(
                id=receipt.id,
                queue=job.queue,
                name=job.name,
                priority=job.priority,
                key=job.unique_key,
                due_ms=job.due.resolve(self.now),
                seq=next(self.places),
                line="delayed" if job.due.after_ms else "undelayed",
            )

    def exchanges(self, chosen: list[tuple[int, str, int]], claim: Claim | None) -> None:
        if claim is not None:
            queues = tuple(self.queue(name) for name in claim.queues)
            claim = wish(claim.n, queues=queues, names=claim.names, lease_ms=claim.lease_ms)
        settled = [(recent(self.leases, pick), how, delay) for pick, how, delay in chosen if self.leases]
        settlements = [SETTLE[how](claimed, delay) for claimed, how, delay in settled]
        exchanged = self.call(self.store.exchange(settlements, claim))
        done: set[str] = set()
        for (claimed, how, delay), answer in zip(settled, exchanged.settled, strict=True):
            held = self.held(claimed.lease.id, claimed.lease.token)
            assert answer == ("done" if held else "lost")
            if held is not None:
                self.end(held, how, delay)
                done.add(held.id)
        assert exchanged.now_ms == self.now
        if claim is not None:
            self.claimed(claim, exchanged, done, {claimed.job.id for claimed, *_ in settled})

    def end(self, known: ModelJob, how: str, delay_ms: int) -> None:
        """Apply an accepted settlement to a job."""
        known.token = ""
        if how == "vanish":
            del self.jobs[known.id]
        elif how in ("succeed", "fail"):
            known.state = "succeeded" if how == "succeed" else "failed"
            known.finished_ms, known.kept_ms = self.now, KEPT_MS
        else:
            known.state = "waiting"
        known.errors += how in ("retry", "fail")
        if how in ("retry", "snooze"):
            self.put_back(known, self.now + delay_ms)

    def apply(self, known: ModelJob, change: Change) -> None:
        match change:
            case Cancel():
                known.state, known.token, known.finished_ms = "cancelled", "", self.now
                known.kept_ms = 30 * 86_400_000
            case Requeue():
                known.state, known.errors, known.crashes = "waiting", 0, 0
                self.put_back(known, change.due.resolve(self.now))
            case Reschedule():
                self.put_back(known, change.due.resolve(self.now))
            case Reprioritize():
                known.priority, known.line = change.priority, "none"
            case Remove():
                del self.jobs[known.id]
            case Seize():
                self.seize(known, change)

    def seize(self, known: ModelJob, change: Seize) -> None:
        """Apply a seize: a claim that ignores the order and counts no crash. The caller creates its lease."""
        known.state, known.token = "running", change.token
        known.claims += 1
        known.until_ms = self.now + change.lease_ms
        (job,) = self.call(self.store.get([known.id]))
        assert job is not None
        assert _seen(job) == _known(known)
        lease = Lease(known.id, change.token, known.queue, known.name, known.until_ms)
        self.leases.append(Claimed(job, lease))

    def put_back(self, known: ModelJob, due_ms: int) -> None:
        known.due_ms = due_ms
        known.line = "delayed" if due_ms > self.now else "none"

    # ------------------------------------------------------------------------------------------------ legality

    def claimed(self, claim: Claim, exchanged: Exchanged, done: set[str], handed_in: set[str]) -> None:
        """Check that a claim was legal. A job whose settlement in the same call was lost may be claimed or not."""
        taken = readable(exchanged.claimed)
        ids = [one.job.id for one in taken]
        may = {job.id: job for job in self.jobs.values() if job.id not in done and self.claimable(job, claim)}
        assert len(set(ids)) == len(ids) <= claim.n
        assert set(ids) <= set(may), "only claimable jobs are claimed, and none that the same call settles"
        used = Counter(one.job.name for one in taken)
        assert all(used[name] <= claim.names.get(name, 0) for name in NAMES)
        passed = [job for id, job in may.items() if id not in handed_in and id not in ids]
        left = [job for job in passed if used[job.name] < claim.names[job.name]]
        self.nothing_was_passed_over([may[id] for id in ids], left)
        if left and len(ids) < claim.n:
            assert ids, "a claim with room takes something where there is something"
        if any(job.state == "waiting" for job in left):
            assert exchanged.next_due_ms is not None
            assert exchanged.next_due_ms <= self.now, "more is claimable at once"
        for one in taken:
            self.lease(one, claim)
        self.next_due_is_no_later_than_the_earliest(claim, exchanged)

    def claimable(self, job: ModelJob, claim: Claim) -> bool:
        if job.queue not in claim.queues or job.queue in self.paused or not claim.names.get(job.name, 0):
            return False
        if job.state == "running":
            return job.until_ms <= self.now
        return job.state == "waiting" and job.due_ms <= self.now

    def nothing_was_passed_over(self, taken: list[ModelJob], left: list[ModelJob]) -> None:
        """Check the order: no waiting job was skipped for a job of its queue that comes later."""
        for one, other in itertools.product(taken, left):
            if one.queue != other.queue or "running" in (one.state, other.state):
                continue
            assert one.priority <= other.priority, "a smaller priority goes first"
            if one.priority == other.priority and one.line == other.line:
                assert one.line != "undelayed" or one.seq < other.seq, "undelayed jobs go as enqueued"
                assert one.line != "delayed" or one.due_ms <= other.due_ms, "delayed jobs go by due time"

    def lease(self, one: Claimed, claim: Claim) -> None:
        known = self.jobs[one.job.id]
        known.crashes += known.state == "running"
        known.state, known.token = "running", claim.token
        known.claims += 1
        known.until_ms = self.now + claim.lease_ms
        assert (one.lease.token, one.lease.until_ms) == (claim.token, known.until_ms)
        assert _seen(one.job) == _known(known)
        self.leases.append(one)

    def next_due_is_no_later_than_the_earliest(self, claim: Claim, exchanged: Exchanged) -> None:
        mine = [
            job
            for job in self.jobs.values()
            if job.queue in claim.queues and job.queue not in self.paused and claim.names.get(job.name, 0)
        ]
        times = [job.due_ms for job in mine if job.state == "waiting"]
        if not exchanged.claimed:
            times += [job.until_ms for job in mine if job.state == "running" and job.until_ms > self.now]
        if times:
            assert exchanged.next_due_ms is not None
            assert exchanged.next_due_ms <= max(self.now, min(times))


class ModelContract:
    """Every sequence of verbs, short ones first, because their failures are easier to read.

    The profile of Hypothesis decides how many sequences run (`max_examples`, 100 by default).
    """

    async def test_every_short_sequence_of_verbs_follows_the_model(self, harness: Harness) -> None:
        await self._follows(harness, steps=8)

    async def test_every_long_sequence_of_verbs_follows_the_model(self, harness: Harness) -> None:
        await self._follows(harness, steps=40)

    async def _follows(self, harness: Harness, steps: int) -> None:
        machine = type("Machine", (StoreMachine,), {"harness": harness, "loop": asyncio.get_running_loop()})
        bounds = settings(
            stateful_step_count=steps,
            deadline=None,
            database=None,
            # Shrinking a failure on a real database takes minutes. Add Phase.shrink if you need it.
            phases=[Phase.generate],
            suppress_health_check=[HealthCheck.too_slow],
        )
        # Hypothesis is synchronous, so it runs in another thread than the event loop of the store.
        await asyncio.to_thread(run_state_machine_as_test, machine, settings=bounds)


def _seen(job: Job) -> tuple[object, ...]:
    said = (job.queue, job.name, job.priority, job.unique_key)
    return (*said, job.state, job.claims, job.errors, job.crashes, job.due_ms)


def _known(job: ModelJob) -> tuple[object, ...]:
    said = (job.queue, job.name, job.priority, job.key)
    return (*said, job.state, job.claims, job.errors, job.crashes, job.due_ms)
