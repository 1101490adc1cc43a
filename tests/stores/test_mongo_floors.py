"""Floors on MongoDB: a busy worker begins at the first job that waits, and finds what is put behind all the same."""

from __future__ import annotations

import contextlib
import itertools
import random
import statistics
from collections.abc import AsyncIterator

import pytest
from bson import ObjectId

from jobmill.core.values import Claim, Claimed, NewJob, after
from jobmill.stores.mongo import MongoStore, floors
from jobmill.stores.mongo.floors import Floor, Floors, Front
from jobmill.stores.mongo.values import date
from jobmill.testing.contract.model import ModelContract
from jobmill.testing.contract.support import claim_ids, release, settle, succeed
from tests.contract.mongo_harness import MongoHarness
from tests.helpers import until
from tests.kit.mongo import MongoReplicaSet
from tests.stores.mongo_reviewing import HOME, Document, Scene, foreign, home
from tests.stores_under_test import InTurn, emptied_mongo

pytestmark = pytest.mark.stores("mongo")

NAMES = ("send", "bake", "wash")
#: In which nothing happens.
NEVER_S = 600.0


@contextlib.asynccontextmanager
async def opened(mongo_in_turn: InTurn) -> AsyncIterator[MongoHarness]:
    harness = MongoHarness(await emptied_mongo(mongo_in_turn))
    await harness.store.open()
    yield harness
    await harness.store.close()


@pytest.fixture
async def harness(mongo_in_turn: InTurn, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MongoHarness]:
    """The store under test, opened and empty, with floors from the first claim on."""
    monkeypatch.setattr(floors, "FROM_CLAIMS", 0)
    async with opened(mongo_in_turn) as harness:
        yield harness


@pytest.mark.slow
class TestFloors(ModelContract):
    """Where a look at everything costs little, nobody notices them."""


