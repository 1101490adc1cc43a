"""Scripts in every text that others chose: each page shows them as text."""

from __future__ import annotations

import json

import pytest

from jobmill import Access, Client, Dashboard
from jobmill.dashboard.screens import SCREENS, Screen
from jobmill.testing import ManualClock
from tests.dashboard.hostile import SCRIPT, TEXT, Tags, addresses, fill
from tests.dashboard.visitor import Visitor


@pytest.fixture
async def known(jobs: Client, clock: ManualClock) -> dict[str, str]:
    return await fill(jobs, clock)


def test_the_check_finds_what_escapes() -> None:
    assert Tags(f"<p>{TEXT}</p>").wrong != []
    for bad in ("<a href=javascript:x>", "<p style=x>", "<p onclick=x>", "<a href=//evil>", "<script src=//e/static/>"):
        assert Tags(bad).wrong != [], bad


@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: screen.path)
async def test_every_page_shows_scripts_as_text(known: dict[str, str], visitor: Visitor, screen: Screen) -> None:
    begun = await visitor.act("requeue", follow=False, all="1", state="failed", note=TEXT)
    known["run"] = begun.headers["location"].removeprefix("/runs/").partition("?")[0]
    shown, pages = 0, addresses(known, [screen])
    for address in pages:
        page = await visitor.get(address)
        assert page.status < 500, (address, page.words)
        if page.status == 303:  # a search for an id leads to its page
            assert page.headers["location"].startswith("/jobs"), address
            continue
        if page.headers["content-type"].startswith("text/html"):
            assert Tags(page.text).wrong == [], address
            shown += page.status == 200
        data = await visitor.get(address, accept="application/json")
        assert (data.status, data.headers["content-type"]) == (page.status, "application/json")
        assert data.headers["x-content-type-options"] == "nosniff"
        json.loads(data.text)
    assert shown, pages


async def test_the_texts_are_on_the_pages(known: dict[str, str], visitor: Visitor) -> None:
    """So that the tests above can fail."""
    page = await visitor.get(f"/jobs/{known['failed']}")
    assert page.text.count("&lt;script&gt;alert(1)") > 8
    assert SCRIPT in page.words
    assert "&lt;script&gt;" in (await visitor.get("/queues")).text


async def test_errors_show_scripts_as_text(jobs: Client) -> None:
    visitor = Visitor(Dashboard(jobs, title=TEXT, token="token"))
    for page in (
        await visitor.get(f"/jobs/{SCRIPT}"),
        await visitor.get("/login"),
        await visitor.post("/login", token=TEXT),
        await visitor.get("/queues?token=" + SCRIPT),
    ):
        assert Tags(page.text).wrong == []
    visitor = Visitor(Dashboard(jobs, title=TEXT, authorize=lambda _: Access(Access.ALL.actions, who=TEXT)))
    for page in (
        await visitor.get(f"/jobs/{SCRIPT}"),
        await visitor.get(f"/{SCRIPT}"),
        await visitor.post("/acts/pause", queue=TEXT),
        await visitor.act("pause", queue=TEXT),
        await visitor.act("limit", queue="mail", running_limit=TEXT),
    ):
        assert Tags(page.text).wrong == []
