"""The overview: figures, the chart, what needs a person."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import jobmill
from jobmill import Access, Client, Dashboard
from jobmill.core.announcing import WorkerCard
from jobmill.core.tallies import BUCKETS, ErrorGroup, Tally
from jobmill.core.values import QueueChange
from jobmill.stores.memory import MemoryStore
from jobmill.testing import ManualClock
from tests.dashboard.visitor import Visitor

MINUTE = 60_000
HOUR = 60 * MINUTE


def card(name: str = "w1", *queues: str, **fields: Any) -> WorkerCard:
    given = {"concurrency": 4, "host": "h1", "announcement": 1, **fields}
    return WorkerCard(
        id=f"id-{name}",
        name=name,
        pid=7,
        version="1",
        python="3",
        started_ms=0,
        queues=queues or ("mail",),
        names=(),
        **given,
    )


def tally(start_ms: int, queue: str = "mail", name: str = "send", **fields: Any) -> Tally:
    return Tally(start_ms=start_ms - start_ms % MINUTE, queue=queue, name=name, **fields)


def group(count: int, last_ms: int, error_type: str = "app.ConnectionError") -> ErrorGroup:
    return ErrorGroup(
        fingerprint=error_type,
        error_type=error_type,
        location="m.py:1 in f",
        count=count,
        last_job_id="j1",
        last_ms=last_ms,
    )


async def titles(visitor: Visitor) -> list[tuple[str, str]]:
    return [(one["level"], one["title"]) for one in (await visitor.json("/"))["attention"]]


# ---------------------------------------------------------------------------------------------------- first run


async def test_an_empty_store_says_what_to_do(visitor: Visitor) -> None:
    page = await visitor.get("/")
    assert page.status == 200
    assert "Due now 0 nothing is due Oldest due – nothing is due Running 0 no worker is connected" in page.words
    assert "No jobs yet" in page.words
    assert "Throughput" not in page.words


async def test_the_code_of_the_empty_page_works(visitor: Visitor, tmp_path: Path) -> None:
    page = await visitor.get("/")
    code = re.search(r"<pre[^>]*>(.*?)</pre>", page.text, re.DOTALL)
    assert code is not None
    lines = unescape(re.sub(r"<[^>]+>", "", code[1])).splitlines()
    (tmp_path / "app.py").write_text("\n".join(line for line in lines if not line.startswith("$ ")))
    work, enqueue = (shlex.split(line)[1:] for line in lines if line.startswith("$ "))
    assert work[0] == enqueue[0] == "jobmill"
    worker = await started(tmp_path, *work[1:])
    try:
        client = await started(tmp_path, *enqueue[1:], "--wait")
        async with asyncio.timeout(30):
            said, _ = await client.communicate()
        assert client.returncode == 0
        assert b"hello world" in said
    finally:
        worker.terminate()
        await worker.wait()


async def started(folder: Path, *arguments: str) -> asyncio.subprocess.Process:
    environment = {name: value for name, value in os.environ.items() if name != "JOBMILL_URL"}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "jobmill", *arguments), cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE
    )


# ---------------------------------------------------------------------------------------------------- figures


async def test_figures_say_what_they_mean(jobs: Client, clock: ManualClock, visitor: Visitor) -> None:
    for _ in range(3):
        await jobs.enqueue("send", queue="mail")
    await jobs.enqueue("send", queue="other")
    clock.advance(5)
    waits = (0,) * 10 + (20,) + (0,) * (BUCKETS - 11)
    counted = tally(clock(), succeeded=96, failed=4, errored=4, wait_buckets=waits)
    await jobs.store.announce(card(), [counted])
    await jobs.store.announce(card("w2", stopping=True, concurrency=6), [])
    page = await visitor.get("/")
    assert "Due now 4 75% in queue mail" in page.words
    assert "Oldest due 5.0 s 95% waited less than 2.0 s, last hour" in page.words
    assert "Running 0 of 4 room for 4 more" in page.words
    assert "Failed, last hour 4 4% of 100 that finished" in page.words
    assert "Workers 2 1 is stopping" in page.words


async def test_counts_that_were_cut_off_end_with_a_plus(jobs: Client, visitor: Visitor) -> None:
    await jobs.enqueue_many(jobs.draft("send", queue="mail") for _ in range(10_001))
    page = await visitor.get("/")
    assert "Due now 10,000+ most in queue mail" in page.words


# ---------------------------------------------------------------------------------------------------- chart


@pytest.mark.parametrize(("name", "points"), [("1h", 60), ("8h", 48), ("3d", 72), ("30d", 120)])
async def test_a_chart_of_each_range(
    jobs: Client, clock: ManualClock, visitor: Visitor, name: str, points: int
) -> None:
    await jobs.enqueue("send", queue="mail")
    await jobs.store.announce(card(), [tally(clock(), succeeded=7, errored=1, crashed=1)])
    chart = (await visitor.json(f"/?range={name}"))["chart"]
    assert len(chart["points"]) == points
    last = chart["points"][-1]
    assert (last["succeeded"], last["errors"]) == (7, 2)
    assert sum(point["succeeded"] for point in chart["points"]) == 7
    assert last["start_ms"] <= clock() < last["start_ms"] + chart["step_ms"]
    page = await visitor.get(f"/?range={name}")
    assert f'aria-current="true">{name[:-1]} {name[-1]}</a>' in page.text
    assert page.text.count('class="hit"') == points


async def test_an_unknown_range_is_refused(visitor: Visitor) -> None:
    page = await visitor.get("/?range=" + quote("<script>"))
    assert page.status == 400
    assert "expected one of 1h, 8h, 3d, 30d" in page.words
    assert "<script>" not in page.text


async def test_marks_are_in_the_chart(jobs: Client, clock: ManualClock, visitor: Visitor) -> None:
    await jobs.enqueue("send", queue="mail")
    await jobs.mark("<b>v1.4.2")
    clock.advance(30)
    page = await visitor.get("/")
    assert 'class="mark"' in page.text
    assert "<b>v1.4.2" in page.words
    assert "<b>v1.4.2" not in page.text


# ---------------------------------------------------------------------------------------------------- attention


async def test_nothing_needs_attention(jobs: Client, visitor: Visitor) -> None:
    await jobs.enqueue("send", queue="mail")
    await jobs.store.announce(card(), [])
    page = await visitor.get("/")
    assert "Nothing needs attention Every queue with due jobs has a worker" in page.words
    await jobs.queue("invoices").pause()
    page = await visitor.act("resume", queue="other")
    assert "Apart from paused queues, every queue with due jobs has a worker" in (await visitor.get("/")).words


async def test_a_queue_that_no_worker_claims(jobs: Client, clock: ManualClock, visitor: Visitor) -> None:
    await jobs.enqueue("send", queue="mail")
    await jobs.store.announce(card("w1", "other"), [tally(clock(), claimed=2)])
    clock.advance(20 * 60)
    (one,) = [one for one in (await visitor.json("/"))["attention"] if one["kind"] == "no_worker"]
    assert one["title"] == "Queue mail: no worker claims it"
    assert one["text"].startswith("1 job is due, the oldest for 20 min 00 s. Workers of Jobmill last claimed one at ")
    assert [link["url"] for link in one["links"]] == ["/queues/mail", "/jobs?q=queue%3Amail&state=due", "/workers"]


async def test_errors_that_are_new_or_frequent(jobs: Client, clock: ManualClock, visitor: Visitor) -> None:
    clock.advance(60 * 60)
    now = clock()
    counts = [
        tally(now - 50 * MINUTE, errored=12, error_groups=(group(12, now - 50 * MINUTE),)),
        tally(now - 10 * MINUTE, errored=2, error_groups=(group(2, now - 9 * MINUTE, "app.NewError"),)),
        tally(now - 45 * MINUTE, errored=3, error_groups=(group(3, now - 45 * MINUTE, "app.RareError"),)),
    ]
    await jobs.store.announce(card(), counts)
    assert await titles(visitor) == [
        ("failed", "12 × ConnectionError in send"),
        ("caution", "2 × NewError in send"),
    ]
    words = (await visitor.get("/")).words
    assert "First seen in the last hour at" in words
    assert "Last seen 9 min 00 s ago." in words


async def test_a_new_error_after_a_mark_names_it(jobs: Client, clock: ManualClock, visitor: Visitor) -> None:
    await jobs.mark("v1.4.2")
    clock.advance(5 * 60)
    await jobs.store.announce(card(), [tally(clock(), errored=1, error_groups=(group(1, clock()),))])
    assert ", after v1.4.2. Last seen 0 ms ago." in (await visitor.json("/"))["attention"][0]["text"]


async def test_recurring_jobs_that_are_late(jobs: Client, clock: ManualClock, visitor: Visitor) -> None:
    await jobs.enqueue("report", queue="reports", every="1h", key="hourly")
    clock.advance(59)
    await jobs.store.announce(card("w1", "reports"), [])
    assert await titles(visitor) == []
    clock.advance(25 * 60)
    await jobs.store.announce(card("w1", "reports", announcement=2), [])
    visitor.app.reads.forget()
    # The queue has no entry of its own, because no other job in it is older.
    assert await titles(visitor) == [("caution", "Recurring report is 25 min 59 s late")]


async def test_a_queue_whose_jobs_wait_though_a_worker_claims_it(
    jobs: Client, clock: ManualClock, visitor: Visitor
) -> None:
    await jobs.enqueue("send", queue="mail")
    clock.advance(61)
    await jobs.store.announce(card(), [])
    assert await titles(visitor) == [("caution", "Queue mail: a job has waited for 1 min 01 s")]
    assert "1 worker claims from it, 0 of its jobs run." in (await visitor.get("/")).words


async def test_a_queue_paused_for_long_with_due_jobs(jobs: Client, clock: ManualClock, visitor: Visitor) -> None:
    await jobs.enqueue("send", queue="mail")
    await jobs.queue("mail").pause(who="ada", note="api down")
    clock.advance(60 * 60)
    assert await titles(visitor) == []
    clock.advance(60)
    visitor.app.reads.forget()
    (one,) = (await visitor.json("/"))["attention"]
    assert (one["level"], one["title"]) == ("caution", "Queue mail has been paused for 1 h 01 min")
    assert one["text"] == "1 job is due, the oldest for 1 h 01 min. Note: api down."


async def test_a_queue_at_its_limit_with_an_old_job(jobs: Client, clock: ManualClock, visitor: Visitor) -> None:
    @jobs.handler(queue="mail")
    async def send() -> None: ...

    await jobs.store.configure("mail", QueueChange(running_limit=1))
    await send.enqueue()
    claim = jobmill.core.values.Claim(queues=("mail",), names={"send": 1}, n=1, lease_ms=HOUR, worker="w1", token="t")
    await jobs.store.exchange([], claim)
    await send.enqueue()
    clock.advance(61)
    await jobs.store.announce(card(), [])
    assert await titles(visitor) == [("caution", "Queue mail is at its running limit")]


async def test_workers_that_stop_or_hang_and_crashes(jobs: Client, clock: ManualClock, visitor: Visitor) -> None:
    await jobs.store.announce(card("w1", stopping=True, running=2), [tally(clock(), crashed=3)])
    await jobs.store.announce(card("w2", loops={"exchange": 31_000, "heartbeat": 3}), [])
    assert await titles(visitor) == [
        ("failed", "Worker w2: a loop hangs"),
        ("caution", "Worker w1 is stopping"),
        ("caution", "3 runs of send crashed in the last hour"),
    ]
    words = (await visitor.get("/")).words
    assert "Without an iteration: exchange for 31 s. Process 7 on h1." in words
    assert "It claims no more jobs. It still runs 2 jobs." in words


async def test_at_most_eight_problems_are_shown_problems_first(jobs: Client, visitor: Visitor) -> None:
    for number in range(9):
        await jobs.enqueue("send", queue=f"q{number}")
    await jobs.store.announce(card("<b>w1", "other", stopping=True), [])
    page = await visitor.get("/")
    assert page.text.count('<span class="sr">problem</span>') == 8
    assert "warning" not in page.words
    assert "and 2 more" in page.words
    assert len((await visitor.json("/"))["attention"]) == 10


async def test_names_are_escaped(jobs: Client, visitor: Visitor) -> None:
    await jobs.enqueue("send", queue="<script>alert(1)</script>")
    page = await visitor.get("/")
    assert "Queue <script>alert(1)</script>: no worker claims it" in page.words
    assert "<script>alert" not in page.text


# ---------------------------------------------------------------------------------------------------- limits


class CountingStore(MemoryStore):
    """Counts the queries that reach it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in {"depths", "settings", "workers", "tallies", "find", "audit_log", "count", "get", "stats"}:
            super().__getattribute__("calls").append(name)
        return found


