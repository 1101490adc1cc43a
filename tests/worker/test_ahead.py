"""Claiming ahead: jobs of short handlers wait in the worker for a slot, and nobody can tell but by the clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import Raw

import jobmill
from jobmill.core.announcing import WorkerCard
from jobmill.core.job import Job
from jobmill.core.queue_settings import LaneRule
from jobmill.core.values import (
    AHEAD,
    Claim,
    Claimed,
    Exchanged,
    Filter,
    Lease,
    QueueChange,
    RateLimit,
    Settlement,
)
from jobmill.stores.memory.store import MemoryStore
from jobmill.worker.ahead import MAX_BYTES, AheadQueue, AheadRules
from jobmill.worker.worker import Worker
from tests.helpers import until

SLOTS = 4
QUICK = 400


class DistantStore(MemoryStore):
    """A store whose exchanges take some time, and which remembers them."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: list[Claim] = []
        self.settlements: list[Settlement] = []
        self.extended: set[str] = set()
        self.cards: list[WorkerCard] = []
        self.gives_hints = True
        self.is_watched = False

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        """Takes 5 ms."""
        await asyncio.sleep(0.005)
        self.settlements += settlements
        if claim is not None:
            self.claims.append(claim)
        return await super().exchange(settlements, claim)

    async def extend(self, leases: Sequence[Lease], for_ms: int) -> list[str]:
        """Remembers the ids."""
        self.extended.update(lease.id for lease in leases)
        return await super().extend(leases, for_ms)

    async def wait_for_cancel(self, ids: Collection[str], until_ms: int) -> None:
        """Gives hints as in memory, unless they are switched off. The extension that follows is remembered."""
        self.is_watched = True
        self.extended.clear()
        await (super().wait_for_cancel(ids, until_ms) if self.gives_hints else asyncio.Event().wait())

    async def workers(self) -> list[WorkerCard]:
        """Also workers of other systems."""
        return [*await super().workers(), *self.cards]

    @property
    def has_claimed_ahead(self) -> bool:
        """Whether any claim asked for more jobs than there were free slots."""
        return any(claim.is_ahead for claim in self.claims)


class Scene:
    """Quick jobs, and jobs that occupy their slots until `open` is called."""

    def __init__(self) -> None:
        self.store = DistantStore()
        self.jobs = jobmill.connect(store=self.store)
        self.gate = asyncio.Semaphore(0)
        self.ran: list[str] = []
        self.blocked = self.at_once = self.most_at_once = 0

        @self.jobs.handler(name="work")
        async def work(ctx: jobmill.Context, blocks: bool = False) -> None:
            self.ran.append(ctx.job.id)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            self.blocked += blocks
            await (self.gate.acquire() if blocks else asyncio.sleep(0.002))
            self.at_once -= 1

        self.work = work

    async def enqueue(self, count: int, **options: Any) -> list[str]:
        """Enqueue jobs; their ids."""
        blocks = options.pop("blocks", False)
        drafts = [self.work.options(**options).draft(blocks=blocks) for _ in range(count)]
        return [one.id for one in await self.jobs.enqueue_many(drafts)]

    def open(self, slots: int = SLOTS) -> None:
        """Let the jobs of this number of slots end."""
        for _ in range(slots):
            self.gate.release()

    async def count(self, state: Any) -> int:
        """How many jobs are in this state."""
        return sum(one.count for one in await self.store.count(Filter(states=(state,))))

    async def is_full(self) -> bool:
        """Whether all slots are blocked, and further jobs wait in the worker."""
        return self.blocked == SLOTS and await self.count("running") > SLOTS


@asynccontextmanager
async def at_work(scene: Scene, **options: Any) -> AsyncIterator[Worker]:
    async with Worker(scene.jobs, concurrency=SLOTS, **options) as worker:
        yield worker


@asynccontextmanager
async def with_waiting(scene: Scene, **options: Any) -> AsyncIterator[tuple[Worker, list[str]]]:
    """A worker with blocked slots, and the ids of the jobs that wait in it."""
    await scene.enqueue(QUICK)
    await scene.enqueue(SLOTS, blocks=True)
    ids = await scene.enqueue(200)
    async with at_work(scene, **options) as worker:
        await until(scene.is_full)
        yield worker, [job.id for job in await scene.store.get(ids) if job is not None and job.state == "running"]
        scene.open()


