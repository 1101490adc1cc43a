"""The system page: findings by level, and facts without secrets."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import jobmill
from jobmill import Access, Client, Dashboard, Finding
from jobmill.core.findings import StoreFacts, reachable
from jobmill.core.values import Depth
from jobmill.dashboard.shown import size
from jobmill.stores.memory import MemoryStore
from jobmill.testing import ManualClock
from tests.dashboard.visitor import Answer, Visitor

EVIL = "<script>alert(1)</script>"


def _finds(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> list[int]:
    """The store finds this; the list has one entry per look."""
    looks: list[int] = []

    async def diagnose(store: MemoryStore) -> list[Finding]:
        looks.append(1)
        return list(findings)

    monkeypatch.setattr(MemoryStore, "diagnose", diagnose)
    return looks


async def _checked(visitor: Visitor) -> Answer:
    """The page with the results: a page that comes first may not have them yet."""
    await visitor.json("/system")
    return await visitor.get("/system")


async def test_an_empty_store_is_fine() -> None:
    async with jobmill.connect(store=MemoryStore()) as real:  # its clock is that of the machine
        words = (await _checked(Visitor(Dashboard(real)))).words
    assert "0 problems, 0 warnings, 13 fine · checked" in words
    assert "Nothing is wrong." in words
    assert "The memory of this process answers in 0.0 ms" in words
    assert "Kind memory of this process Answers in 0.0 ms Live jobs 0 Final jobs 0 Clock of this machine" in words
    assert "Schema" not in words
    assert "Mounted at /" in words


async def test_the_facts_of_the_store(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = StoreFacts(product="PostgreSQL", version="17.2", response_ms=1.44, size_bytes=4_812_345_678, schema=7)
    _finds(monkeypatch, reachable(facts))
    assert (await visitor.json("/system"))["store"]["facts"] == msgspec.to_builtins(facts)
    words = (await visitor.get("/system")).words
    assert "Kind PostgreSQL 17.2 Answers in 1.4 ms Size 4.8 GB Live jobs 0 Final jobs 0 Schema 7, current" in words
    assert "PostgreSQL 17.2 answers in 1.4 ms, and its schema is current (version 7)" in words


async def test_counts_that_were_cut_off_say_so(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    async def depths(store: MemoryStore, queues: Any = None, limit: int = 0) -> list[Depth]:
        return [Depth(queue="mail", due=10_000, running=2, failed=7, exact=False), Depth(queue="b", later=1, held=1)]

    monkeypatch.setattr(MemoryStore, "depths", depths)
    words = (await _checked(visitor)).words
    assert "Live jobs 10,004+ Final jobs 7+" in words
    assert "The store has more than 10,011 jobs" in words


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (999_960, "1.0 MB"), (2**50, "1125.9 TB")]
)
def test_sizes(number: int, text: str) -> None:
    assert size(number) == text


async def test_problems_come_with_their_evidence_and_remedy(
    jobs: Client, visitor: Visitor, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = (await jobs.enqueue("report", every="1h", key="hourly")).id
    await jobs.enqueue("send", queue="mail")
    _finds(monkeypatch, Finding(check="free_disk", text="1 GB is free", evidence={"free": 2**60}))
    clock.advance(120)
    page = await _checked(visitor)
    assert "problem No worker claims from: default, mail Start a worker with --queue default" in page.words
    assert "problem 1 recurring jobs are late" in page.words
    assert f'href="/jobs/{id}"' in page.text
    assert "warning The clock of this machine differs" in page.words
    data = await visitor.json("/system")
    assert [one["check"] for one in data["errors"]] == ["no_worker", "late_recurrences"]
    assert data["errors"][0]["evidence"] == {"queues": ["default", "mail"]}
    assert data["fine"][-1]["evidence"] == {"free": str(2**60)}
    assert data["store"]["address"] == "this process"


async def test_checks_are_shared_and_their_age_is_said(jobs: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = _finds(monkeypatch)
    dashboard, now = Dashboard(jobs), [100.0]
    dashboard.reads._clock = lambda: now[0]
    visitor = Visitor(dashboard)
    assert (await visitor.json("/system"))["checked_ms_ago"] == 0
    now[0] += 12
    assert (await visitor.json("/system"))["checked_ms_ago"] == 12_000
    assert len(looks) == 1
    now[0] += 19
    assert (await visitor.json("/system"))["checked_ms_ago"] == 0
    assert len(looks) == 2


async def test_a_page_does_not_wait_for_slow_checks(jobs: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    dashboard, now, may_end = Dashboard(jobs), [100.0], asyncio.Event()
    dashboard.reads._clock = lambda: now[0]

    async def diagnose(store: MemoryStore) -> list[Finding]:
        await may_end.wait()
        return [Finding(check="slow", level="error", text=f"found at {now[0]}")]

    monkeypatch.setattr(MemoryStore, "diagnose", diagnose)
    visitor = Visitor(dashboard)
    first = await visitor.get("/system")
    assert "The checks are running." in first.words
    assert "Nothing is wrong." not in first.words
    assert "every 500ms" in first.text
    asked = asyncio.create_task(visitor.json("/system"))  # a program gets the results, however long they take
    await visitor.get("/system")
    assert not asked.done()
    may_end.set()
    assert (await asked)["is_checking"] is False
    second = await visitor.get("/system")
    assert "problem Found at 100.0" in second.words
    assert "every 500ms" not in second.text

    may_end.clear()
    now[0] += 60
    third = await visitor.get("/system")
    assert "Found at 100.0" in third.words
    assert "checked 1 min 00 s ago, checking again now" in third.words
    may_end.set()
    await visitor.json("/system")
    assert "Found at 160.0" in (await visitor.get("/system")).words


@pytest.mark.parametrize("evidence", [{"ids": EVIL}, {"ids": [EVIL, 7]}, {EVIL: [EVIL]}, {"ids": None}])
async def test_odd_evidence_is_text(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch, evidence: dict[str, Any]
) -> None:
    _finds(monkeypatch, Finding(check="odd", level="error", text=EVIL, evidence=evidence, remedy=EVIL))
    page = await _checked(visitor)
    assert (page.status, EVIL in page.text) == (200, False)
    assert EVIL in page.words


async def test_only_those_who_see_all_tenants(jobs: Client) -> None:
    of_tenant = Visitor(Dashboard(jobs, authorize=lambda request: Access(tenants={"acme"})))
    assert (await of_tenant.get("/system")).status == 403
    assert (await Visitor(Dashboard(jobs, authorize=lambda request: Access.READ)).get("/system")).status == 200
