"""The workers: what each says about itself, what it runs, and the order to stop."""

from __future__ import annotations

import pytest
from msgspec import structs

from jobmill import Access, Client, Dashboard
from jobmill.core.announcing import WorkerCard
from jobmill.core.values import Claim
from jobmill.stores.memory import MemoryStore
from jobmill.testing import ManualClock
from tests.dashboard.visitor import Visitor

EVIL = "<script>alert(1)</script>"


def _card(clock: ManualClock, **changed: object) -> WorkerCard:
    card = WorkerCard(
        id="w1",
        name="worker-1",
        host="web-a",
        pid=4121,
        version="0.9.0",
        python="3.13.1",
        started_ms=clock() - 3_600_000,
        queues=("mail", "default"),
        names=("send",),
        concurrency=4,
        running=2,
        loops={"exchange": 20},
        announcement=1,
    )
    return structs.replace(card, **changed)


async def _run_jobs(jobs: Client, worker: str, *names: str) -> None:
    for name in names:
        await jobs.enqueue(name, queue="mail")
    claim = Claim(
        queues=("mail",), names=dict.fromkeys(names, 9), n=9, lease_ms=15_000, worker=worker, token=f"t-{worker}"
    )
    await jobs.store.exchange([], claim)


async def test_no_worker_says_what_to_do(visitor: Visitor) -> None:
    words = (await visitor.get("/workers")).words
    assert "No worker is connected Jobs wait until one starts. jobmill worker app:jobs" in words


async def test_a_worker_shows_all_that_it_says_about_itself(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    await jobs.store.announce(_card(clock), [])
    words = (await visitor.get("/workers")).words
    assert "worker-1 web-a · pid 4121" in words
    assert "0.9.0 Python 3.13.1 1 h 00 min mail, default 2 of 4" in words
    assert "Stop gracefully…" in words
    assert "id w1 exchange: last iteration 20 ms before the last announcement" in words
    assert "versions of Jobmill" not in words
    row = (await visitor.json("/workers"))["workers"][0]
    assert (row["id"], row["concurrency"], row["loops"], row["warnings"]) == ("w1", 4, {"exchange": 20}, [])


async def test_what_is_wrong_with_workers_is_said(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    await jobs.store.announce(_card(clock, clock_skew_ms=1_840, loops={"exchange": 45_000, "heartbeat": 29_000}), [])
    await jobs.store.announce(_card(clock, id="w2", name="b", version="0.8.0", clock_skew_ms=-2_000), [])
    await jobs.store.announce(_card(clock, id="w3", name="c", stopping=True, running=1), [])
    clock.advance(16)
    words = (await visitor.get("/workers")).words
    assert "Two versions of Jobmill are running: 0.9.0 on 2 workers, 0.8.0 on 1." in words
    assert "Its clock is 1.8 s ahead of the store" in words
    assert "Its clock is 2.0 s behind the store" in words
    assert "Its exchange loop has been stuck for 45 s" in words
    assert "heartbeat loop has been stuck" not in words
    assert "It has not announced itself for 16 s" in words
    assert "Stopping: 1 job left" in words


async def test_the_jobs_that_a_worker_runs(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    await jobs.store.announce(_card(clock), [])
    await _run_jobs(jobs, "worker-1", "send")
    clock.advance(5)
    await _run_jobs(jobs, "other", "charge")
    data = await visitor.json("/workers")
    assert [(job["name"], job["worker"]) for job in data["running"]] == [("send", "worker-1"), ("charge", "other")]
    assert (data["running_count"], data["exact"]) == (2, True)
    data = await visitor.json("/workers?worker=other")
    assert [job["name"] for job in data["running"]] == ["charge"]
    words = (await visitor.get("/workers?worker=worker-1")).words
    assert "1 running on worker-1." in words
    assert "charge" not in words
    assert "No job is running." in (await visitor.get("/workers?worker=nobody")).words


async def test_workers_of_another_system_show_what_is_known(
    jobs: Client, visitor: Visitor, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = WorkerCard(
        id="bullmq 10.0.0.1:5 7",
        name="",
        host="10.0.0.1",
        pid=0,
        version="",
        python="",
        started_ms=clock() - 1_000,
        queues=("mail",),
        names=(),
        concurrency=0,
        seen_ms=clock(),
        system="bullmq",
    )

    async def listed(store: MemoryStore) -> list[WorkerCard]:
        return [node]

    monkeypatch.setattr(MemoryStore, "workers", listed)
    words = (await visitor.get("/workers")).words
    assert "bullmq 10.0.0.1:5 7 10.0.0.1 · BullMQ – 1.0 s mail – –" in words
    assert "Stop gracefully…" not in words
    assert (await visitor.get("/ask/worker_stop?id=bullmq+10.0.0.1:5+7")).status == 400


async def test_a_worker_is_asked_about_and_then_ordered_to_stop(
    jobs: Client, visitor: Visitor, clock: ManualClock
) -> None:
    await jobs.store.announce(_card(clock), [])
    asked = await visitor.get("/ask/worker_stop?id=w1&back=/workers")
    assert "Stop worker-1 gracefully?" in asked.words
    assert "It has 2 running jobs" in asked.words
    assert 'id="form"' in asked.text
    page = await visitor.act("worker_stop", id="w1", back="/workers")
    assert "The worker was ordered to stop." in page.words
    assert (await jobs.store.announce(_card(clock, announcement=2), [])).stop
    entry = (await jobs.audit_log()).entries[0]
    assert (entry.what, entry.who, entry.ids) == ("stop_workers", "dashboard", ("w1",))


async def test_a_worker_that_is_gone(visitor: Visitor, jobs: Client) -> None:
    page = await visitor.act("worker_stop", id="w9", back="/workers")
    assert "There is no such worker." in page.words
    assert (await visitor.get("/ask/worker_stop?id=w9")).status == 400
    assert (await visitor.get("/ask/worker_stop")).status == 400
    assert (await jobs.audit_log()).entries == []


async def test_only_those_who_may_stop_a_worker(jobs: Client, clock: ManualClock) -> None:
    await jobs.store.announce(_card(clock), [])
    reader = Visitor(Dashboard(jobs, authorize=lambda request: Access.READ))
    page = await reader.get("/workers")
    assert page.status == 200
    assert "Stop gracefully" not in page.words
    assert (await reader.get("/ask/worker_stop?id=w1")).status == 403
    assert (await reader.act("worker_stop", id="w1")).status == 403
    assert not (await jobs.store.announce(_card(clock, announcement=2), [])).stop
    of_tenant = Visitor(Dashboard(jobs, authorize=lambda request: Access({"worker_stop"}, tenants={"acme"})))
    assert (await of_tenant.get("/workers")).status == 403
    assert (await of_tenant.get("/ask/worker_stop?id=w1")).status == 403
    assert (await of_tenant.act("worker_stop", id="w1")).status == 403
    assert not (await jobs.store.announce(_card(clock, announcement=3), [])).stop


async def test_names_are_text(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    await jobs.store.announce(_card(clock, id=EVIL, name=EVIL, host=EVIL, loops={EVIL: 99_000}), [])
    await _run_jobs(jobs, EVIL, "send")
    for path in ("/workers", "/workers?worker=%3Cscript%3Ealert(1)%3C/script%3E"):
        page = await visitor.get(path)
        assert EVIL not in page.text
        assert EVIL in page.words
    assert EVIL not in (await visitor.get("/ask/worker_stop?id=%3Cscript%3Ealert(1)%3C/script%3E")).text
