"""The list of queues, and acts on queues."""

from __future__ import annotations

import pytest

from jobmill import Access, Client, Dashboard
from jobmill.dashboard import ACTIONS
from jobmill.testing.contract.announce import card
from tests.dashboard.visitor import Visitor


async def test_queues_are_listed_the_most_urgent_first(jobs: Client, visitor: Visitor) -> None:
    await jobs.enqueue("send", queue="mail")
    await jobs.enqueue("send", queue="later", delay="1h")
    await jobs.queue("invoices").pause(who="ada", until="1h")
    page = await visitor.get("/queues")
    assert page.status == 200
    assert "mail no worker claims it 1 0 0 0" in page.words
    assert "invoices paused by ada until" in page.words
    assert [row["queue"] for row in (await visitor.json("/queues"))["queues"]] == ["mail", "invoices", "later"]


async def test_an_empty_store_says_what_to_do(visitor: Visitor) -> None:
    assert "No queues yet" in (await visitor.get("/queues")).words


async def test_a_queue_is_paused_and_resumed(jobs: Client, visitor: Visitor) -> None:
    page = await visitor.act("pause", queue="mail", note="api down", until="1h", back="/queues")
    assert "Queue mail is paused." in page.words
    pause = (await jobs.queue("mail").settings()).pause
    assert pause is not None
    assert (pause.who, pause.note) == ("dashboard", "api down")
    await visitor.act("resume", queue="mail")
    assert not (await jobs.queue("mail").settings()).paused


async def test_limits_are_set_and_removed(jobs: Client, visitor: Visitor) -> None:
    await visitor.act("limit", queue="mail", running_limit="4", rate_count="30", rate_per="1m")
    settings = await jobs.queue("mail").settings()
    assert settings.rate_limit is not None
    assert (settings.running_limit, settings.rate_limit.count, settings.rate_limit.per_ms) == (4, 30, 60_000)
    page = await visitor.act("limit", queue="mail", running_limit="two", back="/queues")
    assert "expected a whole number, for example 2, got 'two'" in page.words
    await visitor.act("limit", queue="mail", running_limit="", rate_count="")
    settings = await jobs.queue("mail").settings()
    assert (settings.running_limit, settings.rate_limit) == (None, None)


@pytest.mark.parametrize("act", ["pause", "resume", "limit"])
async def test_a_tenant_cannot_change_a_queue_of_all(jobs: Client, act: str) -> None:
    access = Access(ACTIONS, tenants={"acme"})
    visitor = Visitor(Dashboard(jobs, authorize=lambda request: access))
    assert (await visitor.act(act, queue="mail", running_limit="1")).status == 403
    settings = await jobs.queue("mail").settings()
    assert (settings.paused, settings.running_limit) == (False, None)


async def test_many_queues_and_many_workers_are_paged(jobs: Client, visitor: Visitor) -> None:
    for number in range(120):
        await jobs.enqueue("send", queue=f"queue-{number:03}")
        await jobs.store.announce(card(f"worker-{number:03}", started_ms=number), [])
    for path, rows, count in (("/queues", "queues", "queue_count"), ("/workers", "workers", "worker_count")):
        seen = []
        for page, size in ((1, 50), (2, 50), (3, 20)):
            data = await visitor.json(f"{path}?page={page}")
            assert (len(data[rows]), data[count], data["is_last_page"]) == (size, 120, page == 3)
            seen += [row.get("queue") or row["id"] for row in data[rows]]
        assert len(set(seen)) == 120
        shown = (await visitor.get(f"{path}?page=2")).words
        assert ("First page" in shown, "Next page" in shown, "120" in shown) == (True, True, True)
    assert "The 50 most urgent queues." in (await visitor.get("/")).words
