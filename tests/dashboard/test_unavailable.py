"""A store that does not answer: the page keeps its frame and says what goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import jobmill
from jobmill import Access, Client, Dashboard
from jobmill.core.values import Filter
from jobmill.dashboard.problems import problem_of
from jobmill.errors import LoginRefused, SchemaTooOld, StoreBusy, StoreUnavailable
from jobmill.stores.memory import MemoryStore
from jobmill.testing import ManualClock
from tests.dashboard.visitor import Visitor

VERBS = ("depths", "settings", "workers", "tallies", "find", "audit_log", "configure")


class Away(MemoryStore):
    """A store that can be away."""

    is_away = False

    def __getattribute__(self, name: str) -> Any:
        if name in VERBS and super().__getattribute__("is_away"):
            raise StoreUnavailable("no connection to <db>:5432")
        return super().__getattribute__(name)


@pytest.fixture
async def away(clock: ManualClock) -> AsyncIterator[Client]:
    async with jobmill.connect(store=Away(clock=clock)) as client:
        await client.enqueue("send", queue="mail")
        client.store.is_away = True  # type: ignore[attr-defined]
        yield client


@pytest.mark.parametrize("path", ["/", "/queues", "/queues/mail", "/?range=30d"])
async def test_the_page_keeps_its_frame_and_tries_again(away: Client, clock: ManualClock, path: str) -> None:
    visitor = Visitor(Dashboard(away))
    page = await visitor.get(path)
    assert page.status == 503
    clock.advance(42)
    page = await visitor.get(path)
    assert "Overview Jobs Queues Errors Recurring Flows Workers Audit System" in page.words
    assert "The store does not answer While the store is unavailable Running jobs continue." in page.words
    assert "The store does not answer (memory of this process) since" in page.words
    assert ", 42 s ago. This page loads again by itself when this is over." in page.words
    assert "The error of the store no connection to <db>:5432" in page.words
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in page.text
    assert 'data-live="second"' in page.text
    assert "You have read-only access" not in page.words


async def test_the_page_comes_back_with_the_store(away: Client, clock: ManualClock) -> None:
    dashboard = Dashboard(away)
    visitor = Visitor(dashboard)
    assert (await visitor.get("/queues")).status == 503
    away.store.is_away = False  # type: ignore[attr-defined]
    page = await visitor.get("/queues")
    assert page.status == 200
    assert "http-equiv" not in page.text
    assert dashboard.reads.down_since_ms is None
    # A later outage begins anew.
    away.store.is_away = True  # type: ignore[attr-defined]
    clock.advance(100)
    dashboard.reads.forget()
    assert "The figures below are 1 min 40 s old" in (await visitor.get("/queues")).words
    assert dashboard.reads.down_since_ms == clock()


# ---------------------------------------------------------------------------------------------------- last figures


@pytest.fixture
async def seen(away: Client) -> Dashboard:
    """The overview was read, and then the store went away."""
    dashboard = Dashboard(away)
    await _read_and_lose(dashboard)
    return dashboard


async def _read_and_lose(dashboard: Dashboard) -> None:
    store: Any = dashboard.jobs.store
    store.is_away = False
    assert (await Visitor(dashboard).get("/")).status == 200
    store.is_away = True
    dashboard.reads.forget()  # as after an act: the last figures stay


@pytest.mark.parametrize("path", ["/", "/queues", "/queues/mail"])
async def test_the_last_figures_are_shown_with_their_time(seen: Dashboard, clock: ManualClock, path: str) -> None:
    clock.advance(12)
    visitor = Visitor(seen)
    assert (await visitor.get(path)).status == 503
    clock.advance(30)
    page = await visitor.get(path)
    assert page.status == 503
    assert "The store does not answer (memory of this process) since" in page.words
    assert ". The figures below are 42 s old, from" in page.words
    assert "This page loads again by itself when this is over. Try now" in page.words
    stale = page.text[page.text.index('<div class="stale">') : page.text.index("While the store is unavailable")]
    assert "mail" in stale
    assert "The error of the store no connection to <db>:5432" in page.words
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in page.text
    assert "Overview Jobs Queues Errors Recurring Flows Workers Audit System" in page.words  # without counts
    # Nothing can be changed now, and nobody reads that this is a matter of permission.
    assert "<form method" not in stale
    assert "hx-get" not in stale
    assert "You have read-only access" not in page.words
    assert "permission" not in page.words


async def test_times_of_last_figures_do_not_go_on(seen: Dashboard, clock: ManualClock) -> None:
    clock.advance(3_600)
    words = (await Visitor(seen).get("/")).words
    assert "The figures below are 1 h 00 min old" in words
    assert "Due now 1 100% in queue mail Oldest due 0 ms" in words
    assert "Running 0" in words


async def test_other_pages_and_programs_get_the_error(seen: Dashboard) -> None:
    visitor = Visitor(seen)
    for path in ("/jobs", "/workers", "/errors", "/audit", "/recurring", "/system", "/?range=30d"):
        page = await visitor.get(path)
        assert (path, page.status, "The figures below" in page.words) == (path, 503, False)
    answer = await visitor.get("/", accept="application/json")
    assert (answer.status, answer.json["title"]) == (503, "The store does not answer")


async def test_last_figures_are_for_those_who_see_all_tenants(away: Client) -> None:
    accesses = [Access.ALL]
    dashboard = Dashboard(away, authorize=lambda request: accesses[-1])
    await _read_and_lose(dashboard)
    accesses.append(Access({"see_payload"}, tenants={"acme"}))
    visitor = Visitor(dashboard)
    assert (await visitor.get("/")).status == 303
    for path in ("/queues", "/queues/mail"):
        page = await visitor.get(path)
        assert (page.status, "mail" in page.words) == (403, False)
    page = await visitor.get("/jobs")
    assert (page.status, "mail" in page.words) == (503, False)


async def test_last_figures_need_no_call(seen: Dashboard) -> None:
    """The page tries to read what it needs, and makes no other call for its last figures."""
    reads = seen.reads.last(StoreUnavailable("x"))
    assert reads is not None
    with pytest.raises(StoreUnavailable, match="x"):
        await reads.find(Filter())
    assert [one.queue for one in await reads.depths()] == ["mail"]
    # Late jobs were never read: nothing was late. The figures do not depend on them.
    assert await reads.late() == []


@pytest.mark.parametrize(
    ("error", "title", "is_for_all"),
    [
        (StoreUnavailable, "The store does not answer", True),
        (StoreBusy, "The store is busy", True),
        (LoginRefused, "The store refuses the login", False),
        (SchemaTooOld, "The store needs a migration", False),
    ],
)
def test_each_reason_is_named(error: type[Exception], title: str, is_for_all: bool) -> None:
    problem = problem_of(error("why"))
    assert (problem.status, problem.title, problem.is_for_all) == (503, title, is_for_all)
    assert problem.text == "why"


async def test_programs_learn_since_when(away: Client, clock: ManualClock) -> None:
    answer = await Visitor(Dashboard(away)).get("/queues", accept="application/json")
    assert answer.status == 503
    assert answer.json["since_ms"] == clock()
    assert answer.json["text"] == "no connection to <db>:5432"


async def test_an_act_that_failed_is_not_repeated_by_itself(away: Client) -> None:
    page = await Visitor(Dashboard(away)).act("pause", queue="mail", form="/ask/pause/mail")
    assert page.status == 503
    assert "Your action may not have been done" in page.words
    assert "http-equiv" not in page.text


async def test_strangers_see_no_frame(jobs: Client) -> None:
    page = await Visitor(Dashboard(jobs, authorize=lambda request: None)).get("/")
    assert page.status == 403
    assert "Recurring" not in page.words
    assert "You have read-only access" not in page.words
