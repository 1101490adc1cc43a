"""Acts on one job, on selected jobs, and on all that match: the question before, the run, and what stays of it."""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import jobmill
from jobmill import Client, Dashboard
from jobmill.core.audit import AuditEntry
from jobmill.core.durations import to_datetime
from jobmill.core.tallies import Tally
from jobmill.dashboard import Access
from jobmill.dashboard.runs import BATCH, KEPT_MS, MAX_RUNS, BulkRun
from jobmill.errors import StoreUnavailable
from jobmill.stores.memory import MemoryStore
from jobmill.testing import ManualClock
from jobmill.testing.contract.announce import card
from tests.dashboard.visitor import Answer, Visitor

ACTS_ON_JOBS: dict[str, dict[str, Any]] = {
    "requeue": {},
    "cancel": {},
    "remove": {},
    "hold": {},
    "release": {},
    "reschedule": {"delay": "10m"},
    "reprioritize": {"priority": "7"},
}


@pytest.fixture
async def dashboard(jobs: Client) -> AsyncIterator[Dashboard]:
    made = quick(Dashboard(jobs, title="shop"))
    yield made
    await made.close()


def quick(dashboard: Dashboard) -> Dashboard:
    """A dashboard whose runs do not rest, and wait for a store for a moment only."""
    dashboard.runs.rest_s, dashboard.runs.first_pause_s, dashboard.runs.give_up_s = 0, 0.001, 0.02
    return dashboard


async def many(jobs: Client, count: int, **options: Any) -> list[str]:
    return [one.id for one in await jobs.enqueue_many(jobs.draft("send", **options) for _ in range(count))]


async def cancelled(jobs: Client, count: int, **options: Any) -> list[str]:
    ids = await many(jobs, count, **options)
    await jobs.cancel(ids)
    return ids


async def states(jobs: Client) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in await jobs.count():
        found[one.state] = found.get(one.state, 0) + one.count
    return found


async def until(condition: Callable[[], Awaitable[bool] | bool]) -> None:
    async with asyncio.timeout(120):  # a busy machine takes long for hundreds of jobs in a server
        while True:
            met = condition()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(0)


def run_of(dashboard: Dashboard, answer: Answer) -> BulkRun:
    found = re.search(r"/runs/([\w-]+)", answer.headers["location"])
    assert found is not None
    return dashboard.runs.get(found[1])


async def start(visitor: Visitor, dashboard: Dashboard, act: str, **fields: Any) -> BulkRun:
    return run_of(dashboard, await visitor.act(act, follow=False, all="1", **fields))


async def finish(run: BulkRun) -> BulkRun:
    await until(lambda: run.is_over)
    return run


async def recorded(jobs: Client, what: str) -> list[AuditEntry]:
    """The entries of the audit log, once there is one of them."""
    await until(lambda: _has_entry(jobs, what))
    return (await jobs.audit_log(what=what)).entries


async def _has_entry(jobs: Client, what: str) -> bool:
    return bool((await jobs.audit_log(what=what)).entries)


def ask(act: str, *ids: str, **query: Any) -> str:
    return "/ask/jobs?" + urlencode([("act", act), *(("id", id) for id in ids), *query.items()])


# ---------------------------------------------------------------------------------------------------- by id


@pytest.mark.parametrize("act", ACTS_ON_JOBS)
async def test_each_act_changes_the_jobs_with_these_ids(jobs: Client, visitor: Visitor, act: str) -> None:
    ids = await many(jobs, 3)
    if act == "requeue":
        await jobs.cancel(ids)
    if act == "release":
        await jobs.hold(ids)
    page = await visitor.act(act, id=ids[:2], note="for ada", back="/queues", **ACTS_ON_JOBS[act])
    assert "2 jobs were" in page.words, page.words
    (entry,) = (await jobs.audit_log(what=act, who="dashboard")).entries
    assert (entry.count, set(entry.ids), entry.note) == (2, set(ids[:2]), "for ada")
    found = [job for job in await jobs.store.get(ids) if job is not None]
    expected = {
        "requeue": lambda: [job.state for job in found] == ["waiting", "waiting", "cancelled"],
        "cancel": lambda: [job.state for job in found] == ["cancelled", "cancelled", "waiting"],
        "remove": lambda: [job.id for job in found] == ids[2:],
        "hold": lambda: [job.held and job.held.note for job in found] == ["for ada", "for ada", None],
        "release": lambda: [job.held is None for job in found] == [True, True, False],
        "reschedule": lambda: [job.due_ms - job.created_ms for job in found] == [600_000, 600_000, 0],
        "reprioritize": lambda: [job.priority for job in found] == [7, 7, 0],
    }
    assert expected[act]()


