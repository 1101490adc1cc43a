"""The checks of `jobmill doctor` that every store shares: each is seen to find what it looks for."""

from __future__ import annotations

from typing import Any

import pytest

import jobmill
from jobmill.client import doctor
from jobmill.core.findings import Finding
from jobmill.core.tallies import BUCKETS, Tally, bucket
from jobmill.stores.memory import MemoryStore
from jobmill.testing import ManualClock
from jobmill.testing.contract.announce import card
from jobmill.worker import announcer, janitor
from jobmill.worker.worker import Worker
from tests.helpers import until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    monkeypatch.setattr("jobmill.client.doctor.time.time", lambda: clock() / 1000)
    return clock


@pytest.fixture
def jobs(clock: ManualClock) -> jobmill.Client:
    return jobmill.connect(store=MemoryStore(clock=clock))


async def _found(jobs: jobmill.Client, check: str, level: str) -> Finding:
    """The finding of a check; all others must be ok."""
    findings = {one.check: one for one in await jobs.examine()}
    assert {one.check: one.level for one in findings.values() if one.level != "ok"} == (
        {} if level == "ok" else {check: level}
    )
    assert findings[check].level == "ok" or findings[check].remedy
    return findings[check]


async def _announce(jobs: jobmill.Client, id: str = "w1", tallies: Any = (), **about: Any) -> None:
    given = {"queues": ("default",), "names": ("send",)} | about
    await jobs.store.announce(card(id, **given), list(tallies))


