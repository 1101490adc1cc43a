"""Recurring jobs: when they run, what is wrong, and the acts on them."""

from __future__ import annotations

import re
from functools import partial
from importlib import import_module
from typing import Any

import pytest
from msgspec import structs

from jobmill import Access, Client, Dashboard
from jobmill.core.changes import Hold
from jobmill.core.recurrence import Recurrence
from jobmill.core.tallies import Tally
from jobmill.core.values import NewJob
from jobmill.dashboard import charts
from jobmill.dashboard.schedules import CalendarDay
from jobmill.testing import ManualClock
from jobmill.testing.contract.announce import card
from tests.dashboard.visitor import Visitor

EVIL = "<script>alert(1)</script>"
DAY_S = 86_400


async def _daily(jobs: Client, **given: Any) -> str:
    return (await jobs.enqueue("report", cron="0 8 * * *", **{"key": "nightly", **given})).id


async def _row(visitor: Visitor, path: str = "/recurring") -> Any:
    visitor.app.reads.forget()
    rows = (await visitor.json(path))["jobs"]
    assert len(rows) == 1
    return rows[0]


async def test_no_recurring_jobs(jobs: Client, visitor: Visitor) -> None:
    await jobs.enqueue("plain")
    assert "No recurring jobs Give a handler a schedule" in (await visitor.get("/recurring")).words


