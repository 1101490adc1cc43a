"""Floors on MongoDB: a busy worker begins at the oldest job that waits, and finds what is put behind all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from jobmill.core.changes import Claim, Claimed, NewJob, after
from jobmill.stores.mongo import MongoStore, floors
from jobmill.testing.contract.model import ModelContract
from jobmill.testing.contract.support import release, settle, succeed
from tests.contract.mongo_harness import MongoHarness
from tests.helpers import until
from tests.making import InTurn, emptied_mongo

pytestmark = pytest.mark.stores("mongo")


@pytest.fixture
async def harness(mongo_in_turn: InTurn, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MongoHarness]:
    """The store under test, opened and empty, with floors from the first claim on."""
    monkeypatch.setattr(floors, "FROM_CLAIMS", 0)
    harness = MongoHarness(await emptied_mongo(mongo_in_turn))
    await harness.store.open()
    yield harness
    await harness.store.close()


@pytest.mark.slow
class TestFloors(ModelContract):
    """Where a look at everything costs little, nobody notices them."""


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
