"""The clock of a store, in whole milliseconds; and opening, closing and sharing a store."""

from __future__ import annotations

from datetime import UTC

from jobmill.core.values import EVERYTHING, after
from jobmill.store import Store
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    claim_ids,
    claim_one,
    look,
    new,
    put_one,
    second,
    settle,
    started,
    state_of,
    succeed,
)


class ClockContract:
    """The clock."""

    def test_the_clock_has_whole_milliseconds(self, harness: Harness) -> None:
        assert type(harness.store.now()) is int

    async def test_time_moves_as_far_as_it_is_advanced(self, harness: Harness) -> None:
        start = harness.store.now()
        await harness.advance(1.234)
        assert harness.store.now() == start + 1_234

    async def test_two_connections_have_the_same_time(self, harness: Harness) -> None:
        async with second(harness) as other:
            await harness.advance(5)
            assert other.now() == harness.store.now()

    async def test_each_step_of_a_job_has_its_time(self, harness: Harness) -> None:
        start = harness.store.now()
        await harness.advance(1)
        await put_one(harness.store, new(due=after(2_000)))
        await harness.advance(4)
        claimed = await claim_one(harness.store)
        await harness.advance(8)
        await settle(harness.store, succeed(claimed))
        job = await look(harness.store, claimed.job.id)
        times = (job.created_ms, job.due_ms, job.started_ms, job.finished_ms, job.updated_ms)
        assert times == (start + 1_000, start + 3_000, start + 5_000, start + 13_000, start + 13_000)
        assert all(type(ms) is int for ms in times)

    async def test_instants_are_in_utc(self, harness: Harness) -> None:
        job = (await started(harness.store)).job
        assert job.due_at is not None
        assert (job.due_at.tzinfo, job.started_at and job.started_at.tzinfo) == (UTC, UTC)
        assert round(job.due_at.timestamp() * 1_000) == job.due_ms

    async def test_a_lease_of_one_millisecond_ends_after_one(self, harness: Harness) -> None:
        claimed = await started(harness.store, lease_ms=1)
        assert await claim_ids(harness.store) == []
        await harness.advance(0.001)
        assert await claim_ids(harness.store) == [claimed.job.id]

    async def test_a_lease_can_last_for_years(self, harness: Harness) -> None:
        claimed = await started(harness.store, lease_ms=10 * 365 * 86_400_000)
        await harness.advance(9 * 365 * 86_400)
        assert await settle(harness.store, succeed(claimed)) == ["done"]


class OpenContract:
    """Opening and closing."""

    def test_a_store_has_a_name_and_an_address(self, harness: Harness) -> None:
        store: Store = harness.store
        assert store.name
        assert store.exchanges_in_flight in (1, 2)

    async def test_opening_twice_does_nothing(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        await harness.store.open()
        assert await state_of(harness.store, id) == "waiting"

    async def test_a_store_can_be_closed_twice_and_opened_again(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        await harness.store.close()
        await harness.store.close()
        await harness.store.open()
        assert await state_of(harness.store, id) == "waiting"
        assert await claim_ids(harness.store) == [id]

    async def test_a_lease_outlives_a_reopening(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await harness.store.close()
        await harness.store.open()
        assert await settle(harness.store, succeed(claimed)) == ["done"]

    async def test_a_store_that_is_up_to_date_has_nothing_to_migrate(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        assert await harness.store.migrate() == []
        assert await state_of(harness.store, id) == "waiting"

    async def test_closing_one_connection_leaves_the_other_open(self, harness: Harness) -> None:
        async with second(harness) as other:
            id = await put_one(other)
        assert await state_of(harness.store, id) == "waiting"

    async def test_both_connections_write(self, harness: Harness) -> None:
        async with second(harness) as other:
            await put_one(harness.store)
            await put_one(other)
            assert sum(one.count for one in await harness.store.count(EVERYTHING)) == 2