async def test_a_recurring_job_says_when_it_runs(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    await jobs.enqueue("report", cron="0 8 * * 1-5", timezone="Europe/Berlin", key="digest")
    await jobs.enqueue("sync", every="30s", key="sync")
    await jobs.enqueue("plain")
    page = await visitor.get("/recurring")
    assert "report digest Every weekday at 08:00 Europe/Berlin 0 8 * * 1-5" in page.words
    assert "sync Every 30 seconds every 30s" in page.words
    assert "has not run yet" in page.words
    assert "2 recurring jobs, late ones first" in page.words
    rows = {row["name"]: row for row in (await visitor.json("/recurring"))["jobs"]}
    assert [ms - clock() for ms in rows["sync"]["next_ms"]] == [0, 30_000, 60_000, 90_000, 120_000]
    assert len(rows["report"]["next_ms"]) == 5
    assert (rows["report"]["key"], rows["report"]["timezone"]) == ("digest", "Europe/Berlin")


async def test_runs_so_far(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    fails = [False, True, False]

    @jobs.handler(max_attempts=1)
    async def report() -> None:
        clock.advance(2)
        if fails.pop():
            raise ValueError("no luck")

    await jobs.enqueue("report", every="1m", key="k")
    await jobs.tick()
    row = await _row(visitor)
    assert (row["runs"], row["failed_runs"], row["last_failed"], row["took_ms"]) == (1, 0, False, 2_000)
    clock.advance(60)
    await jobs.tick()
    row = await _row(visitor)
    assert (row["runs"], row["failed_runs"], row["last_failed"]) == (2, 1, True)
    assert "no luck" in row["last_error"]
    page = await visitor.get("/recurring")
    assert "The last run failed: ValueError: no luck" in page.words
    assert "0 ms ago , 2 runs, 1 failed 2.0 s" in page.words
    clock.advance(60)
    await jobs.tick()
    assert not (await _row(visitor))["last_failed"]
    assert "The last run failed" not in (await visitor.get("/recurring")).words


MINUTE, HOUR = 60_000, 3_600_000


async def _counted(jobs: Client, *ended: tuple[int, int, int], name: str = "report", number: int = 1) -> None:
    """What a worker counted: how long ago, how many runs succeeded, how many failed."""
    now_ms = jobs.store.now()
    tallies = [
        Tally(
            start_ms=now_ms - ago - (now_ms - ago) % MINUTE,
            queue="default",
            name=name,
            succeeded=succeeded,
            failed=failed,
        )
        for ago, succeeded, failed in ended
    ]
    await jobs.store.announce(structs.replace(card("w1"), announcement=number), tallies)


async def test_the_last_runs_are_dots_and_crosses(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    """Each run is counted once: by its minute in the last hour, by its hour before."""
    clock.advance(-clock() % HOUR // 1000 + 30 * 60)  # half past: the last hour and a whole hour overlap
    await _daily(jobs)
    await _counted(
        jobs, (26 * HOUR, 1, 0), (80 * MINUTE, 0, 1), (45 * MINUTE, 1, 0), (40 * MINUTE, 0, 1), (MINUTE, 1, 0)
    )
    await _counted(jobs, (5 * MINUTE, 1, 0), name="another", number=2)
    runs = (await _row(visitor))["last_runs"]
    assert [run["state"] for run in runs] == ["succeeded", "failed", "succeeded", "failed", "succeeded"]
    assert [run["before_ms"] - run["after_ms"] for run in runs] == [HOUR, 30 * MINUTE, MINUTE, MINUTE, MINUTE]
    page = await visitor.get("/recurring")
    assert 'aria-label="5 runs: 3 succeeded, 2 failed"' in page.text
    assert "Last 20 runs in 7 days, newest right: succeeded failed running" in page.words


async def test_at_most_twenty_of_the_last_seven_days(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    await _daily(jobs)
    await _counted(jobs, (8 * 24 * HOUR, 0, 5))
    assert (await _row(visitor))["last_runs"] == []
    assert "has not run yet" in (await visitor.get("/recurring")).words
    await _counted(jobs, (30 * HOUR, 1_000_000, 3), (20 * HOUR, 2, 1), (2 * MINUTE, 4, 1), number=2)
    runs = [run["state"][0] for run in (await _row(visitor))["last_runs"]]
    assert "".join(runs) == "s" * 9 + "fff" + "ssf" + "fssss"


@pytest.mark.parametrize(("names", "words"), [(23, "7 days"), (80, "2 days"), (150, "a day"), (200, "the last hour")])
async def test_with_very_many_names_less_is_read(jobs: Client, visitor: Visitor, names: int, words: str) -> None:
    await _daily(jobs)
    for number in range(names):
        await _counted(jobs, (MINUTE, 1, 0), name=f"name{number}", number=number + 1)
    assert f"Last 20 runs in {words}, newest right" in (await visitor.get("/recurring")).words


async def test_the_newest_run_agrees_with_what_the_job_says(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    """Within a step, workers do not count which run was the last one. The job knows it."""
    fails = [False, True]

    @jobs.handler(max_attempts=1)
    async def report() -> None:
        if fails.pop():
            raise ValueError("no luck")

    await jobs.enqueue("report", every="1s", key="k")
    for number, expected in ((1, "sff"), (2, "fffsss")):
        await jobs.tick()
        await _counted(jobs, (0, 1, 1), number=number)
        assert "".join(run["state"][0] for run in (await _row(visitor))["last_runs"]) == expected
        clock.advance(1)


async def test_a_job_that_runs_is_a_half_ring(jobs: Client, visitor: Visitor) -> None:
    seen = []

    @jobs.handler
    async def report() -> None:
        seen.append((await visitor.get("/recurring")).text)

    await jobs.enqueue("report", every="1m", key="k")
    await _counted(jobs, (2 * MINUTE, 1, 0))
    await jobs.tick()
    assert 'aria-label="1 run: 1 succeeded, 0 failed, one runs now"' in seen[0]


async def test_tenants_do_not_see_the_counts_of_others(jobs: Client) -> None:
    await _daily(jobs, tenant="acme")
    await _counted(jobs, (MINUTE, 1, 0))
    visitor = Visitor(Dashboard(jobs, authorize=lambda _: Access(tenants={"acme"})))
    assert (await _row(visitor))["last_runs"] is None
    page = await visitor.get("/recurring")
    assert ('class="runs"' in page.text, "Last 20 runs" in page.words) == (False, False)


async def test_late_jobs_come_first(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    await _daily(jobs)
    await jobs.enqueue("sync", every="1h", key="a", delay="1m")
    clock.advance(26 * 60)
    page = await visitor.get("/recurring")
    assert [row["name"] for row in (await visitor.json("/recurring"))["jobs"]] == ["sync", "report"]
    assert "sync a 25 min 00 s late" in page.words


async def test_a_run_that_does_not_end_is_late(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    seen: list[Any] = []

    @jobs.handler(max_attempts=1)
    async def report() -> None:
        clock.advance(300)
        seen.append((await _row(visitor), (await visitor.get("/recurring")).words))

    await jobs.enqueue("report", every="1m", key="k")
    await jobs.tick()
    row, words = seen[0]
    assert (row["state"], row["late_ms"]) == ("running", 240_000)
    assert "4 min 00 s late: its last run has not ended" in words
    assert "Pause" not in words.replace("Pause live updates", "")


async def test_pause_and_resume(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    id = await _daily(jobs)
    page = await visitor.act("recur_pause", id=id, note="supplier is down", back="/recurring")
    assert "report is paused." in page.words
    assert "Paused by dashboard: supplier is down" in page.words
    assert (await jobs.get(id)).held is not None
    assert (await _row(visitor))["next_ms"] == []
    assert sum(sum(day["hours"]) for day in (await visitor.json("/recurring"))["week"]) == 0
    clock.advance(2 * DAY_S)
    assert (await _row(visitor))["late_ms"] is None
    page = await visitor.act("recur_resume", id=id, back="/recurring")
    assert "If it missed runs, one of them runs now." in page.words
    assert (await jobs.get(id)).held is None
    assert [entry.what for entry in (await jobs.audit_log()).entries] == ["release", "hold"]
    page = await visitor.act("recur_resume", id=id, back="/recurring")
    assert "Nothing was changed. the job is not held" in page.words


async def test_what_something_else_holds_is_not_called_paused(jobs: Client, visitor: Visitor) -> None:
    id = await _daily(jobs)
    await jobs.store.change([id], Hold(by="jobs"))
    row = await _row(visitor)
    assert (row["is_paused"], row["held_by"]) == (False, ["jobs"])
    assert "Held by jobs" in (await visitor.get("/recurring")).words


async def test_run_now_is_one_more_run(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    ran: list[int] = []

    @jobs.handler
    async def report(n: int) -> None:
        ran.append(n)

    id = (await jobs.enqueue("report", {"n": 7}, cron="0 8 * * *", key="k", tenant="acme", max_attempts=2)).id
    due = (await jobs.get(id)).due_ms
    page = await visitor.act("recur_run", id=id, back="/recurring")
    assert "report runs once more, as job" in page.words
    await jobs.tick()
    assert ran == [7]
    assert (await jobs.get(id)).due_ms == due  # its schedule stays as it is
    entry = (await jobs.audit_log()).entries[0]
    assert (entry.what, entry.who, entry.count, entry.ids[1]) == ("run_now", "dashboard", 1, id)
    extra = await jobs.get(entry.ids[0])
    assert (extra.recurrence, extra.unique_key, extra.tenant, extra.options.max_attempts) == (None, None, "acme", 2)
    await visitor.act("recur_pause", id=id)
    await visitor.act("recur_run", id=id)  # also while it is paused
    await jobs.tick()
    assert ran == [7, 7]


async def test_a_schedule_is_previewed_and_pinned(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    id = await _daily(jobs)
    page = await visitor.get(f"/ask/recur_edit?id={id}&back=/recurring")
    assert "Now: Every day at 08:00 UTC." in page.words
    assert 'value="0 8 * * *"' in page.text
    assert page.text.count("<li><time") == 5
    data = await visitor.json(f"/ask/recur_edit?id={id}&cron=0+10+*+*+*&timezone=Europe/Berlin")
    assert (data["schedule"], data["errors"]) == ("Every day at 10:00 Europe/Berlin", {})
    page = await visitor.act("recur_edit", id=id, cron="0 10 * * *", timezone="Europe/Berlin", back="/recurring")
    assert "The schedule of report is pinned" in page.words
    assert "by dashboard. The code says: Every day at 08:00 UTC." in page.words
    assert (await jobs.get(id)).due_ms == data["next_ms"][0]
    await _daily(jobs)  # the code states its own rule again
    row = await _row(visitor)
    assert (row["schedule"], row["is_pinned"]) == ("Every day at 10:00 Europe/Berlin", True)
    page = await visitor.act("recur_release", id=id, back="/recurring")
    assert "report follows its code again." in page.words
    assert (await _row(visitor))["schedule"] == "Every day at 08:00 UTC"
    page = await visitor.act("recur_release", id=id, back="/recurring")
    assert "Nothing was changed. the recurrence of the job is not pinned" in page.words


async def test_an_interval_begins_at_once(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    id = await _daily(jobs)
    data = await visitor.json(f"/ask/recur_edit?id={id}&every=10m")
    assert [ms - clock() for ms in data["next_ms"]] == [0, 600_000, 1_200_000, 1_800_000, 2_400_000]
    await visitor.act("recur_edit", id=id, every="10m")
    assert [ms - clock() for ms in (await _row(visitor))["next_ms"]] == [0, 600_000, 1_200_000, 1_800_000, 2_400_000]


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"cron": "nonsense"}, "cron"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"cron": "0 8 * * *", "every": "1h"}, "cron"),
        ({"timezone": "UTC"}, "cron"),
        ({"every": "often"}, "every"),
        ({"every": "0s"}, "every"),
        ({"cron": "0 8 * * *", "timezone": "Mars/Olympus"}, "timezone"),
        ({"cron": EVIL}, "cron"),
    ],
)
async def test_a_wrong_schedule_is_said_at_its_field(
    jobs: Client, visitor: Visitor, fields: dict[str, Any], wrong: str
) -> None:
    id = await _daily(jobs)
    page = await visitor.act("recur_edit", id=id, **fields, back="/recurring")
    assert "The schedule was not changed." in page.words
    assert "Edit the schedule of report" in page.words
    assert f'id="f-{wrong}-e"' in page.text
    assert page.text.count("aria-invalid") == 1
    assert EVIL not in page.text
    rule = (await jobs.get(id)).recurrence
    assert rule is not None
    assert (rule.cron, rule.pinned) == ("0 8 * * *", False)


async def test_the_form_warns_that_an_edit_removes_the_end(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    rule = Recurrence(key="k", every_ms=60_000, until_ms=clock() + 7_200_000)
    new = NewJob(id=jobs.store.new_id(), name="report", queue="default", payload_json=b"{}", recurrence=rule)
    id = (await jobs.store.enqueue([new]))[0].id
    assert "the edited schedule has no end" in (await visitor.get(f"/ask/recur_edit?id={id}")).words
    assert "until" in (await visitor.get("/recurring")).words


async def test_a_rule_of_another_program_that_cannot_be_read(jobs: Client, visitor: Visitor) -> None:
    rule = Recurrence(key=EVIL, cron=f"every {EVIL}")
    new = NewJob(id=jobs.store.new_id(), name="report", queue="default", payload_json=b"{}", recurrence=rule)
    id = (await jobs.store.enqueue([new]))[0].id
    page = await visitor.get("/recurring")
    assert page.status == 200
    assert "Its rule cannot be read: cron: expected" in page.words
    assert EVIL not in page.text
    page = await visitor.get(f"/ask/recur_edit?id={id}")
    assert (page.status, EVIL in page.text) == (200, False)
    await visitor.act("recur_edit", id=id, every="1h")
    assert (await _row(visitor))["schedule"] == "Every hour"


async def test_jobs_that_are_gone_or_do_not_recur(jobs: Client, visitor: Visitor) -> None:
    plain = (await jobs.enqueue("plain")).id
    for act in ("recur_pause", "recur_resume", "recur_run", "recur_edit", "recur_release"):
        page = await visitor.act(act, id=plain, back="/recurring")
        assert "expected the id of a recurring job" in page.words, act
        assert (await visitor.act(act, id="gone")).status == 404, act
    assert (await visitor.get(f"/ask/recur_edit?id={plain}")).status == 400
    assert (await visitor.get("/ask/recur_edit?id=gone")).status == 404
    assert (await jobs.get(plain)).held is None


async def test_permissions(jobs: Client) -> None:
    id = await _daily(jobs)
    reader = Visitor(Dashboard(jobs, authorize=lambda request: Access.READ))
    words = (await reader.get("/recurring")).words
    for label in ("Run now", "Edit…", "Release pin", "Resume"):
        assert label not in words
    for act in ("recur_pause", "recur_resume", "recur_run", "recur_edit", "recur_release"):
        assert (await reader.act(act, id=id, every="1h")).status == 403, act
    assert (await reader.get(f"/ask/recur_edit?id={id}")).status == 403
    assert (await jobs.audit_log()).entries == []


async def test_tenants_see_and_change_their_own_jobs_only(jobs: Client) -> None:
    theirs = await _daily(jobs, tenant="acme", key="a")
    other = (await jobs.enqueue("secret", every="1h", key="b", tenant="rival")).id
    actions = ("recur_pause", "recur_run", "recur_edit")
    tenant = Visitor(Dashboard(jobs, authorize=lambda request: Access(actions, tenants={"acme"})))
    page = await tenant.get("/recurring")
    assert "report" in page.words
    assert "secret" not in page.text
    # The week has the runs of these jobs only.
    week = (await tenant.json("/recurring"))["week"]
    assert max(count for day in week for count in day["hours"]) == 1
    for act in ("recur_pause", "recur_resume", "recur_run", "recur_edit", "recur_release"):
        assert (await tenant.act(act, id=other, every="1h")).status == 404, act
    assert (await tenant.get(f"/ask/recur_edit?id={other}")).status == 404
    assert (await tenant.get("/recurring?tenant=rival")).status == 403
    await tenant.act("recur_pause", id=theirs)
    assert (await jobs.get(theirs)).held is not None
    both = Visitor(Dashboard(jobs, authorize=lambda request: Access(tenants={"acme", "rival"})))
    assert "secret" in (await both.get("/recurring?tenant=rival")).words
    nobody = Visitor(Dashboard(jobs, authorize=lambda request: Access(tenants=())))
    assert (await nobody.get("/recurring")).status == 403


async def test_errors_of_runs_are_hidden(jobs: Client, clock: ManualClock) -> None:
    @jobs.handler(max_attempts=1)
    async def report() -> None:
        raise ValueError("password hunter2")

    await jobs.enqueue("report", every="1m", key="k")
    await jobs.tick()
    blind = Visitor(Dashboard(jobs, authorize=lambda request: Access()))
    for page in (await blind.get("/recurring"), await blind.get("/recurring", accept="application/json")):
        assert "hunter2" not in page.text
    assert "The last run failed: •••• hidden" in (await blind.get("/recurring")).words


async def test_many_recurring_jobs_are_paged(jobs: Client, visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(130):
        await jobs.enqueue(f"r{number:03}", every="1h", key=f"k{number}", delay=f"{number + 1}m")
    monkeypatch.setattr(import_module("jobmill.dashboard.screens.recurring"), "READ", 70)
    seen: list[str] = []
    path: str | None = "/recurring"
    pages = 0
    while path is not None:
        data = await visitor.json(path)
        pages += 1
        seen += [row["name"] for row in data["jobs"]]
        cursor = "" if data["next_cursor"] is None else f"&cursor={data['next_cursor']}"
        path = None if data["next_page"] is None else f"/recurring?page={data['next_page']}{cursor}"
    assert (sorted(seen), pages) == ([f"r{number:03}" for number in range(130)], 4)
    page = await visitor.get("/recurring")
    assert "70+ recurring jobs" in page.words
    assert "minimum number of runs per hour" in page.words
    assert "Next page" in page.words
    assert (await visitor.get("/recurring?page=x")).status == 400


async def test_texts_are_no_html(jobs: Client, visitor: Visitor) -> None:
    @jobs.handler(name="report", max_attempts=1)
    async def report() -> None:
        raise ValueError(f"\n{EVIL}")

    id = (await jobs.enqueue("report", every="1m", key=EVIL, tenant=EVIL)).id
    await jobs.tick()
    await jobs.pin(id, every="2m", who=EVIL)
    await jobs.hold(id, who=EVIL, note=EVIL)
    page = await visitor.get("/recurring")
    assert EVIL not in page.text
    assert f"Paused by {EVIL}: {EVIL}" in page.words


def test_the_week_as_a_picture() -> None:
    days = [CalendarDay(date=f"2026-11-{16 + n}", hours=[n * hour for hour in range(24)]) for n in range(7)]
    drawn = charts.week(days, True)
    assert drawn.count("<rect") == 6 * 23
    assert "<title>Tue 01:00, 1 run</title>" in drawn
    assert "<title>Sun 23:00, 138 runs</title>" in drawn
    assert "138+ runs" in charts.week(days, False)
    assert {name for name in ("h1", "h2", "h3") if f'"bar {name}"' in drawn} == {"h1", "h2", "h3"}
    # A job that runs in every hour is the background, also beside an hour that is nearly over.
    busy = [CalendarDay(date="2026-11-16", hours=[3, *[140] * 20, 280, 420, 560])]
    classes = re.findall('class="bar ([^"]*)"', charts.week(busy, True))
    assert classes == [*["h1"] * 21, "h2", "h3", ""]
    even = charts.week([CalendarDay(date="2026-11-16", hours=[4] * 24)], True)
    assert set(re.findall('class="bar ([^"]*)"', even)) == {"h1"}
    assert "style" not in drawn
    assert charts.week([CalendarDay(date="2026-11-16", hours=[0] * 24)], True).count("<rect") == 0


NEW: dict[str, Any] = {
    "name": "digest",
    "payload": '{"to": "ada"}',
    "key": "monday-mail",
    "queue": "mail",
    "tenant": "",
}


async def test_a_schedule_is_added(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    assert "Add a schedule…" in (await visitor.get("/recurring")).words
    form = await visitor.get("/ask/recur_add?back=/recurring")
    assert "The first runs" not in form.text
    assert 'value="UTC"' in form.text
    page = await visitor.act(
        "recur_add", **NEW, cron="0 8 * * 1", every="", timezone="Europe/Berlin", back="/recurring"
    )
    assert "digest is added. Every Monday at 08:00 Europe/Berlin." in page.words
    (job,) = (await jobs.find(recurring=True)).jobs
    assert (job.name, job.queue, job.payload, job.tenant) == ("digest", "mail", {"to": "ada"}, None)
    rule = job.recurrence
    assert rule is not None
    assert (rule.key, rule.cron, rule.timezone, rule.pinned) == ("monday-mail", "0 8 * * 1", "Europe/Berlin", False)
    (entry,) = (await jobs.audit_log()).entries
    assert (entry.what, entry.who, entry.queue, list(entry.ids)) == ("enqueue", "dashboard", "mail", [job.id])
    assert entry.note == "recurring: Every Monday at 08:00 Europe/Berlin"


async def test_a_new_schedule_has_the_queue_of_its_handler(jobs: Client, visitor: Visitor) -> None:
    @jobs.handler(queue="letters")
    async def digest(to: str) -> None: ...

    form = (await visitor.get("/ask/recur_add?back=/recurring")).text
    (queue,) = re.findall('<input[^>]* name="queue"[^>]*>', form)
    assert 'value=""' in queue
    assert "required" not in queue
    await visitor.act("recur_add", **{**NEW, "queue": ""}, every="10m", back="/recurring")
    assert [job.queue for job in (await jobs.find(recurring=True)).jobs] == ["letters"]


async def test_a_new_schedule_is_previewed(visitor: Visitor, clock: ManualClock) -> None:
    data = await visitor.json("/ask/recur_add?every=10m")
    assert [ms - clock() for ms in data["next_ms"]] == [0, 600_000, 1_200_000, 1_800_000, 2_400_000]
    page = await visitor.get("/ask/recur_add?cron=0+8+*+*+1-5&timezone=Europe/Berlin")
    assert "Every weekday at 08:00 Europe/Berlin" in page.words
    assert page.text.partition("The first runs")[2].count("<li>") >= 5
    page = await visitor.get("/ask/recur_add?cron=0+8+*+*&timezone=UTC")
    assert "Cron expression: Must be" in page.words
    page = await visitor.get("/ask/recur_add?every=1h&timezone=Mars")
    assert "Time zone: Must be" in page.words


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"name": ""}, "name"),
        ({"payload": "{"}, "payload"),
        ({"key": ""}, "key"),
        ({"key": "taken"}, "key"),
        ({"cron": ""}, "cron"),
        ({"every": "1h"}, "cron"),
        ({"cron": "x"}, "cron"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"cron": "", "every": "soon"}, "every"),
        ({"timezone": "Mars"}, "timezone"),
        ({"queue": "a b\n"}, "queue"),
    ],
)
async def test_a_new_schedule_that_is_wrong(
    jobs: Client, visitor: Visitor, changed: dict[str, Any], field: str
) -> None:
    taken = (await jobs.enqueue("report", every="1h", key="taken")).id
    given = {**NEW, "cron": "0 8 * * 1", "timezone": "UTC", **changed}
    page = await visitor.act("recur_add", **given, back="/recurring", form="/ask/recur_add?back=/recurring")
    assert page.status == 400, page.words
    assert "Nothing was changed." in page.words
    assert f'id="f-{field}-e"' in page.text
    assert "monday-mail" in page.text or field == "key"
    assert [job.id for job in (await jobs.find()).jobs] == [taken]
    assert (await jobs.get(taken)).payload == {}
    answer = await visitor.post("/acts/recur_add", {"accept": "application/json"}, **given)
    assert answer.status == 400
    assert (await jobs.audit_log()).entries == []


def _always(access: Access, request: object) -> Access:
    return access


async def test_who_may_add_a_schedule(jobs: Client) -> None:
    given = {**NEW, "cron": "0 8 * * 1"}
    for access in (Access.READ, Access({"enqueue"}), Access({"recur_edit"})):
        some = Visitor(Dashboard(jobs, authorize=partial(_always, access)))
        assert "Add a schedule" not in (await some.get("/recurring")).words
        assert (await some.get("/ask/recur_add")).status == 403
        assert (await some.act("recur_add", **given)).status == 403
    fixed = Visitor(Dashboard(jobs, read_only=True))
    assert (await fixed.act("recur_add", **given)).status == 403
    tenant = Visitor(Dashboard(jobs, authorize=lambda _: Access({"enqueue", "recur_edit"}, tenants={"acme"})))
    assert 'value="acme"' in (await tenant.get("/ask/recur_add")).text
    assert (await tenant.act("recur_add", **given)).status == 403
    assert (await jobs.find()).jobs == []
    await jobs.enqueue("secret", every="1h", key="theirs", tenant="rival")
    taken = {**given, "tenant": "acme", "key": "theirs", "form": "/ask/recur_add"}
    assert (await tenant.act("recur_add", **taken)).status == 400
    assert (await tenant.act("recur_add", **{**given, "tenant": "acme"}, back="/recurring")).status == 200
    assert len((await jobs.find(tenant="acme")).jobs) == 1


async def test_the_navigation_says_how_many_there_are(jobs: Client, visitor: Visitor) -> None:
    await _daily(jobs)
    await jobs.enqueue("plain")
    assert "Errors Recurring Flows Workers" in (await visitor.get("/audit")).words
    await visitor.app.reads.recurring_count()  # the loop of live updates
    assert "Errors Recurring 1 Flows Workers" in (await visitor.get("/audit")).words
