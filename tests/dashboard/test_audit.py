"""The audit log: who changed what, with filters and paging."""

from __future__ import annotations

import pytest

from jobmill import Access, Client, Dashboard
from jobmill.testing import ManualClock
from tests.dashboard.visitor import Visitor

EVIL = "<script>alert(1)</script>"


async def _acts(visitor: Visitor, path: str) -> list[str]:
    return [entry["what"] for entry in (await visitor.json(path))["entries"]]


async def test_an_empty_log_says_so(visitor: Visitor) -> None:
    assert "Nobody has changed anything yet" in (await visitor.get("/audit")).words


async def test_acts_say_who_what_which_and_how_many(jobs: Client, visitor: Visitor) -> None:
    ids = [(await jobs.enqueue("send", {"n": n}, queue="mail")).id for n in range(5)]
    await jobs.queue("invoices").pause(who="ada", note="tax service is down")
    await jobs.cancel(queue="mail", states="waiting", who="bo")
    await jobs.stop_workers("nobody")
    await jobs.mark("v1.4.2", who="release-bot")
    page = await visitor.get("/audit")
    assert "ada pause queue:invoices – tax service is down" in page.words
    assert "bo cancel queue:mail state:waiting" in page.words
    assert "and 2 more 5" in page.words
    assert f'href="/jobs/{ids[0]}"' in page.text
    assert f'href="/jobs/{ids[4]}"' not in page.text
    assert "release-bot mark – v1.4.2" in page.words
    assert len((await visitor.json("/audit"))["entries"][1]["ids"]) == 5


async def test_filters_are_in_the_url_or_in_the_text(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    await jobs.queue("old").pause(who="ada")
    clock.advance(7_200)
    id = (await jobs.enqueue("send", queue="mail")).id
    await jobs.queue("mail").pause(who="ada lovelace")
    await jobs.queue("mail").rate_limit(3, who="bo")
    await jobs.cancel(id, who="bo")
    assert await _acts(visitor, "/audit?who=bo") == ["cancel", "rate_limit"]
    assert await _acts(visitor, "/audit?q=who:bo+what:cancel") == ["cancel"]
    assert await _acts(visitor, "/audit?q=what:rate_limit") == ["rate_limit"]
    assert await _acts(visitor, "/audit?what=rate+limit") == ["rate_limit"]
    assert await _acts(visitor, "/audit?q=who:'ada+lovelace'") == ["pause"]
    assert await _acts(visitor, "/audit?queue=old") == ["pause"]
    assert await _acts(visitor, f"/audit?job={id}") == ["cancel"]
    assert await _acts(visitor, "/audit?since=1h") == ["cancel", "rate_limit", "pause"]
    assert await _acts(visitor, "/audit?since=1970-01-01&queue=old") == ["pause"]
    page = await visitor.get("/audit?who=ada+lovelace&since=1h")
    assert 'value="who:&#39;ada lovelace&#39; since:1h"' in page.text
    assert "No action matches these filters" in (await visitor.get("/audit?who=nobody")).words


@pytest.mark.parametrize(
    "query", ["q=cancel", "q=whom:ada", "q=who:", "q=who:'ada", "since=soon", "since=1960-01-01", "cursor=%00x"]
)
async def test_what_cannot_be_read_is_said(visitor: Visitor, query: str) -> None:
    page = await visitor.get(f"/audit?{query}")
    assert (page.status, "This cannot be read" in page.words) == (400, True)


async def test_the_log_is_paged(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    for number in range(120):
        clock.advance(1)
        await jobs.mark(f"v{number}", who="bot")
    seen: list[str] = []
    path = "/audit?who=bot"
    while True:
        page = await visitor.json(path)
        seen += [entry["note"] for entry in page["entries"]]
        assert len(page["entries"]) <= 50
        if page["next"] is None:
            break
        path = f"/audit?who=bot&cursor={page['next']}"
    assert seen == [f"v{number}" for number in reversed(range(120))]
    first, last = await visitor.get("/audit?who=bot"), await visitor.get(path)
    assert "Next page" in first.words
    assert "First page" not in first.words
    assert "First page" in last.words
    assert "Next page" not in last.words
    assert 'href="/audit?who=bot&amp;cursor=' in first.text


async def test_values_of_payloads_in_filters_are_hidden(jobs: Client) -> None:
    await jobs.enqueue("send", {"password": "hunter2", "to": "ada@example.org"})
    await jobs.cancel(payload={"password": "hunter2", "to": "ada@example.org"})
    masked = Visitor(Dashboard(jobs, redact=("password",)))
    page = await masked.get("/audit")
    assert "payload.password:•••• hidden payload.to:ada@example.org" in page.words
    blind = Visitor(Dashboard(jobs, authorize=lambda request: Access()))
    for page in (await blind.get("/audit"), await blind.get("/audit", accept="application/json")):
        assert "hunter2" not in page.text
        assert "ada@example.org" not in page.text


async def test_only_those_who_see_all_tenants(jobs: Client) -> None:
    of_tenant = Visitor(Dashboard(jobs, authorize=lambda request: Access(tenants={"acme"})))
    assert (await of_tenant.get("/audit")).status == 403


async def test_texts_are_no_html(jobs: Client, visitor: Visitor) -> None:
    await jobs.enqueue("send", {EVIL: EVIL})
    await jobs.cancel(payload={EVIL: EVIL}, who=EVIL)
    await jobs.mark(EVIL)
    page = await visitor.get("/audit?who=%3Cscript%3Ealert(1)%3C/script%3E")
    assert EVIL not in page.text
    assert EVIL in page.words
    assert EVIL not in (await visitor.get("/audit")).text
    assert EVIL not in (await visitor.get("/audit?q=%3Cscript%3Ealert(1)%3C/script%3E")).text