async def test_short_handlers_are_claimed_ahead_and_never_run_beyond_the_slots() -> None:
    scene = Scene()
    ids = await scene.enqueue(QUICK)
    async with at_work(scene):
        await until(lambda: len(scene.ran) == QUICK)
    assert scene.store.has_claimed_ahead
    assert scene.most_at_once == SLOTS
    assert scene.ran == ids, "they start in claim order"
    assert await scene.count("succeeded") == QUICK
    assert all(one.outcome == "succeeded" for one in scene.store.settlements)


async def test_it_can_be_switched_off() -> None:
    scene = Scene()
    await scene.enqueue(QUICK)
    async with at_work(scene, claim_ahead=0):
        await until(lambda: len(scene.ran) == QUICK)
    assert not scene.store.has_claimed_ahead


async def test_the_option_limits_how_many_wait() -> None:
    scene = Scene()
    await scene.enqueue(QUICK)
    async with at_work(scene, claim_ahead=3):
        await until(lambda: len(scene.ran) == QUICK)
    assert scene.store.has_claimed_ahead
    assert max(claim.n for claim in scene.store.claims) <= SLOTS + 3


@pytest.mark.parametrize("value", [-1, 10_001, True, "many"])
def test_the_option_is_checked(value: Any) -> None:
    with pytest.raises(jobmill.InvalidValue, match="claim_ahead"):
        Worker(Scene().jobs, claim_ahead=value)


async def test_long_handlers_are_not_claimed_ahead() -> None:
    scene = Scene()

    @scene.jobs.handler(name="long")
    async def long() -> None:
        await asyncio.sleep(0.11)
        scene.ran.append("long")

    await scene.jobs.enqueue_many([long.draft() for _ in range(5 * SLOTS)])
    async with at_work(scene):
        await until(lambda: len(scene.ran) == 5 * SLOTS)
    assert not scene.store.has_claimed_ahead


