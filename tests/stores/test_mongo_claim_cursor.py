"""The claim cursor on MongoDB: a busy worker continues at its positions, and still claims in order."""

from __future__ import annotations

import contextlib
import itertools
import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from bson import ObjectId

from jobmill.core.changes import Reprioritize
from jobmill.core.values import Claim, Claimed, NewJob
from jobmill.stores.common import claim_cursor
from jobmill.stores.common.claim_cursor import ClaimCursor
from jobmill.stores.mongo import MongoStore, context, exchange, leases
from jobmill.stores.mongo.codec import order_of
from jobmill.stores.mongo.context import ClaimMemory
from jobmill.stores.mongo.settle import settle as settle_all
from jobmill.testing.contract.model import ModelContract
from jobmill.testing.contract.support import claim_ids, release, settle, succeed, wish
from tests.contract.mongo_harness import MongoHarness
from tests.kit.mongo import MongoReplicaSet
from tests.stores.mongo_scene import HOME, Document, Scene, foreign, home, profiled
from tests.stores_under_test import InTurn, emptied_mongo

pytestmark = pytest.mark.stores("mongo")

NAMES = ("send", "bake", "wash")
NEVER_SECONDS = 600.0
LEASE_MS = 600_000


class CursorHarness(MongoHarness):
    """Where the clock moves, so much time has passed that the cursor returns to the start."""

    async def advance(self, seconds: float) -> None:
        await super().advance(seconds)
        mongo(self).context.claims.cursor.rewind()


def mongo(harness: MongoHarness) -> MongoStore:
    assert isinstance(harness.store, MongoStore)
    return harness.store


@contextlib.asynccontextmanager
async def opened(harness: MongoHarness) -> AsyncIterator[MongoHarness]:
    await harness.store.open()
    yield harness
    await harness.store.close()


@pytest.fixture(autouse=True)
def from_the_first_claim_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cursor is used from the first claim on, and returns to the start only when it must."""
    monkeypatch.setattr(context, "MIN_CLAIMS", 0)
    monkeypatch.setattr(claim_cursor, "RETURN_SECONDS", NEVER_SECONDS)
    monkeypatch.setattr(claim_cursor, "MAX_RETURN_SECONDS", NEVER_SECONDS)


@pytest.mark.slow
class TestCursor(ModelContract):
    """Claims of one store keep the order of the model. Its time is not real, so no scan is left out to save time."""

    @pytest.fixture
    async def harness(self, mongo_in_turn: InTurn, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MongoHarness]:
        monkeypatch.setattr(context, "SCAN_SHARE", 0)
        monkeypatch.setattr(leases, "SCAN_SHARE", 0)
        monkeypatch.setattr(claim_cursor, "SHORT_SCAN_SECONDS", NEVER_SECONDS)
        async with opened(CursorHarness(await emptied_mongo(mongo_in_turn))) as harness:
            yield harness


@pytest.fixture
async def harness(mongo_in_turn: InTurn) -> AsyncIterator[MongoHarness]:
    """A store with its clock; the clock moves without a return of the cursor."""
    async with opened(MongoHarness(await emptied_mongo(mongo_in_turn))) as harness:
        yield harness


class Busy:
    """A store whose cursor has a time of its own, and another process."""

    def __init__(self, harness: MongoHarness, other: MongoStore) -> None:
        self.harness, self.store, self.other = harness, mongo(harness), other
        self.seconds = 1_000.0
        self.store.context.claims.cursor = ClaimCursor(lambda: self.seconds)

    async def claim(self, n: int = 1) -> list[str]:
        return await claim_ids(self.store, n, queues=HOME, names=NAMES, lease_ms=LEASE_MS)


@pytest.fixture
async def busy(harness: MongoHarness, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Busy]:
    """The cursor returns every second, and each scan from the start is long."""
    monkeypatch.setattr(claim_cursor, "RETURN_SECONDS", 1.0)
    monkeypatch.setattr(claim_cursor, "SHORT_SCAN_SECONDS", -1.0)
    other = await harness.another()
    assert isinstance(other, MongoStore)
    yield Busy(harness, other)
    await other.close()


def unranked(now_ms: int, n: int) -> Document:
    """A job of Monque's first generation."""
    document = foreign(now_ms, _id=ObjectId(f"{n:024x}"))
    del document["priority"]
    return document