async def test_refused_jobs_are_named_by_reason(jobs: Client, visitor: Visitor) -> None:
    ids = await cancelled(jobs, 5, unique_key=None)
    waiting = await many(jobs, 5)
    page = await visitor.act("requeue", id=[*ids, *waiting, "nope"], back="/queues")
    assert "5 jobs were requeued." in page.words
    named = f"({waiting[0]}, {waiting[1]}, {waiting[2]} and 2 more)"
    assert f"5 jobs were left as they are: they are waiting {named}." in page.words
    assert "1 job was left as it is: there is no such job (nope)." in page.words
    again = await visitor.post("/acts/requeue", {"accept": "application/json"}, id=ids[0])
    assert again.status == 409
    assert again.json["text"] == "No job was requeued."
    assert len((await jobs.audit_log(what="requeue")).entries) == 1, "nothing was changed: no entry"


async def test_jobs_with_one_unique_key_are_one_reason(jobs: Client, visitor: Visitor) -> None:
    ids = []
    for _ in range(4):
        ids.append((await jobs.enqueue("send", unique_key="k")).id)
        await jobs.cancel(ids[-1])
    preview = await visitor.json(ask("requeue", *ids))
    assert (preview["matching"], preview["changed"]) == (4, 1)
    assert [(one["reason"], one["count"]) for one in preview["refused"]] == [("a live job has the same unique key", 3)]
    page = await visitor.act("requeue", id=ids, back="/queues")
    assert "1 job was requeued." in page.words
    assert "3 jobs were left as they are: a live job has the same unique key" in page.words


