"""A store that does not answer: the page keeps its frame and says what goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import jobmill
from jobmill import Client, Dashboard
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
    assert "Overview Jobs Queues Errors Recurring Workers Audit System" in page.words
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
    assert ", 0 ms ago" in (await visitor.get("/queues")).words


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
