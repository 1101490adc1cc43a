"""Lanes in the dashboard: their section and page, their forms, and the jobs that wait in them."""

from __future__ import annotations

import json
import re
from functools import partial
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest

import jobmill
from jobmill import Access, Client, Dashboard, LaneRule
from jobmill.core.queue_settings import LaneSettings, RateLimit
from jobmill.core.values import Claim
from jobmill.dashboard.view import search_text
from jobmill.testing import ManualClock
from tests.dashboard.test_overview import card
from tests.dashboard.visitor import Answer, Visitor

#: Names that a path, a query, a search or a page could misread.
NAMES = [
    *(
        "a/b",
        "a?b=c#d",
        "<script>alert(1)</script>",
        "ünï%20cøde 🚚",
        ' "two" words ',
        "it's",
        "back\\slash",
        "*",
        "a&b;c",
    ),
    *("../..", "lane:x", "x" * 255),
]


async def fill(jobs: Client, lane: str = "acme", count: int = 4, running: int = 1) -> list[str]:
    """A queue with a rule and a lane with more jobs than slots; their ids. The first one runs."""
    await jobs.queue("mail").lanes(running=2)
    ids = [(await jobs.enqueue("send", {"n": n}, queue="mail", lane=lane)).id for n in range(count)]
    claim = Claim(queues=("mail",), names={"send": running}, n=running, lease_ms=600_000, worker="w", token="t")
    if running:
        await jobs.store.exchange([], claim)
    return ids


def links(page: Answer, text: str) -> list[str]:
    """The addresses of links with this text."""
    return [
        unescape(href)
        for href, label in re.findall(r'<a [^>]*href="([^"]+)"[^>]*>([^<]*)</a>', page.text)
        if unescape(label) == text
    ]


def hidden(page: Answer, name: str) -> list[str]:
    """The values of hidden fields."""
    return [unescape(value) for value in re.findall(rf'<input type="hidden" name="{name}" value="([^"]*)"', page.text)]


# ---------------------------------------------------------------------------------------------------- the section


