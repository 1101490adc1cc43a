"""The list of jobs: search, tabs, rows, paging, the bar for many jobs, and the same as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from html import unescape
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from msgspec import structs

import jobmill
from jobmill import Client, Dashboard
from jobmill.core.announcing import WorkerCard
from jobmill.core.job import Progress
from jobmill.core.values import DEPTH_LIMIT, Claim, CountUpTo, Filter, Page, Report
from jobmill.dashboard import Access
from jobmill.stores.memory import MemoryStore
from jobmill.testing import ManualClock
from tests.dashboard.visitor import Answer, Visitor


class CountedStore:
    """A store that notes which of its verbs are called."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if not callable(value) or name in ("now", "new_id", "open"):
            return value

        def counted(*args: Any, **options: Any) -> Any:
            self.calls.append(name)
            return value(*args, **options)

        return counted


@pytest.fixture
async def counted(clock: ManualClock) -> AsyncIterator[Client]:
    store: Any = CountedStore(MemoryStore(clock=clock))
    async with jobmill.connect(store=store) as client:
        yield client


def calls_of(jobs: Client) -> list[str]:
    store: Any = jobs.store
    made: list[str] = store.calls[:]
    store.calls.clear()
    return made


def link(page: Answer, text: str) -> str:
    """Where the link with this text or label leads to."""
    found = re.search(rf'<a [^>]*href="([^"]*)"[^>]*(?:>{text}<|aria-label="{text}")', page.text)
    assert found is not None, page.words
    return unescape(found[1])


def fields(page: Answer) -> dict[str, list[str]]:
    """All fields of the form for many jobs, ticked or not."""
    found: dict[str, list[str]] = {}
    form = page.text[page.text.index('id="bulk"') :].partition("</form>")[0]
    boxes = re.findall(r'<input type="checkbox"[^>]*form="bulk"[^>]*>', page.text)
    for tag in (*boxes, *re.findall(r"<(?:input|button)[^>]*>", form)):
        name, value = re.search(r'name="([^"]*)"', tag), re.search(r'value="([^"]*)"', tag)
        if name and value:
            found.setdefault(name[1], []).append(unescape(value[1]))
    return found


async def many(jobs: Client, count: int, payload: dict[str, Any]) -> None:
    await jobs.enqueue_many(jobs.draft("send", payload, queue="mail") for _ in range(count))


async def names(visitor: Visitor, query: str) -> list[str]:
    return [job["name"] for job in (await visitor.json(f"/jobs?{query}"))["jobs"]]


async def seed(jobs: Client, clock: ManualClock) -> dict[str, str]:
    """One job of each kind; the ids by kind."""

    @jobs.handler(queue="mail", max_attempts=2, backoff="30s")
    async def send(to: str) -> str:
        if to == "nobody":
            raise ConnectionError("mail relay <b>refused</b> it")
        return f"sent to {to}"

    ids = {
        "succeeded": (await jobs.enqueue("send", {"to": "ada"}, tenant="acme")).id,
        "failed": (await jobs.enqueue("send", {"to": "nobody"}, max_attempts=1)).id,
        "retrying": (await jobs.enqueue("send", {"to": "nobody"})).id,
    }
    await jobs.tick()
    clock.advance(5)
    ids["due"] = (await jobs.enqueue("charge", {"order_id": 7}, queue="payments", unique_key="order-7")).id
    ids["later"] = (await jobs.enqueue("remind", queue="payments", delay="2h")).id
    ids["held"] = (await jobs.enqueue("publish", queue="shop")).id
    await jobs.hold(ids["held"], who="ada", note="not before noon")
    ids["cancelled"] = (await jobs.enqueue("chunk", queue="shop")).id
    await jobs.cancel(ids["cancelled"])
    return ids


