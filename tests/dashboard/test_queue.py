"""The page of one queue, its forms, and forms that are refused."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from jobmill import Access, Client, Dashboard
from jobmill.core.tallies import BUCKETS
from jobmill.core.values import QueueChange
from jobmill.testing import ManualClock
from tests.dashboard.test_overview import card, tally
from tests.dashboard.visitor import Answer, Visitor


def buckets(*at: int) -> tuple[int, ...]:
    """One run in each of these buckets."""
    return tuple(at.count(index) for index in range(BUCKETS))


def field(page: Answer, name: str) -> str:
    """The input of a form."""
    found = re.search(rf'<input id="f-{name}"[^>]*>', page.text)
    assert found is not None, page.text
    return found[0]


async def test_one_queue(jobs: Client, clock: ManualClock, visitor: Visitor) -> None:
    await jobs.enqueue("send", queue="mail")
    await jobs.enqueue("send", queue="mail", delay="1h")
    await jobs.enqueue("send", queue="other")
    await jobs.queue("mail").running_limit(4)
    await jobs.queue("mail").rate_limit(30, "1m")
    clock.advance(41)
    counts = [
        tally(clock(), succeeded=1, run_buckets=buckets(10), wait_buckets=buckets(4)),
        tally(clock(), name="receive", errored=2, run_buckets=buckets(5, 5)),
        tally(clock(), "other", "elsewhere", errored=9, run_buckets=buckets(20)),
    ]
    await jobs.store.announce(card("w1", "mail", running=2, stopping=True), counts)
    await jobs.store.announce(card("w2", "other"), [])
    page = await visitor.get("/queues/mail")
    assert page.status == 200
    assert "Due 1 oldest 41 s Later or held 1 0 held Running 0 of 4 room for 4 more" in page.words
    assert "Wait p95 32 ms p50 32 ms, last hour Run p95 2.0 s" in page.words
    assert "receive most errors 0 64 ms 64 ms 2 send slowest 0 2.0 s 2.0 s 0" in page.words
    assert "w1 stopping 2 of 4" in page.words
    assert "elsewhere" not in page.words
    assert "w2" not in page.words
    assert 'value="4"' in field(page, "running_limit")
    assert 'value="30"' in field(page, "rate_count")
    assert '<option value="1m" selected>a minute</option>' in page.text
    assert 'href="/jobs?q=queue%3Amail&amp;state=due"' in page.text
    data = await visitor.json("/queues/mail?range=8h")
    assert data["chart"]["points"][-1] == {"start_ms": clock() - clock() % 600_000, "succeeded": 1, "errors": 2}


@pytest.mark.parametrize("name", ["a/b", "ünï%20code", "a?b=c#d", "<script>alert(1)</script>"])
async def test_queues_with_unusual_names(jobs: Client, visitor: Visitor, name: str) -> None:
    await jobs.enqueue("send", queue=name)
    listed = await visitor.get("/queues")
    found = re.search(r'<a class="name" href="([^"]+)"', listed.text)
    assert found is not None
    page = await visitor.get(found[1])
    assert page.status == 200
    assert name in page.words
    assert "<script>alert" not in page.text
    ask = re.search(r'href="(/ask/pause/[^"]+)"', page.text)
    assert ask is not None
    assert f"Pause queue {name}?" in (await visitor.get(ask[1])).words


async def test_an_unknown_queue(visitor: Visitor) -> None:
    page = await visitor.get("/queues/nope")
    assert page.status == 404
    assert "There is no queue nope: it has no jobs and no settings, and no worker claims it." in page.words
    assert "Recurring" in page.words  # the navigation stays


async def test_a_queue_with_a_worker_and_no_jobs(jobs: Client, visitor: Visitor) -> None:
    await jobs.store.announce(card("w1", "idle"), [])
    page = await visitor.get("/queues/idle")
    assert page.status == 200
    assert "No job of this queue ran in the last hour." in page.words


async def test_a_queue_without_workers_says_so(jobs: Client, visitor: Visitor) -> None:
    await jobs.enqueue("send", queue="mail")
    assert (
        "No worker claims from this queue. Its jobs wait until such a worker starts"
        in (await visitor.get("/queues/mail")).words
    )


async def test_a_note_about_limits_is_in_the_audit_log(jobs: Client, visitor: Visitor) -> None:
    await jobs.enqueue("send", queue="mail")
    note = "the bank <b> asks"
    await visitor.act("limit", queue="mail", note=note, running_limit="4", rate_count="30", rate_per="1m")
    notes = {entry.what: entry.note for entry in (await jobs.audit_log()).entries}
    assert notes == {"running_limit": "4; the bank <b> asks", "rate_limit": "30 per 1m; the bank <b> asks"}
    page = await visitor.act("limit", queue="mail", form="/queues/mail", note="x" * 2_000)
    assert page.status == 400
    assert 'aria-invalid="true"' in field(page, "why")
    assert (await jobs.queue("mail").settings()).running_limit == 4


async def test_another_window_of_a_rate_limit_is_kept(jobs: Client, visitor: Visitor) -> None:
    await jobs.queue("mail").rate_limit(5, "90s")
    page = await visitor.get("/queues/mail")
    assert '<option value="1m30s" selected>in 1m30s</option>' in page.text
    await visitor.act("limit", queue="mail", running_limit="", rate_count="6", rate_per="1m30s")
    limit = (await jobs.queue("mail").settings()).rate_limit
    assert limit is not None
    assert (limit.count, limit.per_ms) == (6, 90_000)


# ---------------------------------------------------------------------------------------------------- permission


async def test_readers_see_plain_values(jobs: Client) -> None:
    await jobs.queue("mail").running_limit(60)
    await jobs.queue("mail").rate_limit(30, "1m")
    await jobs.queue("mail").pause(who="ada")
    visitor = Visitor(Dashboard(jobs, authorize=lambda request: Access.READ))
    page = await visitor.get("/queues/mail")
    assert (
        "Running limit 60 Rate limit 30 a minute To change these limits, you need the permission “limit”." in page.words
    )
    assert "Resume" not in page.words
    assert "/acts/" not in page.text
    assert (await visitor.get("/ask/pause/mail")).status == 403
    assert (await visitor.act("limit", queue="mail", running_limit="1", form="/queues/mail")).status == 403


async def test_visitors_with_some_tenants_see_no_queue(jobs: Client) -> None:
    await jobs.enqueue("send", queue="mail", tenant="acme")
    visitor = Visitor(Dashboard(jobs, authorize=lambda request: Access(["pause", "limit"], tenants=["acme"])))
    for path in ("/queues/mail", "/ask/pause/mail"):
        assert (await visitor.get(path)).status == 403
    # Nor through a form that is shown again.
    page = await visitor.act("limit", queue="mail", running_limit="two", form="/queues/mail")
    assert page.status == 403


# ---------------------------------------------------------------------------------------------------- pause


async def test_a_pause_says_who_since_until_and_why(jobs: Client, clock: ManualClock, visitor: Visitor) -> None:
    await jobs.queue("mail").pause(who="ada", note="api <b>down", until="1h")
    clock.advance(12 * 60)
    page = await visitor.get("/queues/mail")
    assert "Paused by ada at" in page.words
    assert "12 min 00 s ago. It resumes by itself at" in page.words
    assert "api <b>down Resume" in page.words
    assert "Pause queue…" not in page.words
    page = await visitor.act("resume", queue="mail", back="/queues/mail")
    assert "Queue mail runs again." in page.words
    assert "Pause queue…" in page.words


async def test_a_pause_without_an_end_and_one_by_another_program(jobs: Client, visitor: Visitor) -> None:
    await visitor.act("pause", queue="mail", until="")
    assert "It stays paused until somebody resumes it." in (await visitor.get("/queues/mail")).words
    await jobs.store.configure("other", QueueChange(paused=True))
    visitor.app.reads.forget()
    assert "Another program paused this queue." in (await visitor.get("/queues/other")).words


@pytest.mark.parametrize(("until", "ms"), [("15m", 15 * 60_000), ("1h", 3_600_000), ("", None)])
async def test_the_form_pauses(jobs: Client, clock: ManualClock, visitor: Visitor, until: str, ms: int | None) -> None:
    form = await visitor.get("/ask/pause/mail")
    assert form.status == 200
    assert f'value="{until}"' in form.text
    page = await visitor.act("pause", queue="mail", until=until, until_at="", note="", back="/queues/mail")
    assert "Queue mail is paused. Running jobs continue." in page.words
    pause = (await jobs.queue("mail").settings()).pause
    assert pause is not None
    assert pause.until_ms == (None if ms is None else clock() + ms)
    assert pause.note is None


async def test_a_pause_until_a_time_is_in_the_zone_of_the_visitor(jobs: Client, visitor: Visitor) -> None:
    visitor.cookies["jobmill_zone"] = "Europe/Berlin"
    await visitor.act("pause", queue="mail", until="at", until_at="2999-01-01T15:00")
    pause = (await jobs.queue("mail").settings()).pause
    assert pause is not None
    assert pause.until_ms == 32_472_194_400_000  # 14:00 in UTC


async def test_a_notice_stays_through_live_updates_and_goes_with_the_next_page(visitor: Visitor) -> None:
    page = await visitor.act("pause", queue="mail", until="", back="/queues/mail?range=8h")
    again = re.search(r'<main[^>]* hx-get="([^"]+)"', page.text)
    assert again is not None
    assert "Queue mail is paused." in (await visitor.get(unescape(again[1]))).words
    others = re.findall(r'(?:href|value)="([^"]*done=[^"]*)"', page.text)
    assert others == []


# ---------------------------------------------------------------------------------------------------- refused forms


async def test_a_wrong_number_is_shown_at_its_field_and_nothing_is_changed(jobs: Client, visitor: Visitor) -> None:
    await jobs.queue("mail").running_limit(4)
    page = await visitor.act(
        "limit", queue="mail", running_limit="two <b>", rate_count="30", rate_per="1h", form="/queues/mail?range=8h"
    )
    assert page.status == 400
    wrong = field(page, "running_limit")
    assert 'aria-invalid="true" aria-describedby="f-running_limit-e"' in wrong
    assert 'value="two &lt;b&gt;"' in wrong
    assert '<small class="is-fail" id="f-running_limit-e">Must be a whole number, for example 2.</small>' in page.text
    # What else was written is kept, and the page is the one of the form.
    assert 'value="30"' in field(page, "rate_count")
    assert "aria-invalid" not in field(page, "rate_count")
    assert '<option value="1h" selected>' in page.text
    assert 'aria-current="true">8 h</a>' in page.text
    assert 'name="form" value="/queues/mail?range=8h"' in page.text
    assert "Nothing was changed." in page.words
    settings = await jobs.queue("mail").settings()
    assert (settings.running_limit, settings.rate_limit) == (4, None)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"running_limit": "0"}, "running_limit"),
        ({"running_limit": "5", "rate_count": "-1", "rate_per": "1s"}, "rate_count"),
        ({"running_limit": "5", "rate_count": "99999999999", "rate_per": "1s"}, "rate_count"),
        ({"running_limit": "5", "rate_count": "1", "rate_per": "soon"}, "rate_per"),
    ],
)
async def test_no_limit_is_saved_if_one_is_wrong(
    jobs: Client, visitor: Visitor, given: dict[str, Any], wrong: str
) -> None:
    await jobs.enqueue("send", queue="mail")
    page = await visitor.act("limit", queue="mail", form="/queues/mail", **given)
    assert page.status == 400
    assert f'id="f-{wrong}-e">Must be a ' in page.text
    assert (await jobs.queue("mail").settings()).running_limit is None


@pytest.mark.parametrize("given", ["", "2020-01-01T10:00", "soon", "15m"])
async def test_a_wrong_end_of_a_pause(jobs: Client, visitor: Visitor, given: str) -> None:
    page = await visitor.act("pause", queue="mail", until="at", until_at=given, note="api down", form="/ask/pause/mail")
    assert page.status == 400
    assert 'aria-invalid="true"' in field(page, "until_at")
    assert "Must be a time" in page.words
    assert 'value="api down"' in field(page, "note")
    assert '<input type="radio" name="until" value="at" checked>' in page.text
    assert not (await jobs.queue("mail").settings()).paused


@pytest.mark.parametrize("form", ["", "/nowhere", "//evil.example/queues/mail", "https://evil.example/", "/acts/limit"])
async def test_a_form_of_no_page_is_answered_by_a_notice(visitor: Visitor, form: str) -> None:
    answer = await visitor.act("limit", follow=False, queue="mail", running_limit="two", form=form, back="/queues")
    assert answer.status == 303
    page = await visitor.get(answer.headers["location"])
    assert "running_limit: expected a whole number, for example 2, got 'two'" in page.words


async def test_programs_get_the_problem_as_json(visitor: Visitor) -> None:
    answer = await visitor.post(
        "/acts/limit", {"accept": "application/json"}, queue="mail", running_limit="two", form="/queues/mail"
    )
    assert answer.status == 400
    assert answer.json["text"] == "running_limit: expected a whole number, for example 2, got 'two'"


async def test_a_form_is_shown_again_below_a_path(jobs: Client) -> None:
    visitor = Visitor(Dashboard(jobs), base="/a/b")
    await jobs.enqueue("send", queue="mail")
    page = await visitor.act("limit", queue="mail", running_limit="two", form="/a/b/queues/mail")
    assert page.status == 400
    assert 'value="two"' in field(page, "running_limit")
