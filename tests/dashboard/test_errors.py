"""Groups of errors: what is counted, since when, and the links to their jobs."""

from __future__ import annotations

from html import unescape
from urllib.parse import parse_qs, urlsplit

import pytest

from jobmill import Access, Client, Context, Dashboard
from jobmill.core.announcing import WorkerCard
from jobmill.core.durations import to_datetime
from jobmill.core.tallies import ErrorGroup, Tally
from jobmill.dashboard import charts
from jobmill.testing import ManualClock
from tests.dashboard.visitor import Visitor

EVIL = "<script>alert(1)</script>"
MINUTE_MS, HOUR_MS = 60_000, 3_600_000


async def _count(jobs: Client, clock: ManualClock, name: str, *errors: tuple[str, int]) -> None:
    """A worker has counted these errors of a handler in this minute."""
    groups = tuple(
        ErrorGroup(
            fingerprint=f"{name}{kind}", error_type=kind, location="a.py:1", count=n, last_job_id="j1", last_ms=clock()
        )
        for kind, n in errors
    )
    minute = clock() - clock() % MINUTE_MS
    tally = Tally(start_ms=minute, queue="mail", name=name, errored=sum(n for _, n in errors), error_groups=groups)
    card = WorkerCard(
        id=jobs.store.new_id(),
        name="w",
        host="h",
        pid=1,
        version="1",
        python="3",
        started_ms=0,
        queues=(),
        names=(),
        concurrency=1,
        announcement=1,
    )
    await jobs.store.announce(card, [tally])


@pytest.mark.parametrize(("range", "words"), [("1h", "hour"), ("8h", "8 hours"), ("24h", "24 hours"), ("7d", "7 days")])
async def test_no_errors(visitor: Visitor, range: str, words: str) -> None:
    page = await visitor.get(f"/errors?range={range}")
    assert f"No errors in the last {words} Attempts that raise an error appear here, grouped by cause." in page.words


async def test_errors_of_handlers_are_grouped(jobs: Client, visitor: Visitor) -> None:
    @jobs.handler(max_attempts=1)
    async def send(to: str) -> None:
        raise ConnectionError("refused") if to != "x" else ValueError("x")

    ids = [(await jobs.enqueue("send", {"to": to})).id for to in ("a", "b", "x")]
    while (await jobs.tick()).claimed:
        pass
    data = await visitor.json("/errors?range=1h")
    assert [(one["error_type"], one["count"], one["names"]) for one in data["groups"]] == [
        ("ConnectionError", 2, ["send"]),
        ("ValueError", 1, ["send"]),
    ]
    assert (data["error_count"], data["group_count"], data["exact"]) == (3, 2, True)
    assert data["groups"][1]["last_job_id"] == ids[2]
    page = await visitor.get("/errors?range=1h")
    assert "ConnectionError refused send · test_errors.py:" in page.words
    assert "2 67%" in page.words
    assert "2 groups, 3 attempts raised an error." in page.words
    assert 'href="/jobs?q=error%3AConnectionError+name%3Asend&amp;state=failed"' in page.text
    assert f'href="/jobs/{ids[2]}"' in page.text
    ask = next(part for part in page.text.split('href="') if part.startswith("/ask/jobs"))
    query = parse_qs(urlsplit(unescape(ask.partition('"')[0])).query)
    assert query == {
        "act": ["requeue"],
        "q": ["error:ConnectionError name:send"],
        "state": ["failed"],
        "all": ["1"],
        "back": ["/errors?range=1h"],
    }