async def test_each_job_says_its_state_and_why(jobs: Client, clock: ManualClock, visitor: Visitor) -> None:
    ids = await seed(jobs, clock)
    page = await visitor.get("/jobs")
    assert page.status == 200
    rows = {row["id"]: row for row in (await visitor.json("/jobs"))["rows"]}
    lines = {kind: (rows[id]["shape"], rows[id]["why"]) for kind, id in ids.items()}
    assert lines == {
        "succeeded": ("succeeded", '"sent to ada"'),
        "failed": ("failed", "ConnectionError: mail relay <b>refused</b> it"),
        "retrying": ("retrying", "ConnectionError: mail relay <b>refused</b> it. Tries again in 25 s."),
        "due": ("due", "No worker claims queue payments"),
        "later": ("later", "Due in 2 h 00 min"),
        "held": ("held", "Held by ada: not before noon"),
        "cancelled": ("cancelled", "Cancelled before it ran"),
    }
    for shape, why in lines.values():
        assert why in page.words
        assert f'<span class="state {shape}">{shape}</span>' in page.text
    assert "<b>refused</b>" not in page.text
    assert (rows[ids["failed"]]["attempt"], rows[ids["retrying"]]["attempt"]) == ("1 of 1", "2 of 2")
    assert rows[ids["due"]]["attempt"] == "1"  # this process does not know its handler


async def test_a_due_job_says_whether_a_worker_can_claim_it(
    jobs: Client, clock: ManualClock, dashboard: Dashboard, visitor: Visitor
) -> None:
    await jobs.enqueue("charge", queue="payments")
    clock.advance(61)
    about = {"host": "h", "pid": 1, "version": "1", "python": "3", "started_ms": 1, "concurrency": 1}
    card = WorkerCard(id="1", name="w1", queues=("payments",), names=("refund",), **about)  # type: ignore[arg-type]
    for change, line in (
        ({"queues": ("mail",)}, "No worker claims queue payments"),
        ({"stopping": True}, "No worker claims queue payments"),
        ({}, "No worker of queue payments has a handler of this name"),
        ({"system": "bullmq", "names": ()}, "Due for 1 min 01 s"),
        ({"names": ("charge",)}, "Due for 1 min 01 s"),
    ):
        card = structs.replace(card, announcement=card.announcement + 1)
        await jobs.store.announce(structs.replace(card, **change), [])
        dashboard.reads.forget()
        assert f"charge {line}" in (await visitor.get("/jobs")).words
    # A visitor of some tenants is not shown anything about workers.
    await jobs.enqueue("charge", queue="lonely", tenant="acme")
    other = Visitor(Dashboard(jobs, authorize=lambda request: Access(tenants={"acme"})))
    assert (await other.json("/jobs"))["rows"][0]["why"] == "Due for 0 ms"


async def test_recurring_jobs_and_large_results(jobs: Client, visitor: Visitor) -> None:
    @jobs.handler
    async def large() -> str:
        return "x" * 30_000

    @jobs.handler
    async def long() -> str:
        return "a\n" * 400

    await jobs.enqueue("large")
    await jobs.enqueue("long")
    await jobs.tick()
    await jobs.enqueue("nightly", cron="0 8 * * *", key="nightly", timezone="Europe/Berlin")
    why = {row["name"]: row["why"] for row in (await visitor.json("/jobs"))["rows"]}
    assert why["large"] == "A result of 30,002 bytes"
    assert len(why["long"]) == 301
    assert why["nightly"] == "Recurring, 0 8 * * * (Europe/Berlin). 0 runs so far"
    assert await names(visitor, "q=recurring:yes") == ["nightly"]


async def test_a_running_job_shows_progress(jobs: Client, clock: ManualClock, visitor: Visitor) -> None:
    await jobs.enqueue("export")
    claim = Claim(queues=("default",), names={"export": 1}, n=1, lease_ms=600_000, worker="w1", token="t")
    claimed = (await jobs.store.exchange([], claim)).claimed[0]
    clock.advance(108)
    page = await visitor.get("/jobs?state=running")
    assert "running export Runs on worker w1" in page.words
    assert "1 of" not in page.words
    assert "1 min 48 s" in page.words
    await jobs.store.report([Report(lease=claimed.lease, progress=Progress(62.0, "412 of 664 lines"))])
    assert (await visitor.json("/jobs"))["rows"][0]["why"] == "62% done: 412 of 664 lines"


