"""Flows in a real browser on SQLite: the pages on all screens, and a retry from its question to its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from playwright.async_api import expect

import jobmill
from jobmill import Client, Dashboard
from tests.browser.site import Shop, open_shop
from tests.browser.test_pages import SCREENS
from tests.kit.browser import Tabs, axe, shot


@pytest.fixture
async def jobs(tmp_path: Path) -> AsyncIterator[Client]:
    async with jobmill.connect(f"sqlite:///{tmp_path}/jobs.db") as client:
        yield client


@pytest.fixture
async def shop(jobs: Client) -> Shop:
    return await open_shop(jobs)


@pytest.mark.slow
async def test_pages_of_flows(jobs: Client, shop: Shop, tabs: Tabs, serving: Callable[..., Awaitable[str]]) -> None:
    url = await serving(Dashboard(jobs))
    found: list[str] = []
    for screen, (size, dark) in SCREENS.items():
        page = await tabs.open(f"{url}/flows", size, dark=dark, timezone="UTC")
        found += [f"flows {screen}: {one}" for one in await axe(page)]
        await page.get_by_role("link", name="announce_range").first.click()
        await expect(page.get_by_role("region", name="Graph of this flow")).to_be_visible()
        found += [f"flow {screen}: {one}" for one in await axe(page)]
        await shot(page, f"sqlite-flow-{screen}")
        await page.goto(f"{url}/jobs/{shop.flow}")
        await expect(page.get_by_role("heading", name="Related jobs")).to_be_visible()
        found += [f"job {screen}: {one}" for one in await axe(page)]
        wide = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        found += [f"job {screen}: {wide} px too wide"] if wide > 0 else []
    assert found == []


@pytest.mark.slow
async def test_retry_a_flow(jobs: Client, shop: Shop, tabs: Tabs, serving: Callable[..., Awaitable[str]]) -> None:
    url = await serving(Dashboard(jobs))
    page = await tabs.open(f"{url}/flows/{shop.flow}", timezone="UTC")
    await page.keyboard.press("g")
    await page.keyboard.press("f")
    await page.get_by_role("link", name="announce_range").first.click()
    await expect(page.get_by_role("heading", name="announce_range")).to_be_visible()
    await page.wait_for_load_state("load")  # before that, the link leads to a page of its own
    await page.keyboard.press("R")
    form = page.locator("dialog[open] #form")
    await expect(form.get_by_text("1 will be requeued")).to_be_visible()
    await form.get_by_label("Note").fill("the picture is back")
    await form.get_by_role("button", name="Requeue 1 job").click()
    await expect(page.get_by_text("1 job of the flow was requeued.")).to_be_visible()
    assert (await jobs.store.flow_counts([shop.flow]))[shop.flow].states == {"succeeded": 9, "waiting": 4}
    await page.goto(f"{url}/audit")
    await expect(page.get_by_text("the picture is back")).to_be_visible()


@pytest.mark.slow
async def test_the_related_jobs_of_an_open_page_stay_up_to_date(
    jobs: Client, shop: Shop, tabs: Tabs, serving: Callable[..., Awaitable[str]]
) -> None:
    """A live update replaces the rest of the page, and reads the section again."""
    url = await serving(Dashboard(jobs))
    page = await tabs.open(f"{url}/jobs/{shop.flow}", timezone="UTC")
    related = page.locator("#related")
    await expect(related.locator("li .state").first).to_have_text("due")
    await jobs.hold(name="publish_range")
    await jobs.hold(name="index_products_of_the_whole_range")
    await expect(related.locator("li .state").first).to_have_text("held")
