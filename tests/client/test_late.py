"""Recurring jobs that are late, for metrics and `jobmill status`."""

from __future__ import annotations

import jobmill
from jobmill.metrics.late import late_recurrences
from jobmill.metrics.store_wide import store_metrics
from jobmill.testing import ManualClock


async def late(jobs: jobmill.Client, limit: int = 10) -> list[tuple[str | None, int]]:
    found = await late_recurrences(jobs.store, jobs.store.now(), limit)
    return [(job.unique_key, jobs.store.now() - due_ms) for job, due_ms in found]


async def test_what_waits_for_a_worker_or_a_slot_is_late(jobs: jobmill.Client, clock: ManualClock) -> None:
    await jobs.queue("default").lane("night").pause()
    await jobs.enqueue("send", every="1h", key="plain")
    await jobs.enqueue("send", every="1h", key="laned", lane="night")
    held = await jobs.enqueue("send", every="1h", key="held")
    await jobs.hold(held.id)
    await jobs.enqueue("send", lane="night")
    assert await late(jobs) == []
    clock.advance(60)
    assert await late(jobs) == [("plain", 60_000), ("laned", 60_000)]
    assert len(await late(jobs, 1)) == 1
    lines = (await store_metrics(jobs.store)).splitlines()
    assert 'jobmill_recurrence_late_seconds{name="send",key="laned"} 60.0' in lines