async def test_a_group_shows_the_message_of_its_own_error(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    """One job is in several groups: an error of another class, and one of the same class in another line."""

    @jobs.handler(max_attempts=4, backoff="1s")
    async def send(context: Context) -> None:
        attempt = context.job.attempt
        if attempt == 1:
            raise OSError("first\nmore of it")
        if attempt == 2:
            raise OSError("second " + EVIL)
        raise ValueError if attempt == 3 else KeyError("last")

    id = (await jobs.enqueue("send")).id
    for _ in range(4):
        await jobs.tick()
        clock.advance(1)
    data = await visitor.json("/errors?range=1h")
    said = {(one["error_type"], one["message"]) for one in data["groups"]}
    assert said == {("OSError", "first"), ("OSError", "second " + EVIL), ("ValueError", None), ("KeyError", "'last'")}
    assert EVIL not in (await visitor.get("/errors?range=1h")).text
    blind = Visitor(Dashboard(jobs, authorize=lambda _: Access({"requeue"})))
    assert {one["message"] for one in (await blind.json("/errors?range=1h"))["groups"]} == {None}
    await jobs.remove(id)
    visitor.app.reads.forget()
    assert {one["message"] for one in (await visitor.json("/errors?range=1h"))["groups"]} == {None}


async def test_a_range_has_what_happened_in_it(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    before = 100
    for kind, hours_before in (("Old", 100), ("Day", 10), ("Morning", 2), ("New", 0)):
        clock.advance((before - hours_before) * 3_600)
        before = hours_before
        await _count(jobs, clock, "send", (kind, 1))
    found = {
        range: sorted(one["error_type"] for one in (await visitor.json(f"/errors?range={range}"))["groups"])
        for range in ("1h", "8h", "24h", "7d")
    }
    assert found == {
        "1h": ["New"],
        "8h": ["Morning", "New"],
        "24h": ["Day", "Morning", "New"],
        "7d": ["Day", "Morning", "New", "Old"],
    }
    groups = (await visitor.json("/errors"))["groups"]
    assert (await visitor.json("/errors"))["range"] == "24h"
    new = next(one for one in groups if one["error_type"] == "New")
    assert (new["history"][-1], sum(new["history"])) == (1, 1)
    assert new["first_ms"] == new["first_until_ms"] == clock()  # a single one


async def test_the_first_time_is_no_more_exact_than_it_is_known(
    jobs: Client, visitor: Visitor, clock: ManualClock
) -> None:
    clock.advance((HOUR_MS - clock() % HOUR_MS) / 1000 + 17 * 60 + 5)  # 5 seconds into minute 17 of an hour
    begin = clock() - clock() % HOUR_MS
    await _count(jobs, clock, "send", ("Often", 2))
    await _count(jobs, clock, "send", ("Once", 1))
    clock.advance(60)
    await _count(jobs, clock, "send", ("Often", 1))

    async def first(kind: str, range: str) -> tuple[int, int]:
        visitor.app.reads.forget()
        (one,) = [one for one in (await visitor.json(f"/errors?range={range}"))["groups"] if one["error_type"] == kind]
        return one["first_ms"] - begin, one["first_until_ms"] - begin

    minute = (17 * MINUTE_MS, 18 * MINUTE_MS)
    assert await first("Often", "1h") == minute
    assert await first("Often", "24h") == minute  # the minutes of the last hour are known
    clock.advance(7_200)
    assert await first("Once", "24h") == (17 * MINUTE_MS + 5_000,) * 2
    assert await first("Often", "8h") == (10 * MINUTE_MS, 19 * MINUTE_MS)  # the last one was in minute 18
    await _count(jobs, clock, "send", ("Often", 1))
    assert await first("Often", "8h") == (10 * MINUTE_MS, 20 * MINUTE_MS)
    assert await first("Often", "24h") == (0, HOUR_MS)
    page = await visitor.get("/errors?range=24h")
    assert f"before {to_datetime(begin + HOUR_MS):%H:%M} 0 ms ago" in page.words


@pytest.mark.parametrize("query", ["range=2h", "page=0", "page=x", "page=-1", f"page={'9' * 30}", "page=²"])
async def test_what_cannot_be_read_is_said(visitor: Visitor, query: str) -> None:
    assert (await visitor.get(f"/errors?{query}")).status == 400


async def test_what_is_new_since_the_last_mark(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    await _count(jobs, clock, "send", ("Old", 1))
    clock.advance(300)
    await jobs.mark("v1.4.1")
    clock.advance(300)
    await _count(jobs, clock, "send", ("Between", 1))
    clock.advance(300)
    await jobs.mark("v1.4.2")
    clock.advance(300)
    await _count(jobs, clock, "send", ("Old", 1), ("Fresh", 1))
    for range in ("1h", "8h", "24h"):
        groups = (await visitor.json(f"/errors?range={range}"))["groups"]
        assert {one["error_type"] for one in groups if one["is_new"]} == {"Fresh"}
    page = await visitor.get("/errors")
    assert "New since v1.4.2" in page.words
    assert "New since v1.4.1" not in page.words
    clock.advance(7_200)
    await _count(jobs, clock, "send", ("Later", 1))
    # The mark is not in this range: what was there before it is not known.
    assert not any(one["is_new"] for one in (await visitor.json("/errors?range=1h"))["groups"])


async def test_groups_that_were_left_out_make_counts_inexact(
    jobs: Client, visitor: Visitor, clock: ManualClock
) -> None:
    await _count(jobs, clock, "send", *((f"E{n}", 1) for n in range(20)))
    assert "20+ groups, 20+ attempts raised an error." in (await visitor.get("/errors")).words


async def test_many_groups_are_paged(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    for number in range(60):
        await _count(jobs, clock, f"h{number:02}", ("E", 100 - number))
    first, second = await visitor.json("/errors"), await visitor.json("/errors?page=2")
    names = [one["names"][0] for page in (first, second) for one in page["groups"]]
    assert names == [f"h{number:02}" for number in range(60)]
    assert "Next page" in (await visitor.get("/errors")).words
    page = await visitor.get("/errors?page=2")
    assert "First page" in page.words
    assert "Next page" not in page.words
    assert (await visitor.json("/errors?page=3"))["groups"] == []


async def test_searches_are_quoted_and_leave_out_what_no_job_has(
    jobs: Client, visitor: Visitor, clock: ManualClock
) -> None:
    await _count(jobs, clock, "send", ("My Error's", 2), ("error", 1))
    assert [one["q"] for one in (await visitor.json("/errors"))["groups"]] == [
        "error:'My Error'\"'\"'s' name:send",
        "name:send",
    ]


async def test_permissions_and_tenants(jobs: Client, clock: ManualClock) -> None:
    await _count(jobs, clock, "send", ("E", 1))
    reader = Visitor(Dashboard(jobs, authorize=lambda request: Access.READ))
    assert "Requeue all" not in (await reader.get("/errors")).words
    of_tenant = Visitor(Dashboard(jobs, authorize=lambda request: Access(tenants={"acme"})))
    assert (await of_tenant.get("/errors")).status == 403


async def test_texts_are_no_html(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    await _count(jobs, clock, EVIL, (EVIL, 1))
    clock.advance(60)
    await jobs.mark(EVIL)
    await _count(jobs, clock, EVIL, (f"{EVIL}2", 1))
    page = await visitor.get("/errors")
    assert EVIL not in page.text
    assert f"New since {EVIL}" in page.words


def test_bars_show_each_value_and_nothing_else() -> None:
    assert charts.bars([0, 0]).count("<rect") == 0
    assert charts.bars([]).count("<rect") == 0
    drawn = charts.bars([1_000_000, 0, 1])
    assert drawn.count("<rect") == 2
    assert 'height="1.5"' in drawn
    assert "style" not in drawn