async def test_tabs_show_their_jobs(jobs: Client, clock: ManualClock, visitor: Visitor) -> None:
    ids = await seed(jobs, clock)
    for tab in ("due", "retrying", "held", "succeeded", "failed", "cancelled"):
        assert [job["id"] for job in (await visitor.json(f"/jobs?state={tab}"))["jobs"]] == [ids[tab]]
    later = {job["id"] for job in (await visitor.json("/jobs?state=later"))["jobs"]}
    assert later == {ids["later"], ids["retrying"]}
    page = await visitor.get("/jobs?state=failed")
    assert "All 7 Due 1 Later 2 Retrying Held 1 Running 0 Succeeded 1 Failed 1 Cancelled 1" in page.words
    page = await visitor.get("/jobs?state=retrying")
    assert "All 7 Due 1 Later 2 Retrying 1 Held 1 Running 0 Succeeded 1 Failed 1 Cancelled 1" in page.words
    page = await visitor.get("/jobs?state=failed")
    assert re.search(r'href="/jobs\?state=failed" aria-current="page"', page.text)
    page = await visitor.get("/jobs?q=queue:mail")
    assert "All 3 Due 0 Later 1 Retrying Held 0 Running 0 Succeeded 1 Failed 1 Cancelled 0" in page.words
    page = await visitor.get("/jobs?q=name:send&state=failed")
    assert "All Due Later Retrying Held Running Succeeded Failed 1 Cancelled" in page.words


async def test_filters_narrow_the_list(jobs: Client, clock: ManualClock, visitor: Visitor) -> None:
    await seed(jobs, clock)
    assert await names(visitor, "q=name:se*") == ["send", "send", "send"]
    assert await names(visitor, "q=payload.order_id:7") == ["charge"]
    assert await names(visitor, "q=payload.order_id:%227%22") == []
    assert await names(visitor, "q=unique:order-7") == ["charge"]
    assert await names(visitor, "q=tenant:acme") == ["send"]
    assert await names(visitor, "q=error:ConnectionError&state=failed") == ["send"]
    clock.advance(3_600)
    assert await names(visitor, "q=since:30m") == []
    assert len(await names(visitor, "q=since:2h")) == 7
    assert await names(visitor, "q=since:2h&state=cancelled") == ["chunk"]


async def test_a_chip_is_removed_by_a_link_and_a_word_added_by_the_form(jobs: Client, visitor: Visitor) -> None:
    await jobs.enqueue("send", queue="mail", payload={"to": 'Ada "L"'})
    q = 'queue:mail payload.to:"Ada \\"L\\"" since:1h'
    page = await visitor.get(f"/jobs?q={quote(q)}&state=due")
    assert page.status == 200
    assert 'payload.to:"Ada \\"L\\""' in page.words
    without = parse_qs(urlsplit(link(page, "Remove filter queue:mail")).query)
    assert without == {"q": ['payload.to:"Ada \\"L\\"" since:1h'], "state": ["due"]}
    assert (await visitor.get(link(page, "Remove filter queue:mail"))).status == 200
    last = await visitor.get("/jobs?q=queue:mail")
    assert link(last, "Remove filter queue:mail") == "/jobs"
    # The form has the chips in a hidden field.
    added = await visitor.get(f"/jobs?q={quote(q)}&state=due&add=queue:sms+name:x*")
    assert added.status == 303
    assert parse_qs(urlsplit(added.headers["location"]).query) == {
        "q": ['payload.to:"Ada \\"L\\"" since:1h queue:sms name:x*'],
        "state": ["due"],
    }
    assert (await visitor.get("/jobs?add=")).headers["location"] == "/jobs"
    assert (await visitor.get("/jobs?add=state:failed")).headers["location"] == "/jobs?state=failed"