async def test_lanes_of_a_queue(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    await fill(jobs)
    await jobs.enqueue("send", queue="mail", lane="acme", delay="1h")
    await jobs.enqueue("send", queue="mail", lane="bigco")
    await jobs.queue("mail").lane("bigco", running=10, rate=(30, "1m"), strict=True)
    await jobs.queue("mail").lane("later").pause(who="ada", note="they <b>asked")
    page = await visitor.get("/lanes/mail")
    assert page.status == 200
    assert "In each lane, at most 2 jobs run at once. Change the rule…" in page.words
    assert "acme 1 of 2 1 2 1 – Pause… Limits… bigco" in page.words
    assert "bigco own limits: running, rate, strict order 0 of 10 1 0 0 30 a minute" in page.words
    assert f"later Paused by ada at {_clock(clock)}: they <b>asked 0 of 2 0 0 0 – Resume Limits…" in page.words
    data = await visitor.json("/lanes/mail")
    assert [(one["name"], one["running"], one["admitted"], one["ready"], one["later"]) for one in data["lanes"]] == [
        ("acme", 1, 1, 2, 1),
        ("bigco", 0, 1, 0, 0),
        ("later", 0, 0, 0, 0),
    ]
    assert data["rule"] == {"running": 2}
    limits = {"running": 10, "rate": {"count": 30, "per_ms": 60_000}, "strict": True, "paused": False}
    assert (data["lanes"][1]["limits"], data["lanes"][1]["own"]) == (limits, ["running", "rate", "strict"])
    assert data["lanes"][2]["pause"] == {"who": "ada", "note": "they <b>asked", "since_ms": clock()}


def _clock(clock: ManualClock) -> str:
    seconds = clock() // 1_000 % 86_400
    return f"{seconds // 3_600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


async def test_a_rate_that_is_used_up_and_a_limit_that_was_lowered(
    jobs: Client, visitor: Visitor, clock: ManualClock
) -> None:
    await jobs.queue("mail").lanes(rate=(1, "1m"))
    await fill(jobs, running=2)
    await jobs.queue("mail").lane("acme", running=1)
    await jobs.queue("crm").lanes(rate=(1, "1m"))
    for _ in range(2):
        await jobs.enqueue("sync", queue="crm", lane="x")
    assert "more jobs run than its limit allows, until they end" in (await visitor.get("/lanes/mail")).words
    clock_at_end = clock() + 60_000
    page = await visitor.get("/lanes/crm")
    assert "In each lane, at most 1 job starts a minute." in page.words
    assert "x at its rate until" in page.words
    assert (await visitor.json("/lanes/crm"))["lanes"][0]["limited_until_ms"] == clock_at_end


async def test_the_page_of_a_queue_loads_its_lanes(jobs: Client, visitor: Visitor) -> None:
    await fill(jobs)
    page = await visitor.get("/queues/mail?range=8h")
    assert links(page, "Lanes of this queue") == ["/lanes/mail"]
    assert "In each lane, at most 2 jobs run at once." in page.words
    part = re.search(r'<div id="lanes"[^>]* hx-get="([^"]+)"', page.text)
    assert part is not None
    section = await visitor.get(unescape(part[1]))
    assert '<section id="lanes-in"' in section.text
    # Its acts lead back to the page of the queue, as it was.
    (ask,) = links(section, "Pause…")
    assert "back=%2Fqueues%2Fmail%3Frange%3D8h" in ask
    assert hidden(await visitor.get(ask), "back") == ["/queues/mail?range=8h"]
    await jobs.queue("mail").lane("acme").pause()
    visitor.app.reads.forget()
    assert hidden(await visitor.get(unescape(part[1])), "back") == ["/queues/mail?range=8h"]


async def test_a_queue_without_lanes_has_one_quiet_line(jobs: Client, visitor: Visitor) -> None:
    await jobs.enqueue("send", queue="mail")
    page = await visitor.get("/lanes/mail?back=/queues/mail")
    assert "No job of this queue has a lane. Set a rule for lanes…" in page.words
    assert "<table" not in page.text
    await jobs.queue("mail").lanes(running=3, strict=True)
    visitor.app.reads.forget()
    page = await visitor.get("/lanes/mail")
    assert "In each lane, at most 3 jobs run at once, in strict order." in page.words
    assert "No job of this queue has a lane." in page.words


async def test_limits_without_a_rule(jobs: Client, visitor: Visitor) -> None:
    await jobs.queue("mail").lane("acme", rate=(5, "90s"))
    page = await visitor.get("/lanes/mail")
    assert "No rule: only lanes with limits of their own are limited. Set a rule…" in page.words
    assert "acme own limits: rate 0 0 0 0 5 in 1m30s" in page.words


async def test_lanes_are_paged_by_name(jobs: Client, visitor: Visitor) -> None:
    await jobs.enqueue_many([jobs.draft("send", queue="mail", lane=f"lane-{n:03}") for n in range(120)])
    seen, sizes, path = list[str](), list[int](), "/lanes/mail"
    while path:
        data = await visitor.json(path)
        seen += [one["name"] for one in data["lanes"]]
        sizes.append(len(data["lanes"]))
        (path,) = links(await visitor.get(path), "Next page") or [""]
    assert sizes == [50, 50, 20]
    assert seen == [f"lane-{n:03}" for n in range(120)]
    assert links(await visitor.get("/lanes/mail?after=lane-049"), "First page") == ["/lanes/mail"]
    assert "There are no more lanes" in (await visitor.get("/lanes/mail?after=z")).words
    part = await visitor.get("/lanes/mail?back=/queues/mail")
    assert part.text.count('class="name"') == 10
    assert links(part, "All lanes") == ["/lanes/mail"]


async def test_one_lane_is_found_by_its_name(jobs: Client, visitor: Visitor) -> None:
    await fill(jobs)
    data = await visitor.json("/lanes/mail?lane=acme")
    assert [one["name"] for one in data["lanes"]] == ["acme"]
    # A lane may get limits before its first job.
    page = await visitor.get("/lanes/mail?lane=newco")
    assert "newco no live jobs, and no settings 0 of 2" in page.words
    assert links(page, "Limits…")
    assert links(page, "Lanes after this one") == ["/lanes/mail?after=newco"]


async def test_counts_that_were_cut_off_say_so(jobs: Client, visitor: Visitor) -> None:
    await jobs.queue("mail").lanes(running=1)
    await jobs.enqueue_many([jobs.draft("send", queue="mail", lane="hot") for _ in range(1_002)])
    assert "hot 0 of 1 1 1,000+ 0" in (await visitor.get("/lanes/mail")).words


@pytest.mark.parametrize(
    "path", ["/lanes/mail?lane=a%0Ab", "/lanes/mail?after=a%00", "/lanes/a%00b", "/ask/lane?lane=x"]
)
async def test_what_cannot_be_a_name_is_refused(visitor: Visitor, path: str) -> None:
    assert (await visitor.get(path)).status == 400
    assert (await visitor.get(path, accept="application/json")).json["title"] == "This cannot be read"


@pytest.mark.parametrize("name", NAMES)
async def test_lanes_and_queues_with_unusual_names(jobs: Client, visitor: Visitor, name: str) -> None:
    queue = "q" + re.sub(r"[\s:]", "", name)[:200]
    await jobs.queue(queue).lanes(running=1)
    ids = [(await jobs.enqueue("send", queue=queue, lane=name)).id for _ in range(2)]
    page = await visitor.get(links(await visitor.get(f"/queues/{quote(queue, safe='')}"), "Lanes of this queue")[0])
    assert page.status == 200
    assert "<script>alert" not in page.text
    assert " ".join(name.split()) in page.words
    # The name leads to the jobs of the lane.
    found = await visitor.json(links(page, name)[0])
    assert {one["id"] for one in found["jobs"]} == set(ids)
    for text, what in (("Limits…", "lane"), ("Pause…", "pause_lane")):
        form = await visitor.get(links(page, text)[0])
        assert (hidden(form, "queue"), hidden(form, "lane")) == ([queue], [name])
        (back,) = hidden(form, "back")
        answer = await visitor.act(what, queue=queue, lane=name, running="7", back=back)
        assert answer.status == 200
        assert "<script>alert" not in answer.text
    settings = await jobs.queue(queue).lane(name).settings()
    assert (settings.running, settings.paused) == (7, True)
    # From the page of a job to its lane.
    job = await visitor.get(f"/jobs/{ids[1]}")
    assert [one["name"] for one in (await visitor.json(links(job, name)[0]))["lanes"]] == [name]
    row = (await visitor.json(f"/jobs?state=held&q={quote(search_text({'queue': queue}))}"))["rows"][0]
    assert row["why"].startswith(" ".join(f"Lane {name} is paused by dashboard".split())[:200])


# ---------------------------------------------------------------------------------------------------- the rule


async def test_the_rule_is_set_changed_and_removed(jobs: Client, visitor: Visitor) -> None:
    form = await visitor.get("/ask/lanes/mail?back=/queues/mail")
    assert "Rule for the lanes of mail" in form.words
    assert "Remove the rule" not in form.words
    given: dict[str, Any] = {"queue": "mail", "back": "/queues/mail", "form": "/ask/lanes/mail"}
    page = await visitor.act(
        "lanes", **given, running="2", rate_count="30", rate_per="1m", strict="1", note="the bank <b> asks"
    )
    assert "The rule for the lanes of queue mail is saved." in page.words
    assert (await jobs.queue("mail").settings()).lanes == LaneRule(running=2, rate=RateLimit(30, 60_000), strict=True)
    form = await visitor.get("/ask/lanes/mail")
    assert 'value="2"' in field(form, "lane-running")
    assert 'value="30"' in field(form, "lane-rate")
    assert '<option value="1m" selected>a minute</option>' in form.text
    assert 'name="strict" value="1" checked' in form.text
    again = await visitor.act("lanes", **given, running="2", rate_count="30", rate_per="1m", strict="1")
    assert "Nothing was changed." in again.words
    await visitor.act("lanes", **given, running="4", rate_count="", rate_per="1m")
    assert (await jobs.queue("mail").settings()).lanes == LaneRule(running=4)
    page = await visitor.act("lanes", **given, running="nonsense", remove="1")
    assert "The rule for the lanes of queue mail is removed." in page.words
    assert (await jobs.queue("mail").settings()).lanes is None
    entries = [(one.who, one.what, one.queue, one.note) for one in (await jobs.audit_log()).entries]
    assert entries == [
        ("dashboard", "lanes", "mail", "none"),
        ("dashboard", "lanes", "mail", "running 4"),
        ("dashboard", "lanes", "mail", "running 2, rate 30 per 1m, strict true; the bank <b> asks"),
    ]


def field(page: Answer, id: str) -> str:
    """The input of a form."""
    found = re.search(rf'<input id="f-{id}"[^>]*>', page.text)
    assert found is not None, page.text
    return found[0]


@pytest.mark.parametrize(
    ("given", "wrong", "id"),
    [
        ({"running": "two <b>"}, "running", "lane-running"),
        ({"running": "0"}, "running", "lane-running"),
        ({"running": "5", "rate_count": "-1", "rate_per": "1s"}, "rate_count", "lane-rate"),
        ({"running": "5", "rate_count": "1", "rate_per": "soon"}, "rate_per", None),
        ({"running": "5", "note": "x" * 2_000}, "note", "lane-note"),
    ],
)
@pytest.mark.parametrize("act", ["lanes", "lane"])
async def test_a_wrong_value_is_shown_at_its_field_and_nothing_is_changed(
    jobs: Client, visitor: Visitor, act: str, given: dict[str, Any], wrong: str, id: str | None
) -> None:
    form = "/ask/lanes/mail" if act == "lanes" else "/ask/lane?queue=mail&lane=acme"
    page = await visitor.act(act, queue="mail", lane="acme", form=form, **given)
    assert page.status == 400
    assert f'id="f-{wrong}-e">Must be a ' in page.text
    if id is not None:
        assert f'aria-invalid="true" aria-describedby="f-{wrong}-e"' in field(page, id)
    if wrong != "running":
        assert 'value="5"' in field(page, "lane-running")
    assert await jobs.queue("mail").lane("acme").settings() == LaneSettings()
    assert (await jobs.queue("mail").settings()).lanes is None
    assert (await jobs.audit_log()).entries == []


async def test_a_limit_of_nothing_is_a_pause(visitor: Visitor) -> None:
    page = await visitor.act("lane", queue="mail", lane="acme", running="0", form="/ask/lane?queue=mail&lane=acme")
    assert "got 0; to stop a lane, pause it" in page.words


async def test_strict_needs_a_running_limit(jobs: Client, visitor: Visitor) -> None:
    page = await visitor.act("lanes", queue="mail", strict="1", form="/ask/lanes/mail")
    assert page.status == 400
    assert 'id="f-strict-e">Must be strict only together with running.' in page.text
    assert 'name="strict" value="1" checked' in page.text


# ---------------------------------------------------------------------------------------------------- one lane


async def test_the_limits_of_one_lane(jobs: Client, visitor: Visitor) -> None:
    await jobs.queue("mail").lanes(running=2, rate=(30, "1m"))
    await fill(jobs, running=0)
    given: dict[str, Any] = {"queue": "mail", "lane": "acme", "back": "/lanes/mail"}
    form = await visitor.get("/ask/lane?queue=mail&lane=acme")
    assert "The rule says: 2." in form.words
    assert "Back to the rule" not in form.words
    page = await visitor.act("lane", **given, running="3", rate_count="", rate_per="1s", strict="yes", note="bigger")
    assert "The limits of lane acme are saved." in page.words
    assert await jobs.queue("mail").lane("acme").settings() == LaneSettings(running=3, strict=True)
    form = await visitor.get("/ask/lane?queue=mail&lane=acme")
    assert '<input type="radio" name="strict" value="yes" checked> yes' in form.text
    assert "Back to the rule" in form.words
    assert "Nothing was changed." in (await visitor.act("lane", **given, running="3", strict="yes")).words
    await visitor.act("lane", **given, running="3", rate_count="9", rate_per="1h", strict="yes")
    page = await visitor.act("lane", **given, running="nonsense", reset="1")
    assert "The rule of queue mail applies to lane acme again." in page.words
    assert await jobs.queue("mail").lane("acme").settings() == LaneSettings()
    notes = [(one.what, one.note) for one in (await jobs.audit_log()).entries if one.who == "dashboard"]
    assert notes == [
        ("lane", "acme: running as the queue, rate as the queue, strict as the queue"),
        ("lane", "acme: rate 9 per 1h"),
        ("lane", "acme: running 3, strict true; bigger"),
    ]
    page = await visitor.act("lane", **given, strict="perhaps", form="/ask/lane?queue=mail&lane=acme")
    assert 'id="f-strict-e">Must be yes, no, or nothing' in page.text


async def test_pause_and_resume_a_lane(jobs: Client, visitor: Visitor) -> None:
    ids = await fill(jobs, running=0)
    given: dict[str, Any] = {"queue": "mail", "lane": "acme", "back": "/lanes/mail"}
    page = await visitor.act("pause_lane", **given, note="they asked")
    assert "Lane acme is paused. Its running jobs continue." in page.words
    assert "Paused by dashboard at" in page.words
    assert "they asked" in page.words
    assert all([(await jobs.get(id)).held is not None for id in ids])
    page = await visitor.act("resume_lane", **given)
    assert "Lane acme runs again." in page.words
    assert [(one.what, one.queue, one.note) for one in (await jobs.audit_log(who="dashboard")).entries] == [
        ("resume_lane", "mail", "acme"),
        ("pause_lane", "mail", "acme: they asked"),
    ]
    answer = await visitor.act("pause_lane", **given, note="x" * 2_000, form="/ask/pause_lane?queue=mail&lane=acme")
    assert answer.status == 400
    assert 'aria-invalid="true"' in field(answer, "lane-note")


async def test_programs_act_by_json(jobs: Client, visitor: Visitor) -> None:
    async def post(act: str, **given: Any) -> Answer:
        headers = {"accept": "application/json", "content-type": "application/json"}
        return await visitor.send("POST", f"/acts/{act}", json.dumps(given).encode(), headers)

    for act, given in (
        ("lanes", {"queue": "mail", "running": 2, "strict": True}),
        ("lane", {"queue": "mail", "lane": "acme", "running": 5}),
        ("pause_lane", {"queue": "mail", "lane": "acme", "note": "x"}),
        ("resume_lane", {"queue": "mail", "lane": "acme"}),
    ):
        answer = await post(act, **given)
        assert (answer.status, answer.json["count"]) == (200, 1), answer
    assert (await jobs.queue("mail").settings()).lanes == LaneRule(running=2, strict=True)
    assert (await post("lane", queue="mail", lane="")).status == 400
    assert (await post("pause_lane", queue="mail", lane="a\nb")).status == 400


# ---------------------------------------------------------------------------------------------------- permission


async def test_readers_see_lanes_and_change_nothing(jobs: Client) -> None:
    await fill(jobs)
    await jobs.queue("mail").lane("acme").pause(who="ada", note="x")
    for dashboard in (Dashboard(jobs, authorize=lambda _: Access.READ), Dashboard(jobs, read_only=True)):
        visitor = Visitor(dashboard)
        page = await visitor.get("/lanes/mail")
        assert "Paused by ada" in page.words
        for word in ("Resume", "Limits…", "Change the rule…", "Set a rule"):
            assert word not in page.words
        assert 'method="post"' not in page.text
        assert "Set a rule" not in (await visitor.get("/lanes/other")).words
        for path in ("/ask/lanes/mail", "/ask/lane?queue=mail&lane=acme", "/ask/pause_lane?queue=mail&lane=acme"):
            assert (await visitor.get(path)).status == 403
        for act in ("lanes", "lane", "pause_lane", "resume_lane"):
            assert (await visitor.act(act, queue="mail", lane="acme", running="9")).status == 403
    assert (await jobs.queue("mail").lane("acme").settings()).paused


async def test_each_act_needs_its_own_permission(jobs: Client) -> None:
    await fill(jobs)
    for action, words in (("limit", ["Limits…", "Change the rule…"]), ("pause", ["Pause…"])):
        access = Access({action})
        visitor = Visitor(Dashboard(jobs, authorize=partial(_access, access)))
        page = await visitor.get("/lanes/mail")
        assert [one for one in ("Limits…", "Change the rule…", "Pause…") if one in page.words] == words
        allowed = [act for act in ("lanes", "lane", "pause_lane", "resume_lane") if await _may(visitor, act)]
        assert allowed == (["lanes", "lane"] if action == "limit" else ["pause_lane", "resume_lane"])


def _access(access: Access, request: Any) -> Access:
    return access


async def _may(visitor: Visitor, act: str) -> bool:
    return (await visitor.act(act, follow=False, queue="mail", lane="acme", running="2")).status != 403


async def test_forms_of_other_sites_are_refused(jobs: Client, visitor: Visitor) -> None:
    await fill(jobs)
    for act in ("lanes", "lane", "pause_lane", "resume_lane"):
        answer = await visitor.post(
            f"/acts/{act}", {"sec-fetch-site": "cross-site"}, queue="mail", lane="acme", running="9"
        )
        assert answer.status == 403
    assert await jobs.queue("mail").lane("acme").settings() == LaneSettings()


async def test_visitors_with_some_tenants_see_no_lanes(jobs: Client) -> None:
    """The names of lanes are often those of tenants."""
    await jobs.queue("mail").lanes(running=1, strict=True)
    other = await jobs.enqueue("secret_name", queue="mail", lane="shared", tenant="globex")
    own = await jobs.enqueue("send", queue="mail", lane="shared", tenant="acme")
    await jobs.store.announce(card("w1", "mail"), [])
    visitor = Visitor(Dashboard(jobs, authorize=lambda _: Access(Access.ALL.actions, tenants=["acme"])))
    for path in ("/lanes/mail", "/ask/lanes/mail", "/ask/lane?queue=mail&lane=shared"):
        assert (await visitor.get(path)).status == 403
    for act in ("lanes", "lane", "pause_lane", "resume_lane"):
        assert (await visitor.act(act, queue="mail", lane="shared", running="9")).status == 403
    page = await visitor.get(f"/jobs/{own.id}")
    assert "/lanes/" not in page.text
    assert "/ask/lane" not in page.text
    assert "secret_name" not in page.text
    assert other.id not in page.text
    assert "Its lane 'shared' has used its limit of 1" in page.words
    found = await visitor.json(links(page, "shared")[0])
    assert [one["id"] for one in found["jobs"]] == [own.id]
    assert "Waits for a slot of lane shared" in (await visitor.get("/jobs?state=held")).words


# ---------------------------------------------------------------------------------------------------- jobs


async def test_the_list_of_jobs_says_what_their_lane_waits_for(
    jobs: Client, visitor: Visitor, clock: ManualClock
) -> None:
    await fill(jobs)
    await jobs.enqueue("later", queue="mail", lane="acme", delay="1h")
    person = await jobs.enqueue("person", queue="mail", lane="acme")
    await jobs.hold(person.id, who="ada", note="wait")
    await jobs.queue("other").lanes(running=1)
    for _ in range(2):
        await jobs.enqueue("other", queue="other", lane="x")

    async def why() -> set[str]:
        visitor.app.reads.forget()
        return {one["why"] for one in (await visitor.json("/jobs?state=held"))["rows"]}

    assert await why() == {
        "Waits for a slot of lane acme: 1 running, 1 admitted",
        "Due in 1 h 00 min, in lane acme",
        "Held by ada: wait",
        "Waits for a slot of lane x",
    }
    await jobs.queue("mail").lane("acme").pause(who="eve", note="they asked")
    assert "Lane acme is paused by eve: they asked" in await why()
    await jobs.queue("mail").lane("acme").resume()
    await jobs.queue("mail").lane("acme", rate=(1, "1m"))
    await jobs.queue("mail").lane("acme", running=50)
    assert f"Lane acme is at its rate until {_clock_after(clock, 60)}" in await why()
    only = await visitor.json("/jobs?q=lane:x")
    assert [one["lane"] for one in only["jobs"]] == ["x", "x"]


def _clock_after(clock: ManualClock, seconds: int) -> str:
    at = clock() // 1_000 % 86_400 + seconds
    return f"{at // 3_600:02}:{at // 60 % 60:02}:{at % 60:02}"


async def test_a_job_says_why_its_lane_gives_it_no_slot(jobs: Client, visitor: Visitor) -> None:
    ids = await fill(jobs)
    page = await visitor.get(f"/jobs/{ids[2]}")
    assert "Its lane 'acme' has used its limit of 2: 1 running, 1 admitted." in page.words
    assert "Jobs with a slot: " in page.words
    assert f'href="/jobs/{ids[0]}"' in page.text
    assert f'href="/jobs/{ids[1]}"' in page.text
    assert links(page, "acme") == ["/lanes/mail?lane=acme"]
    (ask,) = links(page, "Limits of this lane…")
    assert hidden(await visitor.get(ask), "back") == [f"/jobs/{ids[2]}"]
    data = await visitor.json(f"/jobs/{ids[2]}")
    assert [one["code"] for one in data["reasons"]] == ["lane_full", "no_worker"]
    assert data["reasons"][0]["evidence"]["jobs"] == ids[:2]
    assert not [one for one in data["fine"] if "the queue has no r" in one]  # nobody has read that
    await jobs.depths()
    await visitor.get("/queues")
    assert "the queue has no running limit" in (await visitor.json(f"/jobs/{ids[2]}"))["fine"]
    await jobs.queue("mail").lane("acme").pause(who="ada", note="they asked")
    visitor.app.reads.forget()
    page = await visitor.get(f"/jobs/{ids[2]}")
    assert "The lane 'acme' is paused by ada since" in page.words
    assert (hidden(page, "queue"), hidden(page, "lane")) == (["mail"], ["acme"])
    await visitor.act("resume_lane", queue="mail", lane="acme")
    assert not (await jobs.queue("mail").lane("acme").settings()).paused


async def test_a_lane_that_a_job_blocks(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    @jobs.handler(queue="mail", backoff="1h")
    async def send() -> None:
        raise ValueError("secret-text")

    await jobs.queue("mail").lanes(running=1, strict=True)
    first = await jobs.enqueue("send", queue="mail", lane="acme")
    second = await jobs.enqueue("send", queue="mail", lane="acme")
    await jobs.tick()
    page = await visitor.get(f"/jobs/{second.id}")
    assert f"Its lane 'acme' is strict, and job {first.id} keeps its slot (ValueError: secret-text)" in page.words
    assert "That job: " in page.words
    hiding = Visitor(Dashboard(jobs, authorize=lambda _: Access({"cancel"})))
    page = await hiding.get(f"/jobs/{second.id}")
    assert f"job {first.id} keeps its slot until its next attempt" in page.words
    assert "secret-text" not in page.text
    assert "secret-text" not in (await hiding.get(f"/jobs/{second.id}", accept="application/json")).text

    blocker = await jobs.enqueue("unknown", queue="mail", lane="bigco")
    blocked = await jobs.enqueue("send", queue="mail", lane="bigco")
    await jobs.store.announce(card("w1", "mail"), [])
    visitor.app.reads.forget()
    data = await visitor.json(f"/jobs/{blocked.id}")
    assert data["reasons"][0]["code"] == "lane_blocked_by_name"
    assert data["reasons"][0]["evidence"]["job"] == blocker.id


async def test_a_job_that_has_its_slot_shows_its_lane(jobs: Client, visitor: Visitor) -> None:
    ids = await fill(jobs)
    for id in ids[:2]:
        assert links(await visitor.get(f"/jobs/{id}"), "acme") == ["/lanes/mail?lane=acme"]
    assert "its lane 'acme' has given it a slot" in (await visitor.json(f"/jobs/{ids[1]}"))["fine"]


# ---------------------------------------------------------------------------------------------------- other pages


async def test_a_copy_and_a_run_now_have_the_lane_of_the_job(jobs: Client, visitor: Visitor) -> None:
    first = await jobs.enqueue("send", {"n": 1}, queue="mail", lane=" acme ")
    form = await visitor.get(f"/ask/copy?id={first.id}")
    assert 'name="lane" maxlength="255" autocomplete="off" value=" acme "' in form.text
    await visitor.act("copy", id=first.id, name="send", queue="mail", payload="{}", lane=" acme ")
    await visitor.act("enqueue", name="send", queue="mail", lane="")
    recurring = await jobs.enqueue("report", every="1h", key="hourly", lane="night", queue="mail")
    await visitor.act("recur_run", id=recurring.id)
    lanes = sorted((one.name, one.lane or "") for one in (await jobs.find(queue="mail")).jobs)
    assert lanes == [("report", "night")] * 2 + [("send", ""), ("send", " acme "), ("send", " acme ")]
    assert (await visitor.json(f"/jobs/{first.id}"))["snippet"].endswith("queue='mail', lane=' acme ')")


async def test_a_recurring_job_that_waits_in_its_lane_is_not_held(
    jobs: Client, visitor: Visitor, clock: ManualClock
) -> None:
    await jobs.queue("default").lanes(running=1)
    first = await jobs.enqueue("report", every="1h", key="first", lane="night", delay="10m")
    second = await jobs.enqueue("report", every="1h", key="second", lane="night", delay="10m")
    assert [bool((await jobs.get(one.id)).held) for one in (first, second)] == [True, True]
    rows = (await visitor.json("/recurring"))["jobs"]
    due_ms = clock() + 600_000
    assert [(one["next_ms"][:2], one["held_by"], one["late_ms"]) for one in rows] == [
        ([due_ms, due_ms + 3_600_000], [], None)
    ] * 2
    assert sum(sum(day["hours"]) for day in (await visitor.json("/recurring"))["week"]) > 2 * 24 * 5
    clock.advance(900)
    visitor.app.reads.forget()
    page = await visitor.get("/recurring")
    assert page.words.count("5 min 00 s late: it waits for a slot of its lane night") == 2
    await jobs.hold(second.id, who="ada")
    visitor.app.reads.forget()
    assert [one["held_by"] for one in (await visitor.json("/recurring"))["jobs"]] == [[], []]


async def test_the_time_line_of_a_job_in_a_lane(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    await jobs.queue("mail").lanes(running=1)
    await jobs.enqueue("send", queue="mail", lane="acme")
    ready = await jobs.enqueue("send", queue="mail", lane="acme")
    later = await jobs.enqueue("send", queue="mail", lane="acme", delay="1h")
    for id, note in ((ready.id, "in lane acme since"), (later.id, "in lane acme, due at")):
        assert (await visitor.json(f"/jobs/{id}"))["steps"][-1]["note"] == note


async def test_lanes_on_every_store(store_url: str) -> None:
    async with jobmill.connect(store_url) as jobs:
        await jobs.store.migrate()
        visitor = Visitor(Dashboard(jobs))
        ids = await fill(jobs)
        await visitor.act("lane", queue="mail", lane="bigco", running="10", back="/lanes/mail")
        data = await visitor.json("/lanes/mail")
        assert [(one["name"], one["running"], one["admitted"], one["ready"]) for one in data["lanes"]] == [
            ("acme", 1, 1, 2),
            ("bigco", 0, 0, 0),
        ]
        assert "has used its limit of 2" in (await visitor.get(f"/jobs/{ids[3]}")).words
        await visitor.act("pause_lane", queue="mail", lane="acme", note="they asked")
        page = await visitor.get("/jobs?q=queue:mail+lane:acme&state=held")
        assert page.words.count("Lane acme is paused by dashboard: they asked") == 3
        assert [one["name"] for one in (await visitor.json("/lanes/mail?after=acme"))["lanes"]] == ["bigco"]