async def test_a_selection_is_requeued_over_a_period(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    ids = await cancelled(jobs, 4)
    await visitor.act("requeue", id=ids, spread="10m", spread_own="40s")
    found = [job for job in await jobs.store.get(ids) if job is not None]
    assert sorted(job.due_ms - clock() for job in found) == [0, 10_000, 20_000, 30_000]


async def test_a_time_is_of_the_zone_of_the_visitor(jobs: Client, visitor: Visitor) -> None:
    (id,) = await many(jobs, 1)
    visitor.cookies["jobmill_zone"] = "Europe/Berlin"
    await visitor.act("reschedule", id=id, due_at="2030-01-01T12:00")
    assert f"{(await jobs.get(id)).due_at:%H:%M %Z}" == "11:00 UTC"


@pytest.mark.parametrize(
    ("act", "fields", "text"),
    [
        ("requeue", {}, "id: expected the id of a job, or several, or all=1 for all that match"),
        ("requeue", {"q": "queue:mail"}, "id: expected the id of a job, or several, or all=1"),
        ("requeue", {"id": "a", "all": "1"}, "id: expected ids, or all=1, not both"),
        ("requeue", {"id": [f"x{n}" for n in range(1_001)]}, "id: expected at most 1,000 ids, got 1001"),
        ("requeue", {"id": "a", "spread": "soon"}, "spread: expected"),
        ("requeue", {"id": "a", "spread": "10m", "spread_own": "soon"}, "spread_own: expected a duration"),
        ("requeue", {"all": "1", "state": "nowhere"}, "state: expected one of"),
        ("requeue", {"all": "1", "q": '"'}, "quotation marks in pairs"),
        ("requeue", {"id": "a\0b"}, "id: expected the id of a job"),
        ("cancel", {"id": "a", "note": "x" * 2_000}, "note: expected"),
        ("reschedule", {"id": "a"}, "due_at: expected a delay, for example 10m, or a time, and not both"),
        ("reschedule", {"id": "a", "delay": "1m", "due_at": "2030-01-01"}, "due_at: expected a delay"),
        ("reschedule", {"id": "a", "due_at": "1h"}, "due_at: expected a time"),
        ("reprioritize", {"id": "a"}, "priority: expected a whole number"),
        ("reprioritize", {"all": "1", "priority": "-1"}, "priority: expected a whole number from 0"),
    ],
)
async def test_wrong_input_changes_nothing_and_says_why(
    jobs: Client, visitor: Visitor, act: str, fields: dict[str, Any], text: str
) -> None:
    await jobs.enqueue("send", id="a")
    before = await jobs.get("a")
    page = await visitor.act(act, back="/queues", **fields)
    assert text in page.words
    assert await jobs.get("a") == before


async def test_a_refused_form_is_shown_again_with_what_was_written(jobs: Client, visitor: Visitor) -> None:
    ids = await many(jobs, 3)
    question = await visitor.get(ask("reschedule", *ids, back="/queues"))
    fields: dict[str, Any] = {
        name: unescape(value) for name, value in re.findall(r'name="(form|back)" value="([^"]*)"', question.text)
    }
    page = await visitor.act("reschedule", id=ids, delay="soon", note="for ada", **fields)
    assert page.status == 400
    assert "Reschedule 3 jobs?" in page.words, "all of them"
    assert re.search(r'id="f-delay" name="delay" aria-invalid="true"[^>]* value="soon"', page.text)
    assert "Must be a duration" in page.words
    assert 'value="for ada"' in page.text
    assert {job.due_ms - job.created_ms for job in await jobs.store.get(ids) if job is not None} == {0}
    page = await visitor.act("reschedule", id=ids, delay="10m", **fields)
    assert "3 jobs were rescheduled." in page.words


# ---------------------------------------------------------------------------------------------------- who may


@pytest.mark.parametrize("act", [*ACTS_ON_JOBS, "stop_run"])
async def test_an_act_needs_its_permission(jobs: Client, act: str) -> None:
    (id,) = await many(jobs, 1)
    before = await jobs.get(id)
    visitor = Visitor(Dashboard(jobs, authorize=lambda request: Access.READ))
    both: tuple[dict[str, Any], ...] = ({"id": id}, {"all": "1"})
    for fields in both:
        assert (await visitor.act(act, run="any", **fields, **ACTS_ON_JOBS.get(act, {}))).status == 403
    if act in ACTS_ON_JOBS:
        assert (await visitor.get(ask(act, id))).status == 403
    assert await jobs.get(id) == before


async def test_a_visitor_acts_on_jobs_of_the_own_tenants_only(jobs: Client) -> None:
    (ours,), (theirs,), (nobodys,) = [await many(jobs, 1, tenant=tenant) for tenant in ("acme", "other", None)]
    access = Access(["cancel"], tenants=["acme"], who="ada")
    dashboard = quick(Dashboard(jobs, authorize=lambda request: access))
    visitor = Visitor(dashboard)
    preview = await visitor.json(ask("cancel", ours, theirs, nobodys))
    assert (preview["matching"], preview["changed"]) == (3, 1)
    done = (await visitor.post("/acts/cancel", {"accept": "application/json"}, id=[ours, theirs, nobodys])).json
    assert done["count"] == 1
    assert done["details"] == [f"2 jobs were left as they are: there is no such job ({theirs}, {nobodys})."]
    await jobs.requeue(ours)
    run = await finish(await start(visitor, dashboard, "cancel"))
    assert (run.total, run.done) == (1, 1)
    assert [(await jobs.get(id)).state for id in (ours, theirs, nobodys)] == ["cancelled", "waiting", "waiting"]
    assert (await visitor.json(ask("cancel", all="1")))["chips"] == ["tenant:acme"]
    assert (await visitor.json(ask("cancel", all="1", q="tenant:acme")))["chips"] == ["tenant:acme"]
    assert (await visitor.act("cancel", all="1", q="tenant:other")).status == 403
    assert (await visitor.get(ask("cancel", all="1", q="tenant:other"))).status == 403


async def test_only_who_may_do_the_act_may_stop_it_and_see_it(jobs: Client) -> None:
    await many(jobs, 3 * BATCH, tenant="acme")
    access = Access(["cancel"], tenants=["acme"], who="ada")
    dashboard = quick(Dashboard(jobs, authorize=lambda request: access))
    dashboard.runs.rest_s = 60
    visitor = Visitor(dashboard)
    run = await start(visitor, dashboard, "cancel")
    await until(lambda: run.done > 0)
    assert "Stop" in (await visitor.get(f"/runs/{run.id}")).words
    access = Access(["cancel"], tenants=["other"])
    assert (await visitor.get(f"/runs/{run.id}")).status == 404
    assert (await visitor.act("stop_run", run=run.id)).status == 404
    access = Access(["hold"])
    assert (await visitor.act("stop_run", run=run.id)).status == 403
    page = await visitor.get(f"/runs/{run.id}")
    assert page.status == 200
    assert "Stop" not in page.words
    assert not run.stopping.is_set()
    await dashboard.close()


# ---------------------------------------------------------------------------------------------------- the question


async def test_the_question_says_what_then_happens(
    jobs: Client, visitor: Visitor, dashboard: Dashboard, clock: ManualClock
) -> None:
    await cancelled(jobs, 40, queue="mail")
    for _ in range(3):
        await cancelled(jobs, 1, queue="mail", unique_key="k")
    await many(jobs, 1, queue="mail", unique_key="k")
    await many(jobs, 4, queue="mail")
    await cancelled(jobs, 9, queue="other")
    query = {"q": "queue:mail", "all": "1"}
    preview = await visitor.json(ask("requeue", **query))
    assert preview["heading"] == "Requeue 48 jobs?"
    assert preview["confirm"] == "Requeue 40 jobs"
    assert (preview["matching"], preview["changed"], preview["examined"]) == (48, 40, None)
    reasons = {one["reason"]: one["count"] for one in preview["refused"]}
    assert reasons == {"a live job has the same unique key": 3, "the job is waiting or running": 5}
    page = await visitor.get(ask("requeue", **query))
    assert "5 will be left as they are Reason: they are waiting or running." in page.words
    assert "3 will be left as they are Reason: a live job has the same unique key (" in page.words
    run = await finish(await start(visitor, dashboard, "requeue", q="queue:mail"))
    assert run.done == preview["changed"]
    assert {one.reason: one.count for one in run.refused.groups} == reasons
    words = (await visitor.get(f"/runs/{run.id}")).words
    assert "40 of 48 jobs were requeued." in words
    assert "5 jobs were left as they are: they are waiting or running." in words
    assert "3 jobs were left as they are: a live job has the same unique key" in words
    (entry, *_) = (await jobs.audit_log(what="requeue")).entries
    assert entry.count == 40
    assert entry.note == "5 refused: the job is waiting or running; 3 refused: a live job has the same unique key"


@pytest.mark.parametrize("act", ACTS_ON_JOBS)
async def test_for_each_act_the_numbers_are_those_of_the_run(
    jobs: Client, visitor: Visitor, dashboard: Dashboard, act: str
) -> None:
    """Jobs in all states but running, some held by a person, one by something else too."""
    await many(jobs, 5)
    held = await many(jobs, 4)
    await jobs.hold(held)
    await cancelled(jobs, 3)
    preview = await visitor.json(ask(act, all="1"))
    assert preview["matching"] == 12
    assert sum(one["count"] for one in preview["refused"]) + preview["changed"] == 12
    run = await finish(await start(visitor, dashboard, act, **ACTS_ON_JOBS[act]))
    assert run.done == preview["changed"] == {"requeue": 3, "cancel": 9, "remove": 12, "release": 4}.get(act, 9)
    (entry,) = [one for one in await recorded(jobs, act) if one.who == "dashboard"]
    assert entry.count == run.done


async def test_a_tab_is_part_of_the_question(jobs: Client, visitor: Visitor) -> None:
    await cancelled(jobs, 2, queue="mail")
    page = await visitor.get(ask("requeue", q="queue:mail", state="cancelled", all="1", back="/jobs?q=queue%3Amail"))
    assert "Requeue 2 cancelled jobs?" in page.words
    assert "queue:mail state:cancelled 2 will be requeued" in page.words
    assert page.words.count("Requeue 2 jobs") == 1
    assert re.search(r'<button form="nothing" data-do="close" autofocus>Do nothing</button>', page.text)
    assert '<input type="hidden" name="q" value="queue:mail">' in page.text
    assert (await visitor.json(ask("requeue", state="due", all="1")))["changed"] == 0
    await many(jobs, 1, delay="1h")
    assert (await visitor.json(ask("cancel", state="later", all="1")))["heading"] == "Cancel 1 job due later?"


async def test_where_nothing_can_be_changed_there_is_no_button_for_it(jobs: Client, visitor: Visitor) -> None:
    ids = await many(jobs, 2)
    page = await visitor.get(ask("requeue", *ids))
    assert "No job will be changed" in page.words
    assert "2 will be left as they are Reason: they are waiting" in page.words
    assert "Note for the audit log" not in page.words


async def test_the_first_thousand_are_examined_and_the_run_counts_all(
    jobs: Client, visitor: Visitor, dashboard: Dashboard, clock: ManualClock
) -> None:
    """The page says what it knows of which jobs. Those that were cancelled last are examined first."""
    for count, key in ((3, "k"), (1_100, None), (2, "k")):
        for _ in range(count if key else 1):
            await cancelled(jobs, 1 if key else count, unique_key=key)
        clock.advance(1)
    await many(jobs, 1, unique_key="k")
    query = {"state": "cancelled", "all": "1"}
    preview = await visitor.json(ask("requeue", **query))
    assert (preview["matching"], preview["examined"], preview["changed"]) == (1_105, 1_000, 1_103)
    page = await visitor.get(ask("requeue", **query))
    assert "Requeue 1,105 cancelled jobs?" in page.words
    assert "1,103 will be requeued at most" in page.words
    assert "2 of the first 1,000 will be left as they are Because a live job has the same unique key (" in page.words
    assert "The first 1,000 jobs were examined. The other 105 are examined when it is their turn." in page.words
    assert "Requeue up to 1,103 jobs" in page.words
    assert (await visitor.json(ask("remove", **query)))["examined"] is None, "only states decide"
    run = await finish(await start(visitor, dashboard, "requeue", state="cancelled"))
    words = (await visitor.get(f"/runs/{run.id}")).words
    assert "1,100 of 1,105 jobs were requeued. 5 jobs were left as they are: a live job has the same" in words


async def test_jobs_that_are_held_already_are_named(jobs: Client, visitor: Visitor) -> None:
    ids = await many(jobs, 4, queue="mail")
    await jobs.hold(ids[:2])
    sentence = "2 of them are held already and get your name and note."
    assert (await visitor.json(ask("hold", *ids)))["notes"] == [sentence]
    assert sentence in (await visitor.get(ask("hold", all="1", q="queue:mail"))).words
    assert (await visitor.json(ask("hold", *ids[2:])))["notes"] == []
    page = await visitor.get(ask("release", all="1", q="queue:mail"))
    assert "2 will be released" in page.words
    assert "2 will be left as they are Reason: they are not held." in page.words


async def test_unique_keys_that_cannot_all_be_compared_are_named(jobs: Client, visitor: Visitor) -> None:
    old = [*(await cancelled(jobs, 1, unique_key="a")), *(await cancelled(jobs, 1, unique_key="b"))]
    await many(jobs, 1_001)
    preview = await visitor.json(ask("requeue", *old))
    assert (preview["confirm"], preview["unknown_keys"]) == ("Requeue up to 2 jobs", 2)
    assert preview["notes"] == [
        "2 of them have a unique key. A job is left as it is if a live job has the same key by then."
    ]
    assert (await visitor.json(ask("requeue", old[0])))["confirm"] == "Requeue 1 job", "one key is looked up exactly"
    await many(jobs, 1, unique_key="a")
    visitor.app.reads.forget()
    assert (await visitor.json(ask("requeue", old[0])))["changed"] == 0


async def test_a_count_that_was_cut_off_says_so(
    jobs: Client, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["jobmill.dashboard.screens.ask_jobs"], "COUNTED", 5)
    await many(jobs, 8)
    preview = await visitor.json(ask("cancel", all="1"))
    assert (preview["heading"], preview["confirm"]) == ("Cancel 5+ jobs?", "Cancel 5+ jobs")
    await cancelled(jobs, 2)
    visitor.app.reads.forget()
    preview = await visitor.json(ask("requeue", all="1"))
    assert (preview["heading"], preview["confirm"]) == ("Requeue 7+ jobs?", "Requeue 2 jobs")


async def test_all_that_match_are_meant_even_if_some_are_ticked_too(jobs: Client, visitor: Visitor) -> None:
    ids = await many(jobs, 5)
    page = await visitor.get(ask("cancel", ids[0], ids[1], all="1"))
    assert "Cancel 5 jobs?" in page.words
    assert 'name="id"' not in page.text


async def test_the_question_says_how_fast_and_until_when(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    clock.now_ms -= clock() % 60_000
    past = [Tally(start_ms=clock() - n * 60_000, queue="mail", name="send", succeeded=60) for n in range(1, 30)]
    await jobs.store.announce(card("w1"), past)
    await cancelled(jobs, 1_200, queue="mail")
    await many(jobs, 60, queue="mail")
    path = ask("requeue", q="queue:mail", state="cancelled", all="1")
    preview = await visitor.json(path)
    assert preview["spread"] == "10m"
    soon, late = [to_datetime(clock() + minutes * 60_000).strftime("%H:%M:%S") for minutes in (21, 60)]
    assert preview["spread_text"] == (
        "About 120 a minute over 10 minutes or about 20 a minute over 1 hour. "
        "Queue mail finishes about 60 a minute, and 60 jobs are due before them: "
        f"the last would end at about {soon} (at once), {soon} (10 minutes), {late} (1 hour)."
    )
    assert preview["spread_text"] in (await visitor.get(path)).words
    clock.advance(11 * 60)
    visitor.app.reads.forget()
    text = (await visitor.json(path))["spread_text"]
    assert text.endswith("No job of queue mail has ended in the last 10 minutes.")


@pytest.mark.parametrize(
    "query", [{}, {"act": "explode", "id": "a"}, {"act": "cancel"}, {"act": "cancel", "id": "a\0"}]
)
async def test_a_question_that_cannot_be_read(visitor: Visitor, query: dict[str, str]) -> None:
    assert (await visitor.get(f"/ask/jobs?{urlencode(query)}")).status == 400


async def test_texts_of_visitors_are_escaped(jobs: Client, visitor: Visitor, dashboard: Dashboard) -> None:
    evil = "<script>alert(1)</script>"
    pages = [await visitor.get(ask("cancel", evil)), await visitor.get(ask("cancel", q=evil, all="1", back=evil))]
    run = await finish(await start(visitor, dashboard, "cancel", q=evil, note=evil))
    pages.append(await visitor.get(f"/runs/{run.id}"))
    pages.append(await visitor.act("cancel", id=evil, back="/queues"))
    for page in pages:
        assert page.status == 200
        assert "<script>alert" not in page.text
        assert "alert(1)" in page.text


# ---------------------------------------------------------------------------------------------------- runs


@pytest.fixture(params=["memory", "sqlite"])
async def large(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    """8,000 jobs that can be requeued."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    async with jobmill.connect(url) as jobs:
        await cancelled(jobs, 8_000, queue="mail")
        yield jobs


@pytest.mark.slow
async def test_8000_jobs_are_requeued_and_stopped_half_way(large: Client) -> None:
    dashboard = quick(Dashboard(large))
    visitor = Visitor(dashboard)
    preview = await visitor.json(ask("requeue", q="queue:mail", state="cancelled", all="1"))
    assert (preview["matching"], preview["heading"]) == (8_000, "Requeue 8,000 cancelled jobs?")
    run = await start(visitor, dashboard, "requeue", q="queue:mail", state="cancelled", note="api is back", spread="1h")
    await until(lambda: run.done >= 4_000)
    await visitor.act("stop_run", run=run.id)
    await finish(run)
    assert (run.status, run.total) == ("stopped", 8_000)
    assert 4_000 <= run.done < 8_000
    assert await states(large) == {"waiting": run.done, "cancelled": 8_000 - run.done}
    page = await visitor.get(f"/runs/{run.id}")
    assert (
        f"Stopped by dashboard: {run.done:,} of 8,000 jobs were requeued. The other jobs were not changed."
        in page.words
    )
    (entry,) = (await large.audit_log(what="requeue")).entries
    assert entry.filter is not None
    assert (entry.filter["queue"], *entry.filter["states"], entry.queue) == ("mail", "cancelled", "mail")
    assert entry.count == run.done
    assert entry.note == f"api is back; stopped by dashboard after {run.done:,} of 8,000"
    run = await finish(await start(visitor, dashboard, "requeue", q="queue:mail"))
    assert await states(large) == {"waiting": 8_000}
    left = 8_000 - run.done
    words = (await visitor.get(f"/runs/{run.id}")).words
    assert (
        f"{run.done:,} of 8,000 jobs were requeued. {left:,} jobs were left as they are: they are waiting or running."
        in words
    )
    await dashboard.close()


async def test_a_run_is_spread_over_a_period(
    jobs: Client, visitor: Visitor, dashboard: Dashboard, clock: ManualClock
) -> None:
    count = 2 * BATCH + 100
    await cancelled(jobs, count)
    run = await finish(await start(visitor, dashboard, "requeue", spread="10m"))
    assert run.done == count
    dues = sorted([job.due_ms - clock() async for job in jobs.find_all()])
    assert (dues[0], dues[-1]) == (0, round(600_000 * (count - 1) / count))
    steps = [later - earlier for earlier, later in itertools.pairwise(dues)]
    assert max(steps) - min(steps) <= 1


async def test_a_job_that_fails_again_at_once_is_requeued_once(
    jobs: Client, visitor: Visitor, dashboard: Dashboard, clock: ManualClock
) -> None:
    runs = dict[str, int]()

    @jobs.handler(name="send", max_attempts=1)
    async def send(context: jobmill.Context) -> None:
        runs[context.job.id] = runs.get(context.job.id, 0) + 1
        raise ValueError("again")

    ids = await many(jobs, 3 * BATCH)
    await jobs.tick(3 * BATCH)
    clock.advance(1)
    run = await start(visitor, dashboard, "requeue", state="failed")
    while not run.is_over:
        clock.advance(1)
        await jobs.tick(BATCH)
    await jobs.tick(3 * BATCH)
    assert runs == dict.fromkeys(ids, 2)
    assert run.done == 3 * BATCH


async def test_two_runs_at_the_same_time(jobs: Client, visitor: Visitor, dashboard: Dashboard) -> None:
    await cancelled(jobs, 3 * BATCH, queue="mail")
    await many(jobs, 2 * BATCH + 1, queue="images")
    first = await start(visitor, dashboard, "requeue", q="queue:mail")
    second = await start(visitor, dashboard, "reprioritize", q="queue:images", priority="3")
    assert not first.is_over
    assert not second.is_over
    await asyncio.gather(finish(first), finish(second))
    assert (first.done, second.done) == (3 * BATCH, 2 * BATCH + 1)
    assert {job.priority async for job in jobs.find_all(queue="images")} == {3}
    assert (await visitor.json(f"/runs/{second.id}"))["status"] == "done"


async def test_the_page_of_a_run_shows_how_far_it_is(jobs: Client, visitor: Visitor, dashboard: Dashboard) -> None:
    await cancelled(jobs, 4 * BATCH)
    dashboard.runs.rest_s = 60
    run = await start(visitor, dashboard, "requeue", note="why not")
    assert "The dashboard counts the jobs that match." in (await visitor.get(f"/runs/{run.id}")).words
    await until(lambda: run.done > 0)
    page = await visitor.get(f"/runs/{run.id}")
    assert "250 of 1,000 jobs requeued so far." in page.words
    assert '<progress aria-label="Requeue 1,000 jobs" max="1000" value="250">' in page.text
    assert 'data-live="second"' in page.text
    assert "why not" in page.words
    page = await visitor.act("stop_run", run=run.id)
    assert run.stopping.is_set()
    await finish(run)
    page = await visitor.get(f"/runs/{run.id}")
    assert 'data-live=""' in page.text
    assert 'action="/acts/stop_run"' not in page.text
    assert (await visitor.act("stop_run", run=run.id)).status == 200, "stopped already"
    assert run.done == 250


async def test_a_dashboard_that_closes_ends_its_runs_after_the_present_batch(
    jobs: Client, visitor: Visitor, dashboard: Dashboard
) -> None:
    await cancelled(jobs, 3 * BATCH)
    dashboard.runs.rest_s = 60
    run = await start(visitor, dashboard, "requeue")
    await until(lambda: run.done == BATCH)
    await dashboard.close()
    assert (run.status, run.done) == ("stopped", BATCH)
    (entry,) = await recorded(jobs, "requeue")
    assert entry.note == f"stopped by the end of the dashboard after {BATCH} of {3 * BATCH}"


async def test_runs_are_kept_for_an_hour_and_a_hundred_at_most(
    jobs: Client, visitor: Visitor, dashboard: Dashboard, clock: ManualClock
) -> None:
    first = await finish(await start(visitor, dashboard, "cancel"))
    clock.advance(KEPT_MS / 1_000 - 1)
    assert (await visitor.get(f"/runs/{first.id}")).status == 200
    for _ in range(MAX_RUNS):
        await finish(await start(visitor, dashboard, "cancel"))
    page = await visitor.get(f"/runs/{first.id}")
    assert page.status == 404
    assert "This run is gone" in page.words
    last = await finish(await start(visitor, dashboard, "cancel"))
    clock.advance(KEPT_MS / 1_000)
    assert (await visitor.get(f"/runs/{last.id}")).status == 404


async def test_more_runs_than_a_hundred_at_once_are_refused(
    jobs: Client, visitor: Visitor, dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobmill.dashboard.runs.MAX_RUNS", 1)
    await many(jobs, 2 * BATCH)
    dashboard.runs.rest_s = 60
    await start(visitor, dashboard, "cancel")
    page = await visitor.act("cancel", all="1", back="/queues")
    assert "Nothing was done, because too many actions run in the background now." in page.words


# --------------------------------------------------------------------------------------------------- a store that fails


class FailingStore(MemoryStore):
    """A store that does not answer some changes after the first one. It may make them all the same (`is_done`)."""

    failures = 0
    error: Exception = StoreUnavailable("no route to host")
    is_done = False
    changes = 0

    async def change(self, *given: Any) -> Any:
        self.changes += 1
        if self.changes > 1 and self.failures:
            self.failures -= 1
            if self.is_done:
                await super().change(*given)
            raise self.error
        return await super().change(*given)


@pytest.fixture
async def failing() -> AsyncIterator[tuple[FailingStore, Client]]:
    store = FailingStore()
    async with jobmill.connect(store=store) as jobs:
        await many(jobs, 3 * BATCH)
        yield store, jobs


async def test_a_run_waits_for_a_store_that_comes_back(failing: tuple[FailingStore, Client]) -> None:
    store, jobs = failing
    store.failures = 3
    dashboard = quick(Dashboard(jobs))
    run = await start(Visitor(dashboard), dashboard, "cancel")
    await until(lambda: run.problem is not None)
    words = (await Visitor(dashboard).get(f"/runs/{run.id}")).words
    assert "The store does not answer: no route to host. The dashboard tries again." in words
    await finish(run)
    assert (run.status, run.done, run.problem) == ("done", 3 * BATCH, None)
    assert await states(jobs) == {"cancelled": 3 * BATCH}
    await dashboard.close()


async def test_a_run_gives_up_after_a_while_and_says_so(failing: tuple[FailingStore, Client]) -> None:
    store, jobs = failing
    store.failures = 1_000
    dashboard = quick(Dashboard(jobs))
    run = await finish(await start(Visitor(dashboard), dashboard, "cancel", note="cleaning"))
    assert (run.status, run.done) == ("failed", BATCH)
    words = (await Visitor(dashboard).get(f"/runs/{run.id}")).words
    assert f"The run ended early: {BATCH} of {3 * BATCH} jobs were cancelled. The other jobs were not changed." in words
    assert "The store does not answer: no route to host." in words
    assert "It may have changed jobs that are not counted here." in words
    (entry,) = await recorded(jobs, "cancel")
    assert (entry.count, entry.note) == (BATCH, f"cleaning; failed after {BATCH} of {3 * BATCH}")
    await dashboard.close()


async def test_a_batch_without_an_answer_is_not_done_twice(failing: tuple[FailingStore, Client]) -> None:
    store, jobs = failing
    store.failures, store.is_done = 1, True
    dashboard = quick(Dashboard(jobs))
    run = await finish(await start(Visitor(dashboard), dashboard, "cancel"))
    assert (run.status, run.done, run.unanswered) == ("done", 2 * BATCH, 1)
    assert await states(jobs) == {"cancelled": 3 * BATCH}
    words = (await Visitor(dashboard).get(f"/runs/{run.id}")).words
    assert "The store did not answer 1 call. It may have changed jobs that are not counted here." in words
    await dashboard.close()


async def test_a_store_that_is_away_can_be_stopped(failing: tuple[FailingStore, Client]) -> None:
    store, jobs = failing
    store.failures = 1_000
    dashboard = Dashboard(jobs)
    dashboard.runs.rest_s, dashboard.runs.first_pause_s = 0, 60
    run = await start(Visitor(dashboard), dashboard, "cancel")
    await until(lambda: run.problem is not None)
    await Visitor(dashboard).act("stop_run", run=run.id)
    await finish(run)
    assert (run.status, run.done) == ("stopped", BATCH)
    assert len(await recorded(jobs, "cancel")) == 1
    await dashboard.close()


async def test_an_error_of_another_kind_ends_the_run(failing: tuple[FailingStore, Client]) -> None:
    store, jobs = failing
    store.failures, store.error = 1, RuntimeError("secret")
    dashboard = quick(Dashboard(jobs))
    run = await finish(await start(Visitor(dashboard), dashboard, "cancel"))
    assert (run.status, run.done) == ("failed", BATCH)
    words = (await Visitor(dashboard).get(f"/runs/{run.id}")).words
    assert "The dashboard failed: RuntimeError." in words
    assert "does not answer" not in words
    assert "secret" not in words
    assert len(await recorded(jobs, "cancel")) == 1
    await dashboard.close()


# ---------------------------------------------------------------------------------------------------- few calls


class TalkativeStore(MemoryStore):
    """Writes down the verbs that it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name in ("find", "get", "count", "count_up_to", "depths", "tallies", "workers", "settings", "stats"):
            super().__getattribute__("asked").append(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("act", ACTS_ON_JOBS)
async def test_a_question_is_at_most_five_calls_to_the_store(act: str) -> None:
    store = TalkativeStore()
    async with jobmill.connect(store=store) as jobs:
        ids = await cancelled(jobs, 1_100, queue="mail")
        for key in range(3):
            ids += await cancelled(jobs, 1, queue="mail", unique_key=f"k{key}")
        await jobs.hold(await many(jobs, 1_100, queue="mail"))
        visitor = Visitor(Dashboard(jobs))
        for path in (ask(act, all="1", q="queue:mail"), ask(act, *ids[-100:])):
            store.asked.clear()
            assert (await visitor.get(path)).status == 200
            assert 1 <= len(store.asked) <= 5, store.asked
