"""`extend`, the heartbeat: extends leases, and returns the lost ones."""

from __future__ import annotations

from msgspec import structs

from jobmill.core.changes import Cancel, Remove
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    LEASE_MS,
    claim,
    claim_ids,
    claim_one,
    look,
    new,
    put,
    release,
    second,
    seize,
    settle,
    started,
    succeed,
)


class ExtendContract:
    """Extending leases."""

    async def test_an_extended_lease_outlives_its_first_end(self, harness: Harness) -> None:
        claimed = await started(harness.store, lease_ms=15_000)
        await harness.advance(10)
        assert await harness.store.extend([claimed.lease], 15_000) == []
        await harness.advance(14.999)
        assert await claim(harness.store) == []
        assert await settle(harness.store, succeed(claimed)) == ["done"]

    async def test_an_extended_lease_ends_after_the_extension(self, harness: Harness) -> None:
        claimed = await started(harness.store, lease_ms=15_000)
        await harness.advance(10)
        await harness.store.extend([claimed.lease], 15_000)
        await harness.advance(15)
        assert await settle(harness.store, succeed(claimed)) == ["lost"]
        assert await claim_ids(harness.store) == [claimed.job.id]

    async def test_an_extension_counts_from_now_not_from_the_old_end(self, harness: Harness) -> None:
        claimed = await started(harness.store, lease_ms=15_000)
        await harness.store.extend([claimed.lease], 1_000)
        await harness.advance(1)
        assert await claim_ids(harness.store) == [claimed.job.id]

    async def test_a_lease_can_be_extended_many_times(self, harness: Harness) -> None:
        claimed = await started(harness.store, lease_ms=15_000)
        for _ in range(20):
            await harness.advance(10)
            assert await harness.store.extend([claimed.lease], 15_000) == []
        job = await look(harness.store, claimed.job.id)
        assert (job.state, job.crashes, job.claims) == ("running", 0, 1)

    async def test_when_leases_end(self, harness: Harness) -> None:
        store, now_ms = harness.store, harness.store.now()
        claimed = await started(store, lease_ms=20_000)
        id = claimed.job.id
        waiting, done, seized = await put(store, new(), new(), new())
        assert (await store.change([done], Cancel())).ids == [done]
        await seize(store, seized, 7_000)
        assert await store.lease_ends([waiting, id, "unknown", seized, done, id]) == [
            None,
            now_ms + 20_000,
            None,
            now_ms + 7_000,
            None,
            now_ms + 20_000,
        ]
        assert await store.lease_ends([]) == []
        await harness.advance(5)
        await store.extend([claimed.lease], 60_000)
        assert await store.lease_ends([id]) == [now_ms + 65_000]
        await harness.advance(66)
        (ended,) = await store.lease_ends([id])
        assert ended is not None
        assert now_ms + 65_000 <= ended <= store.now()

    async def test_extending_no_leases_returns_no_ids(self, harness: Harness) -> None:
        assert await harness.store.extend([], 15_000) == []

    async def test_extending_returns_the_lost_leases(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(6)])
        held, wrong, cancelled, settled, removed, released = await claim(harness.store)
        await harness.store.change([cancelled.job.id, removed.job.id], Cancel())
        await harness.store.change([removed.job.id], Remove())
        await settle(harness.store, succeed(settled), release(released))
        leases = [one.lease for one in (held, cancelled, settled, removed, released)]
        lost = await harness.store.extend([*leases, structs.replace(wrong.lease, token="guessed")], 15_000)
        assert sorted(lost) == sorted(one.job.id for one in (wrong, cancelled, settled, removed, released))

    async def test_an_ended_lease_cannot_be_extended(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await harness.advance(LEASE_MS / 1_000)
        assert await harness.store.extend([claimed.lease], 15_000) == [claimed.job.id]
        assert await claim_ids(harness.store) == [claimed.job.id]

    async def test_a_lease_can_be_extended_until_the_millisecond_before_its_end(self, harness: Harness) -> None:
        claimed = await started(harness.store, lease_ms=15_000)
        await harness.advance(14.999)
        assert await harness.store.extend([claimed.lease], 15_000) == []

    async def test_a_lease_of_a_job_that_was_claimed_again_cannot_be_extended(self, harness: Harness) -> None:
        late = await started(harness.store)
        await harness.advance(LEASE_MS / 1_000)
        claimed = await claim_one(harness.store, lease_ms=2_000)
        assert await harness.store.extend([late.lease], 3_600_000) == [claimed.job.id]
        await harness.advance(2)
        assert await claim_ids(harness.store) == [claimed.job.id]

    async def test_a_wrong_token_extends_nothing(self, harness: Harness) -> None:
        claimed = await started(harness.store, lease_ms=15_000)
        await harness.store.extend([structs.replace(claimed.lease, token="guessed")], 3_600_000)
        await harness.advance(15)
        assert await claim_ids(harness.store) == [claimed.job.id]

    async def test_another_connection_respects_an_extension(self, harness: Harness) -> None:
        claimed = await started(harness.store, lease_ms=15_000)
        await harness.store.extend([claimed.lease], 60_000)
        await harness.advance(30)
        async with second(harness) as other:
            assert await claim(other) == []

    async def test_many_leases_are_extended_with_one_call(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(300)])
        claimed = await claim(harness.store, 300, lease_ms=15_000)
        assert await harness.store.extend([one.lease for one in claimed], 60_000) == []
        await harness.advance(30)
        assert await claim(harness.store) == []