@pytest.mark.slow
class TestFloorsAlone(ModelContract):
    """Where everything is looked at only once, whatever one store does itself is still claimed in order."""

    @pytest.fixture
    async def harness(self, mongo_in_turn: InTurn, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MongoHarness]:
        alone(monkeypatch)
        async with opened(mongo_in_turn) as harness:
            yield harness


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Floors from the first claim on, and nothing but these; with few fronts, and ids that count at once."""
    monkeypatch.setattr(floors, "FROM_CLAIMS", 0)
    monkeypatch.setattr(floors, "DEAR_S", -1.0)
    monkeypatch.setattr(floors, "ALL_EVERY_S", NEVER_S)
    monkeypatch.setattr(floors, "NEW_EVERY_S", 0.0)
    monkeypatch.setattr(floors, "MOST_FRONTS", 2)
    monkeypatch.setattr(floors, "MOST_MISSED", 3)
    monkeypatch.setattr(floors, "LOOKS_OF_ONE_TIME", 1)


class Busy:
    """A store for which a look at everything is dear, and another that writes behind its floor."""

    def __init__(self, harness: MongoHarness, store: MongoStore, other: MongoStore) -> None:
        self.harness, self.store, self.other = harness, store, other
        self._calls = 0

    async def put(self, *ids: str) -> None:
        await self.other.enqueue(
            [NewJob(id=id, name="work", queue="default", payload_json=b"{}", due=after(0)) for id in ids]
        )

    async def claim(self, store: MongoStore, n: int = 10, lease_ms: int = 60_000) -> tuple[list[Claimed], int | None]:
        self._calls += 1
        claim = Claim(
            queues=("default",), names={"work": n}, n=n, lease_ms=lease_ms, token=f"{self._calls:032x}", worker="w"
        )
        exchanged = await store.exchange([], claim)
        return [one for one in exchanged.claimed if isinstance(one, Claimed)], exchanged.next_due_ms

    async def ids(self) -> list[str]:
        return [one.job.id for one in (await self.claim(self.store))[0]]


@pytest.fixture
async def busy(harness: MongoHarness, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Busy]:
    monkeypatch.setattr(floors, "DEAR_S", -1.0)
    assert isinstance(harness.store, MongoStore)
    other = await harness.another()
    assert isinstance(other, MongoStore)
    yield Busy(harness, harness.store, other)
    await other.close()


async def test_a_job_that_another_gave_back_is_found_by_the_next_look_at_everything(
    busy: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floors, "ALL_EVERY_S", 0.3)
    await busy.put("old")
    (held,), _ = await busy.claim(busy.other)
    await busy.harness.advance(10)
    assert await busy.ids() == []
    now_ms = busy.store.now()
    assert await settle(busy.other, release(held)) == ["done"]
    claimed, next_due_ms = await busy.claim(busy.store)
    if not claimed:  # else the look was due already
        assert next_due_ms is not None
        assert next_due_ms <= now_ms + 300
        claimed = [(await until(lambda: found_by(busy), 5))]
    assert [one.job.id for one in claimed] == ["old"]


async def found_by(busy: Busy) -> Claimed | None:
    claimed, _ = await busy.claim(busy.store)
    return claimed[0] if claimed else None


async def test_what_comes_later_is_found_at_once_whatever_its_priority(busy: Busy) -> None:
    await busy.put("first")
    assert await busy.ids() == ["first"]
    await busy.harness.advance(10)
    assert await busy.ids() == []
    for n in range(3):
        await busy.harness.advance(1)
        await busy.put(f"late-{n}")
        assert await busy.ids() == [f"late-{n}"]


async def test_what_we_put_behind_ourselves_is_found_at_once(busy: Busy) -> None:
    await busy.put("old", "older")
    claimed, _ = await busy.claim(busy.store)
    await busy.harness.advance(10)
    assert await busy.ids() == []
    await settle(busy.store, *map(release, claimed))
    assert await busy.ids() == ["old", "older"]


async def test_a_lease_that_has_ended_is_found_although_others_had_before(busy: Busy) -> None:
    await busy.put("one", "two")
    (first,), _ = await busy.claim(busy.store, n=1, lease_ms=5_000)
    (second,), _ = await busy.claim(busy.store, n=1, lease_ms=20_000)
    await busy.harness.advance(6)
    (again,), _ = await busy.claim(busy.store)
    assert again.job.id == first.job.id
    await settle(busy.store, succeed(again))
    assert await busy.ids() == []
    await busy.harness.advance(15)
    assert await busy.ids() == [second.job.id]


# ----------------------------------------------------------------------------------------------- what others write


@pytest.mark.parametrize("dear_s", [-1.0, NEVER_S], ids=["dear", "cheap"])
@pytest.mark.parametrize("seed", range(8))
async def test_what_others_enqueue_is_claimed_in_order(
    harness: MongoHarness, monkeypatch: pytest.MonkeyPatch, seed: int, dear_s: float
) -> None:
    """Of one name or several, of priorities above, between and below those that wait, or of none; many of one time.

    By floors alone, and where everything is looked at whenever nothing waits.
    """
    alone(monkeypatch)
    monkeypatch.setattr(floors, "DEAR_S", dear_s)
    chance = random.Random(seed)
    names = NAMES[: chance.randint(1, 3)]
    store, waiting, numbers = mongo(harness), list[tuple[float, int, ObjectId]](), itertools.count(1)
    assert await claim_ids(store, 1, queues=HOME, names=NAMES) == []
    for _ in range(100):
        now_ms = harness.clock()
        for _ in range(chance.choice((0, 1, 1, 4, 12))):
            priority = chance.choice((0, 0, 0, -1, -1, 5, -7, 2, 1, None))
            id = ObjectId(f"{next(numbers):024x}")
            document = foreign(now_ms, _id=id, name=chance.choice(names), priority=priority)
            if priority is None:
                del document["priority"]
            await store._here.jobs.insert_one(document)
            waiting.append((float("inf") if priority is None else -priority, now_ms, id))
        waiting.sort()
        n = chance.choice((1, 2, 3, 5))
        ids = await claim_ids(store, n, queues=HOME, names=NAMES, lease_ms=int(NEVER_S * 1000))
        assert ids == [str(id) for *_, id in waiting[:n]]
        del waiting[:n]
        await harness.advance(chance.choice((0.0, 0.001, 0.2, 2.0)))


def mongo(harness: MongoHarness) -> MongoStore:
    assert isinstance(harness.store, MongoStore)
    return harness.store


async def test_an_urgent_job_of_another_process_does_not_wait_for_those_that_wait_long(
    busy: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floors, "ALL_EVERY_S", NEVER_S)
    later = [home(f"later-{n:03}", priority=9) for n in range(400)]
    await busy.other.enqueue(later)
    assert await claim_ids(busy.store, 1, queues=HOME) == ["later-000"]
    await busy.other.enqueue([home("urgent", priority=3)])

    async def urgent() -> bool:
        return "urgent" in await claim_ids(busy.store, 1, queues=HOME)

    assert await until(urgent, 5)
    assert await claim_ids(busy.store, 1, queues=HOME) != []


async def test_an_urgent_job_of_this_process_is_found_at_once(busy: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floors, "ALL_EVERY_S", NEVER_S)
    monkeypatch.setattr(floors, "NEW_EVERY_S", NEVER_S)
    await busy.store.enqueue([home(f"later-{n}", priority=9) for n in range(10)])
    assert await claim_ids(busy.store, 1, queues=HOME) == ["later-0"]
    assert await claim_ids(busy.store, 1, queues=HOME) == ["later-1"]
    await busy.store.enqueue([home("urgent", priority=3)])
    assert await claim_ids(busy.store, 1, queues=HOME) == ["urgent"]


async def test_a_priority_of_a_type_that_is_none_is_found_by_a_look_at_everything(
    busy: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floors, "ALL_EVERY_S", 0.1)
    await busy.store._here.jobs.insert_many(
        [foreign(busy.harness.clock(), priority=odd) for odd in ("high", True, float("nan"), 0)]
    )
    found: list[str] = []

    async def all_of_them() -> bool:
        found.extend(await claim_ids(busy.store, 1, queues=HOME))
        return len(found) == 4

    assert await until(all_of_them, 5)


async def test_what_was_in_hand_and_not_taken_after_all_is_found_again_at_once(
    harness: MongoHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone(monkeypatch)
    store = mongo(harness)
    assert await claim_ids(store, 1, queues=HOME) == []
    await store.enqueue([home(f"job-{n}") for n in range(4)])
    documents = await store._here.jobs.find().sort("_id", 1).to_list()
    await harness.advance(10)
    with store._taking(documents[:2]):
        assert await claim_ids(store, 1, queues=HOME) == ["job-2"]
    assert await claim_ids(store, 4, queues=HOME) == ["job-0", "job-1", "job-3"]


# --------------------------------------------------------------------------------------------------- what they are for


async def skipped(store: MongoStore) -> int:
    """Over how many entries that are gone the server has walked."""
    told = await store._here.database.command("serverStatus", wiredTiger=1)
    return int(told["wiredTiger"]["cursor"]["Total number of entries skipped by cursor next calls"])


@pytest.mark.slow
@pytest.mark.parametrize("names", [["drain"], ["busy", "drain", "idle"]], ids=["alone", "among others"])
async def test_a_busy_worker_does_not_walk_over_what_it_has_claimed(
    own_mongo: MongoReplicaSet, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    """Of two priorities, and all of one time, on a server where no other test has left anything.

    Without floors each claim walks over all that were claimed before. Of the other names nothing waits: their ranges of
    the index end where those entries begin.
    """
    monkeypatch.setattr(floors, "FROM_CLAIMS", 0)
    monkeypatch.setattr(floors, "ALL_EVERY_S", NEVER_S)
    scene, jobs = Scene(own_mongo.url("jobs")), 10_000
    await scene.open()
    store = scene.store
    await store.enqueue([home(f"job-{n:05}", name="drain", priority=n % 2) for n in range(jobs)])
    scene.clock.advance(10)

    async def walked(claims: int) -> float:
        """By one claim, as a rule: the server may have other things to do."""
        by_claim = []
        for _ in range(claims):
            before = await skipped(store)
            assert len(await claim_ids(store, 50, queues=HOME, names=names)) == 50
            by_claim.append(await skipped(store) - before)
        return statistics.median(by_claim)

    with_floors = await walked(150)
    monkeypatch.setattr(floors, "FROM_CLAIMS", jobs * 2)
    assert await walked(10) > 5 * with_floors
    await store.close()


# ------------------------------------------------------------------------------------------------------- on their own


def waits(due_ms: int, priority: object = 0, id: int = 1) -> Document:
    return {"_id": ObjectId(f"{id:024x}"), "priority": priority, "nextRunAt": date(due_ms)}


NOW_MS = 1_000_000
RECENT_MS = NOW_MS - floors.MARGIN_MS


def fronts(floor: Floor) -> dict[float | None, int | None]:
    return {priority: front.due_ms for priority, front in floor.fronts.items()}


def test_where_nothing_waits_only_what_came_in_of_late_is_looked_for() -> None:
    floor = Floor()
    floor.found_all([waits(RECENT_MS + 7)], [], NOW_MS)
    assert (floor.is_dry, floor.ranges(NOW_MS), floor.below(NOW_MS)) == (True, [], [])
    assert floor.news(NOW_MS) == {"nextRunAt": {"$gte": date(RECENT_MS), "$lte": date(NOW_MS)}}
    # What was found may not be had, and what was in hand may be let go.
    floor.found_all([waits(7_000)], [waits(6_000)], NOW_MS)
    assert floor.new_from_ms == 6_000


def test_a_look_that_was_cut_says_of_which_priority_there_is_more() -> None:
    floor = Floor()
    found = [waits(7_000, 5), waits(8_000, 0), waits(9_000, 0)]
    floor.found_first(found, [waits(7_500, 0)], NOW_MS, found[-1])
    assert (fronts(floor), floor.new_from_ms) == ({0: 7_500}, 7_000)
    assert floor.below(NOW_MS)[0]["priority"] == {"$lt": 0}
    assert floor.news(NOW_MS)["priority"] == {"$gt": 0, "$nin": [0]}


def test_a_look_that_others_cut_says_that_nothing_was_before() -> None:
    floor = Floor()
    floor.found_first([], [], NOW_MS, waits(8_000, -2))
    assert (fronts(floor), floor.new_from_ms) == ({-2: 8_000}, RECENT_MS)


def test_a_priority_of_which_all_was_seen_has_no_front_any_more() -> None:
    floor = Floor(fronts={one: Front(5_000) for one in (3, 2, 1, 0, None)})
    floor.passed([waits(6_000, 2), waits(7_000, 0)], [waits(4_000, 1)], NOW_MS, waits(8_000, 0))
    assert fronts(floor) == {2: 6_000, 1: 4_000, 0: 7_000, None: 5_000}
    floor.passed([waits(6_000, None)], [], NOW_MS, waits(7_000, None))
    assert fronts(floor) == {None: 6_000}
    assert not floor.is_seen(waits(7_000, None))
    assert floor.is_seen(None)
    assert Floor(fronts={0: Front()}).is_seen(waits(7_000, -1))


def test_a_name_of_which_nothing_is_found_for_long_is_looked_at_for_itself() -> None:
    floor = Floor(fronts={0: Front(5_000)})
    for _ in range(floors.MOST_MISSED):
        floor.passed([], [], NOW_MS, waits(6_000))
        assert floor.fronts
    floor.passed([], [], NOW_MS, waits(6_000))
    assert not floor.fronts


@pytest.mark.parametrize("odd", [True, "high", float("nan"), [1], {"a": 1}])
def test_what_is_no_priority_has_no_front(odd: object) -> None:
    floor = Floor()
    floor.found_first([waits(7_000, 0), waits(8_000, odd)], [waits(9_000, odd)], NOW_MS, waits(8_000, odd))
    assert not floor.is_known(0.0)
    floor.found_all([], [], NOW_MS)
    floor.found_many_new([waits(8_000, odd)], [], NOW_MS)
    assert floor.is_dry


def test_of_thousands_of_one_time_a_look_begins_at_an_id() -> None:
    floor, last = Floor(), waits(5_000, id=1)
    later = {"priority": 0, "nextRunAt": {"$gte": date(5_000), "$lte": date(NOW_MS)}}
    for n in range(floors.LOOKS_OF_ONE_TIME + 1):
        last = waits(5_000, id=n + 1)
        floor.found_first([last], [], NOW_MS, last)
        assert (floor.ranges(NOW_MS) == [later]) == (n < floors.LOOKS_OF_ONE_TIME)
    assert floor.ranges(NOW_MS) == [{"priority": 0, "nextRunAt": date(5_000), "_id": {"$gte": last["_id"]}}]
    assert not floor.widened(waits(5_000, id=99))
    assert floor.ranges(NOW_MS) != [later]
    assert floor.widened(waits(5_001))
    assert floor.ranges(NOW_MS) == [later]


@pytest.mark.parametrize("last", [None, waits(5_000, -1), waits(4_000)])
def test_a_look_that_went_past_that_time_is_made_again(last: Document | None) -> None:
    id = waits(0)["_id"]
    floor = Floor(fronts={0: Front(5_000, id, floors.LOOKS_OF_ONE_TIME), 3: Front(5_000, id, 0)})
    assert floor.widened(last)
    assert not floor.widened(last)


def test_floors_are_for_those_who_have_claimed_much_of_late() -> None:
    all_of_them = Floors()
    all_of_them.claimed(floors.FROM_CLAIMS - 1, 0.0)
    assert all_of_them.of("default", ["work"], 1.0) == {}
    assert all_of_them.of_leases("default", ["work"], 1.0) is None
    all_of_them.claimed(1, 2.0)
    floor = all_of_them.of("default", ["work"], 3.0)["work"]
    assert all_of_them.of("default", ["work", "other"], floors.LAST_S + 1.0)["work"] is floor
    assert all_of_them.of("default", ["work"], 2 * floors.LAST_S + 2.0) == {}


def test_floors_of_too_many_names_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floors, "FROM_CLAIMS", 0)
    monkeypatch.setattr(floors, "MOST_NAMES", 3)
    all_of_them = Floors()
    first, lease = all_of_them.of("default", ["work"], 0.0), all_of_them.of_leases("default", ["work"], 0.0)
    for name in ("a", "b", "c"):
        assert all_of_them.of("default", ["work"], 0.0) == first
        assert all_of_them.of_leases("default", ["work"], 0.0) is lease
        all_of_them.of("default", [name], 0.0)
        all_of_them.of_leases("default", [name], 0.0)
    assert all_of_them.of("default", ["work"], 0.0)["work"] is not first["work"]
    assert all_of_them.of_leases("default", ["work"], 0.0) is not lease