def _tally(clock: ManualClock, **counts: Any) -> Tally:
    return Tally(start_ms=clock() // 60_000 * 60_000, queue="default", name="send", **counts)


async def test_a_quiet_store_is_well(jobs: jobmill.Client) -> None:
    await _announce(jobs)
    await jobs.enqueue("send")
    await _found(jobs, "reachable", "ok")
    assert len(await jobs.examine()) == 1 + len(doctor.CHECKS)


async def test_a_worker_with_a_wrong_clock(jobs: jobmill.Client) -> None:
    await _announce(jobs, clock_skew_ms=-5_000)
    found = await _found(jobs, "clock_skew", "warning")
    assert found.evidence == {"skew_ms": {"w1-name": -5_000}}


async def test_a_machine_with_a_wrong_clock(
    jobs: jobmill.Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobmill.client.doctor.time.time", lambda: clock() / 1000 + 2)
    assert "this machine" in (await _found(jobs, "clock_skew", "warning")).text


async def test_a_queue_without_a_worker(jobs: jobmill.Client, clock: ManualClock) -> None:
    await jobs.enqueue("send", queue="mail")
    await jobs.enqueue("send", queue="held", id="h")
    await jobs.enqueue("send", queue="paused")
    await jobs.hold("h")
    await jobs.queue("paused").pause()
    clock.advance(61)
    await _announce(jobs)
    found = await _found(jobs, "no_worker", "error")
    assert found.evidence == {"queues": ["mail"]}
    assert "--queue mail" in str(found.remedy)


async def test_a_name_without_a_handler(jobs: jobmill.Client, clock: ManualClock) -> None:
    await jobs.enqueue("sent")
    clock.advance(61)
    await _announce(jobs)
    assert (await _found(jobs, "unknown_names", "warning")).evidence == {"names": ["sent"]}


async def test_a_lane_that_a_job_without_a_handler_blocks(jobs: jobmill.Client, clock: ManualClock) -> None:
    await jobs.queue("default").lanes(running=1)
    blocking = await jobs.enqueue("sent", lane="acme")
    await jobs.enqueue("send", lane="acme")
    await jobs.enqueue("send", lane="other")
    clock.advance(61)
    await _announce(jobs)
    findings = {one.check: one for one in await jobs.examine()}
    assert {check for check, one in findings.items() if one.level != "ok"} == {"unknown_names", "blocked_lanes"}
    found = findings["blocked_lanes"]
    assert found.evidence == {"ids": [blocking.id], "lanes": ["acme (queue default)"]}
    assert f"jobs remove {blocking.id}" in str(found.remedy)
    await jobs.remove(blocking.id)
    assert (await _found(jobs, "blocked_lanes", "ok")).text == "no lane waits for a job that no worker can run"


async def test_jobs_without_a_handler_behind_many_others_are_not_denied(
    jobs: jobmill.Client, clock: ManualClock
) -> None:
    await jobs.enqueue_many(jobs.draft("send") for _ in range(doctor.OVERDUE_READ))
    clock.advance(61)
    await _announce(jobs)
    assert "all jobs" in (await _found(jobs, "unknown_names", "ok")).text
    await jobs.enqueue("sent", lane="acme")
    clock.advance(61)
    await _announce(jobs)
    for check in ("unknown_names", "blocked_lanes"):
        assert "the 100 jobs of each queue that have been due for longest" in (await _found(jobs, check, "ok")).text


@pytest.mark.parametrize(("minutes", "level"), [(5, "ok"), (12, "warning")])
async def test_a_long_run(jobs: jobmill.Client, clock: ManualClock, minutes: int, level: str) -> None:
    from jobmill.testing.contract.support import claim_one

    buckets = [0] * BUCKETS
    buckets[bucket(60_000)] = 100
    await jobs.enqueue("send", id="slow")
    await claim_one(jobs.store, queues=("default",))
    clock.advance(minutes * 60)
    await _announce(jobs, tallies=[_tally(clock, run_buckets=tuple(buckets), claimed=100)], started_ms=0)
    found = await _found(jobs, "long_runs", level)
    assert [one["id"] for one in found.evidence.get("jobs", [])] == (["slow"] if level == "warning" else [])


async def test_lost_leases_and_crashes(jobs: jobmill.Client, clock: ManualClock) -> None:
    await _announce(jobs, tallies=[_tally(clock, claimed=100, lost=1)])
    await _found(jobs, "lost_leases", "ok")
    await _announce(jobs, "w2", tallies=[_tally(clock, claimed=0, lost=5)])
    assert (await _found(jobs, "lost_leases", "warning")).evidence == {"lost": 6, "claimed": 100}


async def test_crashes(jobs: jobmill.Client, clock: ManualClock) -> None:
    await _announce(jobs, tallies=[_tally(clock, crashed=2)])
    assert (await _found(jobs, "crashes", "warning")).evidence == {"crashes": {"send": 2}}


async def test_a_purge_that_is_behind(jobs: jobmill.Client) -> None:
    minutes = 60_000
    await _announce(jobs, "w1", purge_age_ms=90 * minutes)
    found = await _found(jobs, "purge_behind", "warning")
    assert found.text.startswith("for 1h30m, ")
    assert found.evidence == {"purge_age_ms": {"w1-name": 90 * minutes}}
    await _announce(jobs, "w2", purge_age_ms=29 * minutes)
    await _found(jobs, "purge_behind", "ok")


async def test_a_worker_that_cannot_keep_up_with_purging(
    jobs: jobmill.Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        await jobs.cancel((await jobs.enqueue("send")).id)
    clock.advance(400 * 86_400)
    monkeypatch.setattr(janitor, "BATCH", 0)
    monkeypatch.setattr(announcer, "ANNOUNCE_EVERY_S", 0.02)
    monkeypatch.setattr(doctor, "PURGE_LATE_MS", 100)

    async def finding() -> Finding:
        return next(one for one in await jobs.examine() if one.check == "purge_behind")

    async def is_behind() -> bool:
        return (await finding()).level == "warning"

    async def is_whole() -> bool:
        return bool((await finding()).evidence["purge_age_ms"]["w1"] < behind_ms)

    async with Worker(jobs, queues=["default"], name="w1"):
        await until(is_behind)
        behind_ms = (await finding()).evidence["purge_age_ms"]["w1"]
        monkeypatch.setattr(janitor, "BATCH", 2)
        await until(is_whole)
        assert await jobs.count() == []


async def test_workers_of_another_program(jobs: jobmill.Client, clock: ManualClock) -> None:
    await jobs.enqueue("send", queue="mail")
    clock.advance(61)
    await _announce(jobs, queues=("mail",), names=("other",))
    await _found(jobs, "unknown_names", "warning")
    await _announce(jobs, "node", system="bullmq", queues=("mail",), names=(), version="")
    await _found(jobs, "unknown_names", "ok")


async def test_workers_of_several_versions(jobs: jobmill.Client) -> None:
    await _announce(jobs)
    await _announce(jobs, "w2", version="2.0")
    assert (await _found(jobs, "mixed_versions", "warning")).evidence == {"versions": ["1.0", "2.0"]}


async def test_a_recurrence_that_its_lane_holds_is_late(jobs: jobmill.Client, clock: ManualClock) -> None:
    enqueued = await jobs.enqueue("send", every="1h", key="report", queue="mail", lane="night")
    await jobs.queue("mail").lane("night").pause()
    await _announce(jobs)
    await _found(jobs, "late_recurrences", "ok")
    clock.advance(62)
    found = await _found(jobs, "late_recurrences", "error")
    assert found.evidence == {"ids": [enqueued.id]}


async def test_a_late_recurrence(jobs: jobmill.Client, clock: ManualClock) -> None:
    enqueued = await jobs.enqueue("send", every="1h", key="report")
    clock.advance(62)
    await _announce(jobs)
    found = await _found(jobs, "late_recurrences", "error")
    assert found.evidence == {"ids": [enqueued.id]}


async def test_pinned_recurrences_are_shown(jobs: jobmill.Client) -> None:
    enqueued = await jobs.enqueue("send", every="1h", key="report")
    await jobs.pin(enqueued.id, every="2h")
    assert (await _found(jobs, "pinned", "ok")).evidence == {"ids": [enqueued.id]}


async def test_a_repair_is_in_the_audit_log(jobs: jobmill.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fsck(*, repair: bool = False) -> list[Finding]:
        text = "it is broken"
        return [Finding(check="x", level="error", text=text, count=3, can_repair=True, repaired=3 if repair else 0)]

    monkeypatch.setattr(jobs.store, "fsck", fsck)
    await jobs.fsck()
    assert (await jobs.audit_log()).entries == []
    await jobs.fsck(repair=True, who="ada")
    (entry,) = (await jobs.audit_log()).entries
    assert (entry.what, entry.who, entry.count, entry.note) == ("repair", "ada", 3, "x: 3")