async def test_a_handler_with_a_limit_gets_free_slots_only() -> None:
    scene = Scene()
    together = most_together = 0

    @scene.jobs.handler(name="limited", concurrency=2)
    async def limited() -> None:
        nonlocal together, most_together
        together += 1
        most_together = max(together, most_together)
        await asyncio.sleep(0.001)
        together -= 1
        scene.ran.append("limited")

    await scene.jobs.enqueue_many([one.draft() for _ in range(QUICK // 2) for one in (limited, scene.work)])
    async with at_work(scene):
        await until(lambda: len(scene.ran) == QUICK)
    assert most_together <= 2
    assert scene.store.has_claimed_ahead
    for claim in scene.store.claims:
        assert claim.names.get("limited", 0) <= 2


@pytest.mark.parametrize(
    "change",
    [
        QueueChange(rate_limit=RateLimit(100_000, 1_000)),
        QueueChange(running_limit=1_000),
        QueueChange(lanes=LaneRule(running=1_000)),
    ],
)
async def test_nothing_is_claimed_ahead_from_a_queue_with_a_limit(change: QueueChange) -> None:
    scene = Scene()
    await scene.store.configure("default", change)
    await scene.enqueue(QUICK)
    async with at_work(scene):
        await until(lambda: len(scene.ran) == QUICK)
    assert not scene.store.has_claimed_ahead


@pytest.mark.parametrize(("queue", "ahead"), [("default", False), ("other", True)])
async def test_nothing_is_claimed_ahead_beside_workers_of_other_systems(queue: str, ahead: bool) -> None:
    scene = Scene()
    about: Any = {"host": "", "pid": 0, "version": "", "python": "", "started_ms": 0, "names": (), "concurrency": 0}
    scene.store.cards.append(WorkerCard(id="1", name="node", queues=(queue,), system="bullmq", **about))
    await scene.enqueue(QUICK)
    async with at_work(scene):
        await until(lambda: len(scene.ran) == QUICK)
    assert scene.store.has_claimed_ahead is ahead


async def test_stopping_gives_back_what_has_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobmill.worker.ahead.MAX_STUCK_S", 60)
    scene = Scene()
    async with with_waiting(scene) as (worker, waiting):
        await until(lambda: worker.running == SLOTS)  # the others are settled
        ran = len(scene.ran)
        stopping = asyncio.create_task(worker.stop())
        await until(lambda: all_waiting(scene, waiting))
        assert scene.blocked == SLOTS, "before the running jobs have ended"
        scene.open()
        await stopping
    assert len(scene.ran) == ran
    for job in await scene.store.get(waiting):
        assert job is not None
        assert (job.state, job.errors, job.crashes, job.unstarted, job.attempts) == ("waiting", 0, 0, 0, ())


async def all_waiting(scene: Scene, ids: Sequence[str]) -> bool:
    return {job and job.state for job in await scene.store.get(ids)} == {"waiting"}


async def test_jobs_that_wait_too_long_are_given_back_to_other_workers() -> None:
    scene = Scene()
    async with with_waiting(scene) as (_, waiting):
        await until(lambda: all_waiting(scene, waiting))
        assert scene.blocked == SLOTS


async def test_jobs_of_a_paused_queue_are_given_back() -> None:
    scene = Scene()
    async with with_waiting(scene):
        await scene.store.configure("default", QueueChange(paused=True))
        scene.open(1)  # one slot runs the jobs that wait, until the next claim finds nothing
        await until(lambda: any(one.outcome == "released" for one in scene.store.settlements))
        assert scene.blocked == SLOTS
        scene.open(SLOTS - 1)
        await until(lambda: is_quiet(scene))
        assert await scene.count("waiting") + len(scene.ran) == QUICK + SLOTS + 200
        await scene.store.configure("default", QueueChange(paused=False))
        await until(lambda: len(scene.ran) == QUICK + SLOTS + 200)
    assert len(set(scene.ran)) == QUICK + SLOTS + 200


async def is_quiet(scene: Scene) -> bool:
    return not await scene.count("running")


@pytest.mark.parametrize(("hints", "lease"), [(True, "60s"), (False, "600ms")])
async def test_a_job_that_is_cancelled_before_it_has_started_does_not_run(
    hints: bool, lease: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat of the long lease comes after 10 seconds: what is quicker came by a hint."""
    monkeypatch.setattr("jobmill.worker.ahead.MAX_STUCK_S", 60)
    scene, cancelled = Scene(), list[str]()
    scene.store.gives_hints = hints
    scene.jobs.on("cancelled")(lambda event: cancelled.append(event.job_id))
    async with with_waiting(scene, lease=lease) as (worker, waiting):
        await until(lambda: worker.running == SLOTS)  # the others are settled
        await until(lambda: scene.store.is_watched and waiting[0] in scene.store.extended)  # from now on, only hints
        ran, began = len(scene.ran), time.monotonic()
        assert (await scene.jobs.cancel(waiting[0])).ids == [waiting[0]]
        await until(lambda: cancelled == [waiting[0]])
        assert time.monotonic() - began < 4.0
        assert len(scene.ran) == ran, "while all slots are still occupied"
        scene.open()
        await until(lambda: len(scene.ran) == QUICK + SLOTS + 199)
    (job,) = await scene.store.get([waiting[0]])
    assert job is not None
    assert (job.state, job.errors) == ("cancelled", 0)
    assert waiting[0] not in scene.ran


async def test_the_leases_of_waiting_jobs_are_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobmill.worker.ahead.MAX_STUCK_S", 60)
    scene = Scene()
    async with with_waiting(scene, lease="300ms") as (_, waiting):
        await until(lambda: scene.store.extended >= {*waiting})
        assert {job and job.state for job in await scene.store.get(waiting)} == {"running"}


async def test_the_timeout_counts_from_the_start() -> None:
    scene = Scene()

    @scene.jobs.handler(name="timed", timeout="150ms")
    async def timed() -> None:
        await asyncio.sleep(0.02)
        scene.ran.append("timed")

    await scene.jobs.enqueue_many([timed.draft() for _ in range(QUICK // 4)])
    await scene.enqueue(SLOTS, blocks=True)
    last = await scene.jobs.enqueue_many([timed.draft() for _ in range(50)])
    async with at_work(scene):
        await until(scene.is_full)
        asyncio.get_running_loop().call_later(0.3, scene.open)
        await until(lambda: len(scene.ran) == QUICK // 4 + SLOTS + 50)
    jobs = [await one.job() for one in last]
    assert {(job.state, job.errors) for job in jobs} == {("succeeded", 0)}


async def test_a_job_that_was_lost_once_starts_at_once_or_is_given_back() -> None:
    scene = Scene()
    lost = await scene.enqueue(3 * SLOTS)
    claim = Claim(queues=("default",), names={"work": 99}, n=99, lease_ms=50, worker="dead", token=f"{AHEAD}0")
    assert len((await scene.store.exchange([], claim)).claimed) == 3 * SLOTS
    ends_ms = scene.store.now() + claim.lease_ms
    await scene.enqueue(QUICK)
    await until(lambda: scene.store.now() > ends_ms)
    async with at_work(scene):
        await until(lambda: len(scene.ran) == QUICK + 3 * SLOTS)
    for job in await scene.store.get(lost):
        assert job is not None
        assert (job.state, job.crashes, job.unstarted) == ("succeeded", 0, 1)
        assert [(one.outcome, one.started) for one in job.attempts] == [("crashed", False)]


# ---------------------------------------------------------------------------------------------------- decisions


class Rules(AheadRules):
    """All handlers are short."""

    def __init__(self) -> None:
        self.short = frozenset({"work"})
        self.are_all_short = True
        self._is_allowed = True

    async def refresh(self, now: float) -> None:
        """Nothing changes."""


def claimed(size: int = 2, **fields: Any) -> Claimed:
    about: Any = {"queue": "q", "payload_json": Raw(b"x" * size), "state": "running", "priority": 0, "due_ms": 0}
    job = Job(**{"id": "1", "name": "work", "created_ms": 0, "updated_ms": 0, **about, **fields})
    return Claimed(job, Lease(job.id, "t", job.queue, job.name, 0))


async def test_as_many_are_claimed_ahead_as_end_during_one_exchange_and_its_successor() -> None:
    ahead = AheadQueue(Rules(), 500)
    await ahead.learn([claimed()], 100.0, 0.1)
    ahead.settled = 400  # in one second
    await ahead.learn([claimed()], 101.0, 0.1)
    assert (ahead.target, ahead.wake_at) == (80, 40)
    assert ahead.claimable(0, {"work": 4}) == (80, {"work": 80})
    assert ahead.claimable(4, {"work": 4}) == (84, {"work": 84})


async def test_nothing_is_claimed_ahead_for_a_while_after_a_stop() -> None:
    ahead = AheadQueue(Rules(), 500)
    ahead.settled = 400
    ahead.stop(60.0)
    await ahead.learn([claimed()], 0.0, 0.1)
    assert ahead.target == 0


async def test_large_payloads_are_not_collected() -> None:
    ahead = AheadQueue(Rules(), 500)
    ahead.settled = 400
    await ahead.learn([claimed(MAX_BYTES // 4)], 1.0, 1.0)
    assert ahead.target == 4


async def test_handlers_that_are_not_known_to_be_short_get_free_slots_only() -> None:
    ahead = AheadQueue(Rules(), 500)
    ahead.rules.are_all_short = False
    ahead.target = 10
    assert ahead.claimable(3, {"work": 4, "other": 4, "scarce": 1}) == (13, {"work": 13, "other": 3, "scarce": 1})
    assert ahead.claimable(0, {"work": 4, "other": 4}) == (0, {"work": 4, "other": 4})


def test_which_jobs_may_wait() -> None:
    ahead = AheadQueue(Rules(), 500)
    assert ahead.may_wait(claimed())
    assert not ahead.may_wait(claimed(unstarted=1))
    assert not ahead.may_wait(claimed(name="other"))