@pytest.fixture
async def counted(clock: ManualClock) -> AsyncIterator[Client]:
    async with jobmill.connect(store=CountingStore(clock=clock)) as client:
        for number in range(5):
            await client.enqueue("send", queue=f"q{number}")
        await client.enqueue("report", queue="mail", every="1h", key="hourly")
        await client.mark("v1")
        clock.advance(10 * 60)  # now jobs are late
        await client.store.announce(card(), [tally(clock(), succeeded=1)])
        yield client


@pytest.mark.parametrize("range", ["1h", "8h", "3d", "30d"])
@pytest.mark.parametrize("path", ["/", "/queues/mail"])
async def test_a_page_makes_at_most_five_queries(counted: Client, path: str, range: str) -> None:
    store = counted.store
    assert isinstance(store, CountingStore)
    store.calls.clear()
    page = await Visitor(Dashboard(counted)).get(f"{path}?range={range}")
    assert page.status == 200
    assert len(store.calls) <= 5, store.calls
    assert {"depths", "settings", "workers", "tallies"} <= set(store.calls)


async def test_live_updates_bring_marks_and_late_jobs_to_all_ranges(counted: Client) -> None:
    dashboard = Dashboard(counted)
    visitor = Visitor(dashboard)
    assert (await visitor.json("/?range=8h"))["chart"]["marks"] == []
    events = dashboard.live.stream()
    assert isinstance(events, AsyncGenerator)
    async with asyncio.timeout(20):
        while "slow" not in await anext(events):
            pass
    await events.aclose()
    await dashboard.close()
    data = await visitor.json("/?range=8h")
    assert [mark["text"] for mark in data["chart"]["marks"]] == ["v1"]
    assert "late" in [one["kind"] for one in data["attention"]]


async def test_the_overview_below_a_path(jobs: Client) -> None:
    await jobs.enqueue("send", queue="mail")
    for path in ("", "/"):
        page = await Visitor(Dashboard(jobs), base="/a/b").get(path)
        assert page.status == 200
        assert 'href="/a/b/queues/mail"' in page.text
        assert 'href="/a/b/?range=8h"' in page.text


async def test_visitors_with_some_tenants_begin_at_their_jobs(jobs: Client) -> None:
    visitor = Visitor(Dashboard(jobs, authorize=lambda request: Access(tenants=["acme"])))
    answer = await visitor.get("/")
    assert (answer.status, answer.headers["location"]) == (303, "/jobs")


async def test_the_title_of_the_window(jobs: Client) -> None:
    for title, shown in ((None, "Overview · Jobmill"), ("shop", "Overview · shop · Jobmill")):
        page = await Visitor(Dashboard(jobs, title=title)).get("/")
        assert f"<title>{shown}</title>" in page.text