async def test_a_lone_word_is_an_id_or_the_beginning_of_a_name(jobs: Client, visitor: Visitor) -> None:
    id = (await jobs.enqueue("send_email", tenant="acme")).id
    await jobs.enqueue("send_sms", id="my job")
    assert (await visitor.get(f"/jobs?q={id}")).headers["location"] == f"/jobs/{id}"
    assert (await visitor.get(f"/jobs?q=queue:x&add={id}")).headers["location"] == f"/jobs/{id}"
    assert (await visitor.get("/jobs?q=%22my+job%22")).headers["location"] == "/jobs/my%20job"
    assert (await visitor.get("/jobs?q=send")).headers["location"] == "/jobs?q=name%3Asend%2A"
    assert await names(visitor, "q=send_e") == ["send_email"]
    assert [job["id"] for job in (await visitor.json(f"/jobs?q={id}"))["jobs"]] == [id]
    # Nobody learns of jobs of other tenants.
    other = Visitor(Dashboard(jobs, authorize=lambda request: Access({"see_payload"}, tenants={"beta"})))
    assert (await other.get(f"/jobs?q={id}")).headers["location"].startswith("/jobs?q=name")
    assert (await other.json(f"/jobs?q={id}"))["jobs"] == []


async def test_a_search_that_cannot_be_read_stays_in_the_field(jobs: Client, visitor: Visitor) -> None:
    page = await visitor.get("/jobs?q=queue:mail&state=failed&add=queu:%3Cscript%3E")
    assert page.status == 400
    assert "Nothing was searched. Expected filters such as queue:" in page.words
    assert "No job matches" not in page.words
    assert 'value="queu:&lt;script&gt;"' in page.text
    assert "<script>" not in page.text.partition("</head>")[2]
    assert "Remove filter queue:mail" in page.text
    assert (await visitor.get("/jobs?q=queu:mail", accept="application/json")).status == 400
    assert (await visitor.get("/jobs?q=%22")).status == 400
    assert (await visitor.get("/jobs?state=done")).status == 400
    assert (await visitor.get("/jobs?cursor=%00")).status == 400


# ---------------------------------------------------------------------------------------------------- pages


async def test_pages_follow_each_other_in_both_directions(jobs: Client, visitor: Visitor) -> None:
    await many(jobs, 120, {})
    first = await visitor.get("/jobs?q=queue:mail&state=due")
    assert "50 of 120, in the order of claims." in first.words
    assert "Previous page" not in first.words
    second = await visitor.get(link(first, "Next page"))
    third = await visitor.get(link(second, "Next page"))
    assert "20 of 120" in third.words
    assert "Next page" not in third.words
    ids = [id for page in (first, second, third) for id in fields(page)["id"]]
    assert len(set(ids)) == 120
    back = await visitor.get(link(third, "Previous page"))
    assert fields(back)["id"] == fields(second)["id"]
    data = await visitor.json("/jobs")
    assert (len(data["jobs"]), data["total"], data["exact"], data["previous"]) == (50, 120, True, None)
    assert len((await visitor.json(f"/jobs?cursor={quote(data['next'])}"))["jobs"]) == 50