def jobs(name: str, count: int, **about: object) -> list[NewJob]:
    return [home(f"{name}-{n:03}", **about) for n in range(count)]


# ---------------------------------------------------------------------------------------------------- one process


@pytest.mark.slow
@pytest.mark.parametrize("short_seconds", [-1.0, NEVER_SECONDS], ids=["long scans", "short scans"])
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(3, 12))]
)
async def test_jobs_of_one_process_are_claimed_in_order(
    harness: MongoHarness, monkeypatch: pytest.MonkeyPatch, seed: int, short_seconds: float
) -> None:
    """Jobs of one name or several, with priorities before, between and after those that wait; many of one due time.

    At first some jobs of another program wait, of which some have no priority: that is 0.
    """
    monkeypatch.setattr(claim_cursor, "SHORT_SCAN_SECONDS", short_seconds)
    chance = random.Random(seed)
    names = NAMES[: chance.randint(1, 3)]
    store, waiting, numbers = mongo(harness), list[tuple[float, int, ObjectId]](), itertools.count(1)
    for _ in range(chance.choice((0, 40))):
        priority, id = chance.choice((0, -1, 5, None)), ObjectId(f"{next(numbers):024x}")
        document = foreign(harness.clock(), _id=id, name=chance.choice(names), priority=priority)
        if priority is None:
            del document["priority"]
        await store.context.here.jobs.insert_one(document)
        waiting.append((-(priority or 0), harness.clock(), id))
    for _ in range(80):
        now_ms = harness.clock()
        for _ in range(chance.choice((0, 1, 1, 4, 12))):
            priority, id = chance.choice((0, 0, 0, 1, 1, 7, 2)), ObjectId(store.new_id())
            job = home(str(id), name=chance.choice(names), priority=priority)
            await store.enqueue([job])
            waiting.append((priority, now_ms, id))
        waiting.sort()
        n = chance.choice((1, 2, 3, 5))
        ids = await claim_ids(store, n, queues=HOME, names=NAMES, lease_ms=LEASE_MS)
        assert ids == [str(id) for *_, id in waiting[:n]]
        del waiting[:n]
        await harness.advance(chance.choice((0.0, 0.001, 0.2, 2.0)))


async def test_a_job_that_this_process_gives_back_is_found_at_once(busy: Busy) -> None:
    await busy.store.enqueue(jobs("job", 20))
    claim = Claim(queues=HOME, names={"send": 9}, n=2, lease_ms=LEASE_MS, token="f" * 32, worker="w")
    first, second = (await busy.store.exchange([], claim)).claimed
    assert await busy.claim(2) == ["job-002", "job-003"]
    assert isinstance(first, Claimed)
    assert isinstance(second, Claimed)
    await settle(busy.store, release(first), succeed(second))
    assert await busy.claim(2) == ["job-000", "job-004"]


async def test_a_job_that_this_process_changes_is_found_at_once(busy: Busy) -> None:
    await busy.store.enqueue(jobs("job", 20, priority=5))
    assert await busy.claim(2) == ["job-000", "job-001"]
    await busy.store.change(["job-015"], Reprioritize(1))
    assert await busy.claim(2) == ["job-015", "job-002"]


async def test_jobs_that_another_claim_did_not_lease_are_found_at_once(busy: Busy) -> None:
    await busy.store.enqueue(jobs("job", 12))
    documents = await busy.store.context.here.jobs.find().sort("_id", 1).to_list()
    assert await busy.claim(1) == ["job-000"]
    in_flight = busy.store.context.claims.in_flight
    in_flight |= {one["_id"]: (order_of(one), "send") for one in documents[1:3]}
    assert await busy.claim(2) == ["job-003", "job-004"]
    in_flight.clear()
    assert await busy.claim(4) == ["job-001", "job-002", "job-005", "job-006"]


async def test_ended_leases_are_found_one_after_the_other(
    harness: MongoHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "SCAN_SHARE", 0)
    store = mongo(harness)
    await store.enqueue(jobs("job", 2))
    assert await claim_ids(store, 1, queues=HOME, lease_ms=5_000) == ["job-000"]
    assert await claim_ids(store, 1, queues=HOME, lease_ms=20_000) == ["job-001"]
    for seconds, id in ((6, "job-000"), (15, "job-001")):
        await harness.advance(seconds)
        assert await claim_ids(store, 5, queues=HOME, lease_ms=LEASE_MS) == [id]


# ---------------------------------------------------------------------------------------------------- other processes


