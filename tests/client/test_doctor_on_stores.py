"""The checks of `jobmill doctor` that every store shares, on every store: what is wrong is planted in a real server."""

from __future__ import annotations

from typing import Any

import pytest

from jobmill import Client
from jobmill.client import doctor
from jobmill.core.findings import StoreFacts
from jobmill.core.tallies import BUCKETS, Tally, bucket
from jobmill.testing import ManualClock
from jobmill.testing.contract.announce import card
from jobmill.testing.contract.support import claim_one

LEVELS = {
    "reachable": "ok",
    "jobs": "ok",
    "clock_skew": "warning",
    "no_worker": "error",
    "unknown_names": "warning",
    "blocked_lanes": "warning",
    "long_runs": "warning",
    "lost_leases": "warning",
    "crashes": "warning",
    "purge_behind": "warning",
    "mixed_versions": "warning",
    "late_recurrences": "error",
    "pinned": "ok",
}

#: Possible products, and the number of the last migration.
FACTS = {
    "memory": (["the memory of this process"], None),
    "sqlite": (["SQLite"], 10),
    "postgres": (["PostgreSQL"], 12),
    "redis": (["Redis", "Valkey"], None),
    "mongo": (["MongoDB"], None),
}


async def test_each_check_finds_what_is_wrong(
    jobs: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobmill.client.doctor.time.time", lambda: clock() / 1000)
    before = {one.check: one for one in await jobs.examine()}
    assert {before[check].level for check in LEVELS} == {"ok"}
    assert before["pinned"].evidence == {}

    await jobs.enqueue("send", id="slow")
    await claim_one(jobs.store, queues=("default",), names=("send",), lease_ms=3_600_000, worker="w1-name")
    await jobs.enqueue("sent", id="unknown", lane="acme")
    await jobs.enqueue("send", queue="mail", id="nobody")
    await jobs.cancel((await jobs.enqueue("send")).id)
    late = await jobs.enqueue("send", every="1h", key="late")
    pinned = await jobs.enqueue("send", every="1d", key="pinned")
    await jobs.pin(pinned.id, every="2d")
    await jobs.reschedule(pinned.id, delay="20h")
    clock.advance(12 * 60)
    buckets = [0] * BUCKETS
    buckets[bucket(60_000)] = 100
    counted = Tally(
        start_ms=clock() // 60_000 * 60_000,
        queue="default",
        name="send",
        claimed=100,
        lost=5,
        crashed=2,
        run_buckets=tuple(buckets),
    )
    about: dict[str, Any] = {"queues": ("default",), "names": ("send",), "purge_age_ms": 90 * 60_000}
    await jobs.store.announce(card("w1", **about, clock_skew_ms=-5_000), [counted])
    await jobs.store.announce(card("w2", **about, version="2.0"), [])

    found = {one.check: one for one in await jobs.examine()}
    assert {check: found[check].level for check in LEVELS} == LEVELS
    assert len(LEVELS) == 1 + len(doctor.CHECKS)
    assert next(iter(found)) == "reachable"
    facts = StoreFacts(**found["reachable"].evidence)
    products, schema = FACTS[jobs.store.name]
    assert (facts.product in products, facts.schema) == (True, schema)
    assert (facts.size_bytes is None, facts.version is None) == (jobs.store.name == "memory",) * 2
    assert found["jobs"].evidence == {"live": 5, "final": 1, "exact": True}
    assert found["clock_skew"].evidence == {"skew_ms": {"w1-name": -5_000}}
    assert found["no_worker"].evidence == {"queues": ["mail"]}
    assert found["unknown_names"].evidence == {"names": ["sent"]}
    assert found["blocked_lanes"].evidence == {"ids": ["unknown"], "lanes": ["acme (queue default)"]}
    assert [one["id"] for one in found["long_runs"].evidence["jobs"]] == ["slow"]
    assert found["lost_leases"].evidence == {"lost": 5, "claimed": 100}
    assert found["crashes"].evidence == {"crashes": {"send": 2}}
    assert set(found["purge_behind"].evidence["purge_age_ms"]) == {"w1-name", "w2-name"}
    assert found["mixed_versions"].evidence == {"versions": ["1.0", "2.0"]}
    assert found["late_recurrences"].evidence == {"ids": [late.id]}
    assert found["pinned"].evidence == {"ids": [pinned.id]}