class Wide(MemoryStore):
    """As if there were more jobs than are counted, or searched."""

    async def find(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        return structs.replace(await super().find(filter, cursor, limit), partial=filter.payload is not None)

    async def count_up_to(self, filter: Filter, limit: int) -> CountUpTo:
        return CountUpTo(limit, exact=False)

    async def depths(self, queues: Any = None, limit: int = DEPTH_LIMIT) -> Any:
        return [structs.replace(one, due=limit, exact=False) for one in await super().depths(queues, limit)]


async def test_counts_that_were_cut_off_say_so(clock: ManualClock) -> None:
    async with jobmill.connect(store=Wide(clock=clock)) as jobs:
        await many(jobs, 51, {"to": "ada"})
        visitor = Visitor(Dashboard(jobs))
        page = await visitor.get("/jobs")
        assert "All 10,000+ Due 10,000+ Later 0" in page.words
        assert "50 of 10,000+. Counting stops at 10,000 in each queue and state." in page.words
        page = await visitor.get("/jobs?q=name:send&state=due")
        assert "Due 10,000+ Later Retrying Held" in page.words
        assert "Select all 10,000+ that match" in page.words
        page = await visitor.get("/jobs?q=payload.to:ada")
        assert "50 jobs. Only the newest 100,000 jobs were searched" in page.words
        assert "Select all that match" in page.words
        page = await visitor.get("/jobs?q=payload.to:bob")
        assert "No job matches these filters Searched the newest 100,000 jobs." in page.words


async def test_a_part_without_a_match_is_not_the_end(jobs: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def find(*args: Any, **options: Any) -> Page:
        return Page([], next="<1")

    monkeypatch.setattr(jobs.store, "find", find)
    page = await Visitor(Dashboard(jobs)).get("/jobs?q=payload.to:bob")
    assert "No match so far 10,000 jobs were searched, and there are more." in page.words
    assert "cursor=%3C1" in link(page, "Continue the search")


async def test_a_short_page_says_how_many_jobs_were_searched(jobs: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await many(jobs, 3, {"to": "ada"})
    found = await jobs.find()

    async def find(filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        return Page(found.jobs, next="<7", previous=None if cursor is None else ">4")

    monkeypatch.setattr(jobs.store, "find", find)
    visitor = Visitor(Dashboard(jobs))
    page = await visitor.get("/jobs?q=tenant:acme")
    assert "3 jobs. 10,000 jobs were searched, and there are more. Continue the search" in page.words
    assert "Select all 3+ that match" in page.words
    assert "cursor=%3C7" in link(page, "Continue the search")
    back = await visitor.get("/jobs?q=tenant:acme&cursor=%3E9")
    assert "3 jobs. 10,000 jobs were searched, and there are more." in back.words
    assert ("cursor=%3E4" in link(back, "Continue the search"), "cursor=%3C7" in link(back, "Next page")) == (
        True,
        True,
    )


async def test_a_count_that_has_not_searched_all_jobs_says_so(jobs: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await many(jobs, 60, {"to": "ada"})

    async def count_up_to(filter: Filter, limit: int) -> CountUpTo:
        return CountUpTo(55, exact=False)

    monkeypatch.setattr(jobs.store, "count_up_to", count_up_to)
    visitor = Visitor(Dashboard(jobs))
    page = await visitor.get("/jobs?q=name:send&state=due")
    assert "50 of 55+. 10,000 jobs were searched to count them, and there are more. Next page" in page.words
    ask = await visitor.get("/ask/jobs?act=hold&q=name:send&state=due&all=1")
    assert "10,000 jobs were searched to count them, and there are more." in ask.words
    assert "Hold 55+ jobs" in ask.words


async def test_what_to_do_when_there_is_nothing(jobs: Client, visitor: Visitor) -> None:
    assert "No jobs yet When you enqueue a first job" in (await visitor.get("/jobs")).words
    assert "No failed jobs Show all jobs" in (await visitor.get("/jobs?state=failed")).words
    assert "No job is due later" in (await visitor.get("/jobs?state=later")).words
    page = await visitor.get("/jobs?q=payload.n:7+error:Oops&state=failed")
    assert "put a text in quotation marks" in page.words
    assert "write the whole name of the class" in page.words
    assert link(page, "Clear filters") == "/jobs?state=failed"
    assert 'class="bulk"' not in page.text


@pytest.mark.parametrize(
    "query",
    [
        "",
        "state=due",
        "q=queue:mail&state=due",
        "q=name:send",
        "q=name:se*&state=due",
        "q=payload.to:ada",
        "q=since:1h+recurring:no",
        "q=send",
        "q=nobody",
    ],
)
async def test_a_page_is_at_most_five_calls(counted: Client, query: str) -> None:
    await many(counted, 120, {"to": "ada"})
    dashboard = Dashboard(counted)
    visitor = Visitor(dashboard)
    calls_of(counted)
    answer = await visitor.get(f"/jobs?{query}")
    made = calls_of(counted)
    assert 0 < len(made) <= 5, made
    if answer.status == 200:
        cursor = link(answer, "Next page")
        dashboard.reads.forget()
        await visitor.get(cursor)
        made = calls_of(counted)
        assert 0 < len(made) <= 5, made
    dashboard.reads.forget()
    await visitor.json(f"/jobs?{query}")
    assert 0 < len(calls_of(counted)) <= 5


async def test_a_list_without_filters_counts_by_depths_only(counted: Client) -> None:
    await many(counted, 120, {})
    calls_of(counted)
    await Visitor(Dashboard(counted)).get("/jobs?q=queue:mail&state=due")
    assert sorted(calls_of(counted)) == ["depths", "find", "workers"]


# ---------------------------------------------------------------------------------------------------- many jobs


async def test_the_form_for_many_jobs_has_what_the_next_page_needs(jobs: Client, visitor: Visitor) -> None:
    await many(jobs, 51, {"to": "a b"})
    page = await visitor.get("/jobs?q=queue:mail+payload.to:%22a+b%22&state=due")
    given = fields(page)
    assert len(given.pop("id")) == 50
    assert given == {
        "q": ['queue:mail payload.to:"a b"'],
        "state": ["due"],
        "back": ["/jobs?q=queue%3Amail+payload.to%3A%22a+b%22&state=due"],
        "all": ["1"],
        "act": ["cancel", "hold", "reschedule", "reprioritize", "remove"],
    }
    assert '<form class="inline" id="bulk" method="get" action="/ask/jobs"' in page.text
    # A button would leave "all that match" ticked, where a script unticks the rows.
    assert link(page, "Clear") == given["back"][0]
    # Without JavaScript the bar is there.
    assert re.search(r'<div class="bulk"(?! hidden)[^>]*>', page.text)
    assert len(re.findall(r'<tr id="job-', page.text)) == 50


@pytest.mark.parametrize(
    ("tab", "acts"),
    [
        ("all", ["requeue", "cancel", "hold", "release", "reschedule", "reprioritize", "remove"]),
        ("due", ["cancel", "hold", "reschedule", "reprioritize", "remove"]),
        ("later", ["cancel", "hold", "reschedule", "reprioritize", "remove"]),
        ("retrying", ["cancel", "hold", "reschedule", "reprioritize", "remove"]),
        ("held", ["cancel", "release", "reschedule", "reprioritize", "remove"]),
        ("running", ["cancel"]),
        ("succeeded", ["requeue", "remove"]),
        ("failed", ["requeue", "remove"]),
        ("cancelled", ["requeue", "remove"]),
    ],
)
async def test_only_acts_that_make_sense_and_are_allowed(
    jobs: Client, visitor: Visitor, tab: str, acts: list[str]
) -> None:
    assert (await visitor.json(f"/jobs?state={tab}"))["acts"] == acts
    some = Visitor(Dashboard(jobs, authorize=lambda request: Access({"requeue", "hold"})))
    assert (await some.json(f"/jobs?state={tab}"))["acts"] == [act for act in acts if act in ("requeue", "hold")]


async def test_who_may_do_nothing_has_no_boxes(jobs: Client) -> None:
    await jobs.enqueue("send")
    page = await Visitor(Dashboard(jobs, authorize=lambda request: Access.READ)).get("/jobs")
    assert page.status == 200
    assert 'type="checkbox" name="id"' not in page.text
    assert 'class="bulk"' not in page.text


# ---------------------------------------------------------------------------------------------------- rights


async def test_hidden_values_are_nowhere_and_cannot_be_searched(jobs: Client, clock: ManualClock) -> None:
    @jobs.handler(max_attempts=1)
    async def send(to: str) -> str:
        if to == "secret-1":
            raise ValueError("secret-2")
        return "secret-3"

    await jobs.enqueue("send", {"to": "secret-1"}, headers={"trace": "secret-4"})
    await jobs.enqueue("send", {"to": "ok"})
    await jobs.tick()
    visitor = Visitor(Dashboard(jobs, authorize=lambda request: Access({"requeue"})))
    page = await visitor.get("/jobs")
    data = await visitor.get("/jobs", accept="application/json")
    assert "•••• hidden" in page.words
    assert "secret" not in page.text + data.text
    assert [set(job["payload"]) for job in data.json["jobs"]] == [{"to"}, {"to"}]
    for query in ("q=payload.to:secret-1", "q=payload.to:x", "add=payload.to:null", "q=queue:x+payload.to:1"):
        for accept in ("text/html", "application/json"):
            assert (await visitor.get(f"/jobs?{query}", accept=accept)).status == 403
    assert "payload.order_id" not in page.text
    # The class of an error is shown to everybody, so it may be searched; the text of an error has no filter.
    assert await names(visitor, "q=error:ValueError") == ["send"]
    assert await names(visitor, "q=error:secret-2") == []


async def test_why_a_job_cannot_run_is_hidden_as_well(jobs: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await jobs.get((await jobs.enqueue("send")).id)

    async def find(*args: Any, **options: Any) -> Page:
        return Page([structs.replace(job, deferred_error="payload: secret")])

    monkeypatch.setattr(jobs.store, "find", find)
    hidden = Visitor(Dashboard(jobs, authorize=lambda request: Access({"requeue"})))
    assert "Will fail when it is claimed: payload: secret" in (await Visitor(Dashboard(jobs)).get("/jobs")).words
    assert "Will fail when it is claimed: •••• hidden" in (await hidden.get("/jobs")).words


async def test_fields_that_nobody_sees(jobs: Client) -> None:
    @jobs.handler
    async def log_in(password: str) -> dict[str, str]:
        return {"user": "ada", "password": password}

    await jobs.enqueue("log_in", {"password": "hunter2"})
    await jobs.tick()
    visitor = Visitor(Dashboard(jobs, redact=("password",)))
    page, data = await visitor.get("/jobs"), await visitor.get("/jobs", accept="application/json")
    assert "hunter2" not in page.text + data.text
    assert '{"user": "ada", "password": "•••• hidden"}' in page.words
    assert (await visitor.get("/jobs?q=payload.password:hunter2")).status == 403


async def test_a_visitor_of_some_tenants_sees_theirs_only(counted: Client) -> None:
    for tenant in ("acme", 'be"ta', "other"):
        await counted.enqueue(f"of_{tenant}".replace('"', ""), tenant=tenant)
    await counted.enqueue("of_nobody")
    access = Access({"see_payload", "cancel"}, tenants={"acme", 'be"ta'})
    visitor = Visitor(Dashboard(counted, authorize=lambda request: access))
    calls_of(counted)
    page = await visitor.get("/jobs")
    # Depths and workers are about all tenants.
    assert calls_of(counted) == ["find"]
    assert "of_acme" in page.words
    assert not any(name in page.words for name in ("of_beta", "of_other", "of_nobody"))
    assert 'Jobs of tenant acme . Others: be"ta' in page.words
    answer = await visitor.get(link(page, "be&#34;ta"))
    page = await visitor.get(answer.headers["location"])
    assert "of_beta" in page.words
    assert (await visitor.get("/jobs?q=tenant:other")).status == 403


async def test_json_has_the_whole_jobs(jobs: Client, visitor: Visitor) -> None:
    id = (await jobs.enqueue("send", {"to": "ada", "big": 2**60}, queue="mail")).id
    data = await visitor.json("/jobs?q=queue:mail")
    wanted = json.loads(json.dumps((await jobs.get(id)).to_dict()))
    assert data["jobs"] == [wanted | {"payload": {"to": "ada", "big": str(2**60)}}]
    assert (data["q"], data["chips"], data["state"]) == ("queue:mail", ["queue:mail"], "all")
    assert [tab["state"] for tab in data["tabs"]][:2] == ["all", "due"]


async def test_text_of_jobs_is_escaped(jobs: Client) -> None:
    bad = "<script>alert(1)</script>"
    await jobs.enqueue(bad, {"x": bad}, queue="mail", id=f"id{bad}", tenant=bad)
    visitor = Visitor(Dashboard(jobs))
    for query in ("", f"q={quote(f'tenant:{bad}')}", f"q={quote(f'name:{bad}')}"):
        page = await visitor.get(f"/jobs?{query}")
        assert page.status == 200
        assert bad in page.words
        assert "<script>alert" not in page.text


async def test_links_are_below_the_path_of_the_dashboard(jobs: Client) -> None:
    await jobs.enqueue("send", queue="mail")
    visitor = Visitor(Dashboard(jobs), base="/a/b")
    page = await visitor.get("/jobs?q=queue:mail")
    assert page.status == 200
    links = re.findall(r'(?:href|action|hx-get)="(/[^"]*)"', page.text)
    assert len(links) > 10
    assert all(one.startswith("/a/b/") for one in links)
    assert (await visitor.get("/jobs?add=queue:x")).headers["location"] == "/a/b/jobs?q=queue%3Ax"