async def test_an_urgent_job_of_another_process_is_found_within_a_second(busy: Busy) -> None:
    await busy.store.enqueue(jobs("later", 30, priority=9))
    assert await busy.claim() == ["later-000"]
    await busy.other.enqueue([home("urgent", priority=3)])
    busy.seconds += 0.9
    assert await busy.claim() == ["later-001"]
    busy.seconds += 0.2
    assert await busy.claim() == ["urgent"]


async def test_jobs_without_a_priority_go_first_within_a_second(busy: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs that the worker has a position for fill each claim, and come after them."""
    seconds = [1_000.0]
    monkeypatch.setattr("jobmill.stores.mongo.claim.time.monotonic", lambda: seconds[0])
    await busy.store.enqueue(jobs("later", 30, priority=9))
    assert await busy.claim() == ["later-000"]
    theirs = [unranked(busy.harness.clock(), n) for n in range(3)]
    await busy.store.context.here.jobs.insert_many(theirs)
    assert await busy.claim() == ["later-001"]
    seconds[0] += 0.6
    assert await busy.claim(4) == [*(str(one["_id"]) for one in theirs), "later-002"]


async def test_a_busy_worker_claims_jobs_without_a_priority_from_its_position_on(busy: Busy) -> None:
    """Where no others wait, they keep the range that they have in the index."""
    theirs = [unranked(busy.harness.clock(), n) for n in range(30)]
    await busy.store.context.here.jobs.insert_many(theirs)
    found = [id for _ in range(6) for id in await busy.claim(5)]
    assert found == [str(one["_id"]) for one in theirs]
    assert await busy.store.context.here.jobs.count_documents({"priority": {"$exists": True}}) == 0


async def test_a_job_of_an_idle_name_of_another_process_is_found_within_a_second(busy: Busy) -> None:
    await busy.store.enqueue(jobs("send", 30))
    assert await busy.claim() == ["send-000"]
    await busy.other.enqueue([home("bake", name="bake", priority=0), home("first", name="wash", priority=0)])
    busy.seconds += 1.1
    assert await busy.claim(40) == [*(f"send-{n:03}" for n in range(1, 30)), "bake", "first"]


async def test_a_job_that_another_process_gives_back_is_found_within_a_second(busy: Busy) -> None:
    await busy.store.enqueue(jobs("job", 20))
    claim = Claim(queues=HOME, names={"send": 1}, n=1, lease_ms=LEASE_MS, token="f" * 32, worker="w")
    (held,) = (await busy.other.exchange([], claim)).claimed
    assert isinstance(held, Claimed)
    assert await busy.claim(2) == ["job-001", "job-002"]
    await settle(busy.other, release(held))
    busy.seconds += 1.1
    assert await busy.claim(2) == ["job-000", "job-003"]


async def test_a_claim_that_may_have_missed_a_job_names_the_time_of_the_next_scan(
    busy: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan from the start took a second; so the next one is due five seconds after it began."""
    monkeypatch.setattr(claim_cursor, "MAX_RETURN_SECONDS", 5.0)
    cursor = busy.store.context.claims.cursor
    await busy.store.enqueue(jobs("job", 3))
    start = cursor.start(HOME, NAMES)
    busy.seconds += 1.0
    cursor.learn(start, [("default", "send", 0, (0, None))], full=False)
    cursor.learn(start, (), full=False)
    assert cursor.look_again_ms(cursor.start(HOME, NAMES)) == 4_000
    claim = Claim(queues=HOME, names=dict.fromkeys(NAMES, 9), n=9, lease_ms=LEASE_MS, token="e" * 32, worker="w")
    exchanged = await busy.store.exchange([], claim)
    assert [one.lease.id for one in exchanged.claimed] == ["job-000", "job-001", "job-002"]
    assert exchanged.next_due_ms == busy.harness.clock() + 4_000


async def test_a_claim_that_did_not_search_for_ended_leases_is_soon_followed_by_another(busy: Busy) -> None:
    await busy.store.enqueue(jobs("send", 1))
    assert await claim_ids(busy.other, queues=HOME, names=NAMES, lease_ms=1_000) == ["send-000"]
    await busy.harness.advance(2)
    searches = busy.store.context.claims.ended_searches
    searches[None] = (time.monotonic(), 60.0)  # the last search was just now, and took a minute
    exchanged = await busy.store.exchange([], wish(queues=HOME, names=NAMES))
    assert (exchanged.claimed, exchanged.next_due_ms) == ([], busy.harness.clock() + 500)
    searches.clear()
    assert await busy.claim() == ["send-000"]


async def test_priorities_of_another_type_are_found(busy: Busy) -> None:
    odd = [foreign(busy.harness.clock(), priority=priority) for priority in ("high", True, float("nan"), 0)]
    await busy.store.context.here.jobs.insert_many(odd)
    found: list[str] = []
    for _ in range(8):
        found += await busy.claim()
        busy.seconds += 0.5
    assert len(found) == len(set(found)) == 4


# ---------------------------------------------------------------------------------------------------- competition


class Competition:
    """A busy process, and one that is faster when it is asked to be. The busy one skips 49 jobs when it jumps."""

    def __init__(self, busy: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
        self._busy, self._patch = busy, monkeypatch
        busy.store.context.claims = ClaimMemory(chance=lambda: 0.5)
        busy.store.context.claims.cursor = ClaimCursor(lambda: busy.seconds)

    async def claim(self, n: int = 2) -> list[str]:
        return await self._busy.claim(n)

    async def claim_of_other(self, n: int = 2) -> list[str]:
        return await claim_ids(self._busy.other, n, queues=HOME, names=NAMES, lease_ms=LEASE_MS)

    async def claim_behind_other(self, taken: int, n: int = 2) -> list[str]:
        """The other process claims after this one has searched, and before it writes."""

        async def later(*given: Any) -> Any:
            self._patch.setattr(exchange, "settle", settle_all)
            assert len(await self.claim_of_other(taken)) == taken
            return await settle_all(*given)

        self._patch.setattr(exchange, "settle", later)
        return await self.claim(n)


@pytest.fixture
def competition(busy: Busy, monkeypatch: pytest.MonkeyPatch) -> Competition:
    return Competition(busy, monkeypatch)


async def test_a_process_that_loses_half_of_its_jobs_continues_behind_the_other_one(
    busy: Busy, competition: Competition
) -> None:
    await busy.store.enqueue(jobs("job", 120))
    async with profiled(busy.store) as done:
        assert await competition.claim_behind_other(2) == ["job-051", "job-052"]
    rereads = [one for one in done if "claimId" in one["command"].get("filter", {})]
    assert len(rereads) == 1, "only the claim that lost its jobs reads them after the lease"
    assert await competition.claim_of_other() == ["job-002", "job-003"]
    assert await competition.claim() == ["job-053", "job-054"]
    assert await competition.claim_behind_other(4) == ["job-055", "job-056"], "the other one is before it"
    busy.seconds += 1.1
    assert await competition.claim() == ["job-008", "job-009"], "it has returned to the start"


async def test_a_process_that_loses_few_of_its_jobs_keeps_the_order(busy: Busy, competition: Competition) -> None:
    await busy.store.enqueue(jobs("job", 200))
    assert await competition.claim_behind_other(2, n=5) == [f"job-{n:03}" for n in range(2, 7)]
    assert await competition.claim() == ["job-007", "job-008"]


async def test_a_process_that_is_not_busy_continues_behind_others_from_its_second_loss_on(
    busy: Busy, competition: Competition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "MIN_CLAIMS", 1_000)
    await busy.store.enqueue(jobs("job", 120))
    assert await competition.claim_behind_other(2) == ["job-002", "job-003"]
    assert await competition.claim_behind_other(2) == ["job-055", "job-056"]
    assert await competition.claim() == ["job-057", "job-058"]
    assert busy.store.context.claims.contested == {"default"}
    assert len(await competition.claim(200)) == 120 - 10
    assert busy.store.context.claims.contested == set()


async def test_no_process_passes_over_jobs_that_are_more_urgent(busy: Busy, competition: Competition) -> None:
    await busy.store.enqueue([*jobs("urgent", 40, priority=1), *jobs("later", 200, priority=5)])
    assert await competition.claim_behind_other(2) == ["urgent-002", "urgent-003"]


async def test_a_process_that_has_jumped_takes_what_it_left_before_it_sleeps(
    busy: Busy, competition: Competition
) -> None:
    await busy.store.enqueue(jobs("job", 60))
    assert await competition.claim_behind_other(2) == ["job-051", "job-052"]
    assert await competition.claim(20) == [f"job-{n:03}" for n in range(2, 22)]


async def test_claims_in_flight_do_not_pull_a_jump_back(busy: Busy, competition: Competition) -> None:
    await busy.store.enqueue(jobs("job", 120))
    documents = await busy.store.context.here.jobs.find().sort("_id", 1).to_list()
    assert await competition.claim(1) == ["job-000"]
    busy.store.context.claims.in_flight |= {one["_id"]: (order_of(one), "send") for one in documents[1:3]}
    assert await competition.claim_behind_other(4) == ["job-054", "job-055"]
    assert await competition.claim() == ["job-056", "job-057"]


# ---------------------------------------------------------------------------------------------------- cost


async def skipped(store: MongoStore) -> int:
    """How many index entries of claimed jobs the server has walked over."""
    status = await store.context.here.database.command("serverStatus", wiredTiger=1)
    return int(status["wiredTiger"]["cursor"]["Total number of entries skipped by cursor next calls"])


@pytest.mark.slow
@pytest.mark.parametrize("names", [["drain"], ["busy", "drain", "idle"]], ids=["alone", "among others"])
async def test_a_busy_worker_does_not_walk_over_the_jobs_that_it_has_claimed(
    own_mongo: MongoReplicaSet, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    """Jobs of two priorities and one due time, on a server without index entries of other tests.

    Without the cursor each claim walks over all jobs that were claimed before. No jobs of the other names wait: their
    index ranges end where those entries begin.
    """
    scene, count = Scene(own_mongo.url("jobs")), 10_000
    await scene.open()
    store = scene.store
    await store.enqueue([home(f"job-{n:05}", name="drain", priority=n % 2) for n in range(count)])
    scene.clock.advance(10)

    async def walked(claims: int) -> float:
        """Entries that one claim walks over: the median, because the server does other work too."""
        by_claim = []
        for _ in range(claims):
            before = await skipped(store)
            assert len(await claim_ids(store, 50, queues=HOME, names=names)) == 50
            by_claim.append(await skipped(store) - before)
        return statistics.median(by_claim)

    with_cursor = await walked(150)
    monkeypatch.setattr(context, "MIN_CLAIMS", count * 2)
    assert await walked(10) > 5 * with_cursor
    await store.close()


def is_busy(memory: ClaimMemory) -> bool:
    return memory.is_busy


def test_the_cursor_is_for_processes_that_have_claimed_much_in_the_last_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = [1_000.0]
    monkeypatch.setattr(context, "MIN_CLAIMS", 2_000)
    memory = ClaimMemory(lambda: times[-1])
    memory.count(1_999)
    assert not is_busy(memory)
    memory.count(1)
    assert is_busy(memory)
    times.append(times[-1] + context.ENTRIES_KEPT_SECONDS + 1)
    memory.count(0)
    assert is_busy(memory)
    times.append(times[-1] + 2 * context.ENTRIES_KEPT_SECONDS + 1)
    memory.count(0)
    assert not is_busy(memory)


# ---------------------------------------------------------------------------------------------------- positions


def test_a_job_in_a_range_without_a_position_is_a_stop() -> None:
    cursor = ClaimCursor(lambda: 1_000.0)
    cursor.learn(cursor.start(["q"], ["a", "b"]), [("q", "a", 5, (7_000, 0))], full=True)
    cursor.added("q", "a", 5, 8_000)
    cursor.added("q", "c", 1, 8_000)
    assert cursor.stop("q") is None
    cursor.added("q", "b", 6, 9_000)
    cursor.added("q", "a", 4, 9_500)
    cursor.added("q", "b", 6, 9_900)
    assert cursor.stop("q") == (4, 9_500)
    assert cursor.start(["q"], ["a"]).is_known
    assert not cursor.start(["q"], ["a", "c"]).is_known
    cursor.added("q", "a", 5, 6_999)
    assert not cursor.start(["q"], ["a"]).is_known
    assert cursor.stop("q") is None


def test_positions_may_replace_those_that_were_known() -> None:
    cursor = ClaimCursor(lambda: 1_000.0)
    cursor.learn(cursor.start(["q"], ["a"]), [("q", "a", 1, (7_000, 0)), ("q", "a", 5, (7_000, 0))], full=True)
    cursor.learn(cursor.start(["q"], ["a"]), [("q", "a", 5, (8_000, 0))], full=True, replaces=True)
    assert cursor.start(["q"], ["a"]).positions == {("q", "a"): {5: (8_000, 0)}}


def test_a_claim_may_begin_at_the_start_before_it_is_time() -> None:
    cursor = ClaimCursor(lambda: 1_000.0)
    cursor.learn(cursor.start(["q"], ["a"]), [("q", "a", 5, (7_000, 0))], full=True)
    cursor.stop_at("q", (5, 8_000))
    assert cursor.start(["q"], ["a"]).is_known
    start = cursor.start(["q"], ["a"], anew=True)
    assert start.is_return
    assert not start.has_positions
    assert cursor.stop("q") is None


def test_a_claim_that_is_not_full_returns_at_once_to_the_jobs_that_a_jump_left_out() -> None:
    """Otherwise not for five times the time that the scan from the start has taken."""
    seconds = [1_000.0]
    cursor = ClaimCursor(lambda: seconds[0])
    first = cursor.start(["q"], ["a"])
    seconds[0] += 0.5
    cursor.learn(first, [("q", "a", 5, (7_000, 0))], full=False)
    start = cursor.start(["q"], ["a"])
    assert cursor.look_again_ms(start) == 2_000
    jumped = cursor.jump(start, (9_000, 3))
    assert jumped.positions == {("q", "a"): {5: (9_000, 3)}}
    assert cursor.look_again_ms(jumped) == 0
    assert cursor.start(["q"], ["a"]).is_return


def test_a_claim_reaches_the_jobs_from_its_position_on() -> None:
    cursor = ClaimCursor(lambda: 1_000.0)
    cursor.learn(cursor.start(["q"], ["a"]), [("q", "a", 5, (7_000, 3))], full=True)
    start = cursor.start(["q"], ["a"])
    orders = [(5, 7_000, 2), (5, 6_999, 9), (5, 7_000, 3), (5, 7_001, 0), (4, 6_000, 0)]
    assert [start.reaches("q", order, "a") for order in orders] == [False, False, True, True, True]
    assert not start.reaches("q", (5, 8_000, 0), "b")


# ---------------------------------------------------------------------------------------------------- several names


def of_several_names(now_ms: int, count: int, priorities: Sequence[object]) -> list[Document]:
    """Jobs of Monque; their ids are in another order than their due times. "none": they have no priority."""
    documents = []
    for n in range(count):
        about = {
            "_id": ObjectId(f"{n * 7 % count:024x}"),
            "name": NAMES[n % 3],
            "priority": priorities[n % len(priorities)],
        }
        document = foreign(now_ms - 100 + n // 4, **about)
        if document["priority"] == "none":
            del document["priority"]
        documents.append(document)
    return documents


def in_claim_order(documents: Sequence[Document]) -> list[str]:
    rank = {one["_id"]: -(one.get("priority") or 0) for one in documents}
    ordered = sorted(documents, key=lambda one: (rank[one["_id"]], int(one["nextRunAt"]), one["_id"]))
    return [str(one["_id"]) for one in ordered]


@pytest.mark.parametrize(
    "priorities",
    [(0,), ("none",), ("none", None), ("none", 0, None), (0, "none", 3, None, -2, 0.0)],
    ids=["0", "missing", "missing or null", "missing, null or 0", "several"],
)
@pytest.mark.parametrize("n", [1, 5])
async def test_a_busy_claim_of_several_names_keeps_the_order(busy: Busy, priorities: Sequence[object], n: int) -> None:
    """Monque's first generation writes no priority: that is 0."""
    documents = of_several_names(busy.harness.clock(), 60, priorities)
    await busy.store.context.here.jobs.insert_many(documents)
    found = list[str]()
    while ids := await busy.claim(n):
        found += ids
    assert found == in_claim_order(documents)


@pytest.mark.parametrize("priority", [0, "none"])
async def test_a_claim_that_continues_reads_little_more_than_it_takes(mongo_url: str, priority: object) -> None:
    scene = Scene(mongo_url)
    await scene.open()
    documents = of_several_names(scene.clock(), 600, [priority])
    await scene.store.context.here.jobs.insert_many(documents)
    first = await claim_ids(scene.store, queues=HOME, names=NAMES, n=10)
    async with profiled(scene.store) as done:
        ids = await claim_ids(scene.store, queues=HOME, names=NAMES, n=10)
    assert first + ids == in_claim_order(documents)[:20]
    searches = [one for one in done if one["command"].get("aggregate")]
    assert sum(one["docsExamined"] for one in searches) < 60
    await scene.store.close()
