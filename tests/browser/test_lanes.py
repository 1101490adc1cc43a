"""Lanes in a real browser on SQLite: what people do with them, on all screens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from playwright.async_api import expect

import jobmill
from jobmill import Client, Dashboard, LaneRule
from jobmill.core.queue_settings import LaneSettings, RateLimit
from tests.browser.site import Shop, open_shop
from tests.browser.test_pages import SCREENS
from tests.kit.browser import PHONE, Tabs, axe, shot

Serving = Callable[..., Awaitable[str]]

pytestmark = pytest.mark.slow


@pytest.fixture
async def jobs(tmp_path: Path) -> AsyncIterator[Client]:
    async with jobmill.connect(f"sqlite:///{tmp_path}/jobs.db") as client:
        yield client


@pytest.fixture
async def shop(jobs: Client) -> Shop:
    return await open_shop(jobs)


@pytest.mark.parametrize(
    "screen", ["light", *(pytest.param(one, marks=pytest.mark.extended) for one in ("dark", "phone"))]
)
async def test_the_section_of_a_queue(jobs: Client, shop: Shop, tabs: Tabs, serving: Serving, screen: str) -> None:
    url = await serving(Dashboard(jobs))
    size, dark = SCREENS[screen]
    page = await tabs.open(f"{url}/queues/newsletters", size, dark=dark, timezone="UTC")
    section = page.locator("#lanes-in")
    await expect(section.get_by_role("heading", name="Lanes")).to_be_visible()
    await expect(section.locator("tbody tr")).to_have_count(7)
    assert await axe(page) == []
    wide = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0
    await section.scroll_into_view_if_needed()
    await shot(page, f"section-lanes-{screen}")
    # A queue without lanes has one quiet line.
    await page.goto(f"{url}/queues/payments")
    await expect(page.get_by_text("No job of this queue has a lane.")).to_be_visible()
    assert await axe(page) == []


async def test_change_the_rule_and_remove_it(jobs: Client, shop: Shop, tabs: Tabs, serving: Serving) -> None:
    url = await serving(Dashboard(jobs))
    page = await tabs.open(f"{url}/queues/newsletters?range=8h", timezone="UTC")
    await page.get_by_role("link", name="Change the rule…").click()
    form = page.locator("dialog[open] #form")
    await expect(form.get_by_label("Running limit of each lane")).to_have_value("2")
    await form.get_by_label("Running limit of each lane").fill("many")
    await form.get_by_role("button", name="Save the rule").click()
    # The form is a page of its own now, with the reason at the field.
    await tabs.expect("response 400")
    await expect(page.get_by_text("Must be a whole number, for example 2.")).to_be_visible()
    await expect(page.get_by_label("Running limit of each lane")).to_be_focused()
    await page.get_by_label("Running limit of each lane").fill("1")
    await page.get_by_label("Strict order").check()
    await page.get_by_role("button", name="Save the rule").click()
    await expect(page.get_by_role("status")).to_contain_text("The rule for the lanes of queue newsletters is saved.")
    await expect(page.locator("#lanes-in")).to_contain_text(
        "at most 1 job runs at once and at most 30 jobs start a minute, in strict order."
    )
    assert page.url.partition("&done")[0] == f"{url}/queues/newsletters?range=8h"
    rule = LaneRule(running=1, rate=RateLimit(30, 60_000), strict=True)
    assert (await jobs.queue("newsletters").settings()).lanes == rule
    await page.get_by_role("link", name="Change the rule…").click()
    await page.locator("dialog[open]").get_by_role("button", name="Remove the rule").click()
    await expect(page.locator("#lanes-in")).to_contain_text("No rule: only lanes with limits of their own are limited.")
    assert (await jobs.queue("newsletters").settings()).lanes is None


async def test_find_a_lane_limit_it_pause_it_and_resume_it(
    jobs: Client, shop: Shop, tabs: Tabs, serving: Serving
) -> None:
    url = await serving(Dashboard(jobs))
    page = await tabs.open(f"{url}/queues/newsletters", timezone="UTC")
    await page.get_by_role("link", name="All lanes").click()
    await expect(page.get_by_role("heading", name="Lanes of newsletters")).to_be_visible()
    await page.get_by_label("Find a lane by its name").fill("globex")
    await page.keyboard.press("Enter")
    rows = page.locator("tbody[data-rows] tr")
    await expect(rows).to_have_count(1)
    await page.get_by_role("link", name="Limits…").click()
    form = page.locator("dialog[open] #form")
    await form.get_by_label("Running limit").fill("5")
    await form.get_by_label("yes", exact=True).check()
    await form.get_by_role("button", name="Save limits").click()
    await expect(rows.first).to_contain_text("own limits: running, strict order")
    assert await jobs.queue("newsletters").lane("globex").settings() == LaneSettings(running=5, strict=True)
    await page.get_by_role("link", name="Limits…").click()
    await form.get_by_role("button", name="Back to the rule").click()
    await expect(rows.first).not_to_contain_text("own limits")
    await page.get_by_role("link", name="Pause…").click()
    await form.get_by_label("Note").fill("their server is down")
    await form.get_by_role("button", name="Pause this lane").click()
    await expect(rows.first).to_contain_text("their server is down")
    await page.get_by_role("button", name="Resume").click()
    await expect(page.get_by_role("status")).to_contain_text("Lane globex runs again.")
    await page.goto(f"{url}/audit?queue=newsletters")
    await expect(page.get_by_text("globex: their server is down")).to_be_visible()


async def test_from_a_job_to_its_lane_by_keys(jobs: Client, shop: Shop, tabs: Tabs, serving: Serving) -> None:
    url = await serving(Dashboard(jobs))
    page = await tabs.open(f"{url}/lanes/newsletters", timezone="UTC")
    rows = page.locator("tbody[data-rows] tr")
    for row in range(4):
        await page.keyboard.press("j")
        await expect(rows.nth(row).locator("a.name")).to_be_focused()
    await expect(rows.nth(3).locator("a.name")).to_have_text("globex")
    await page.keyboard.press("Enter")
    await expect(page.locator(".chip", has_text="lane:globex")).to_be_visible()
    await page.goto(f"{url}/jobs/{shop.in_lane}")
    await expect(page.locator(".why")).to_contain_text("has used its limit of 2")
    await shot(page, "story-job-in-lane")
    await page.locator(".facts").get_by_role("link", name="globex").click()
    await expect(rows).to_have_count(1)


async def test_lanes_stay_up_to_date(jobs: Client, shop: Shop, tabs: Tabs, serving: Serving) -> None:
    """A live update replaces the rest of the page, and reads the section again."""
    url = await serving(Dashboard(jobs))
    page = await tabs.open(f"{url}/queues/newsletters", timezone="UTC")
    row = page.locator("#lanes-in tbody tr", has=page.get_by_role("link", name="initech", exact=True))
    await expect(row).to_have_count(1)
    await jobs.queue("newsletters").lane("initech").pause(who="eve", note="stop")
    await jobs.enqueue("send_newsletter", queue="newsletters", lane="initech")
    await expect(row).to_contain_text("Paused by eve")


async def test_lanes_without_javascript_on_a_phone(jobs: Client, shop: Shop, tabs: Tabs, serving: Serving) -> None:
    url = await serving(Dashboard(jobs))
    page = await tabs.open(f"{url}/queues/newsletters", PHONE, javascript=False)
    await page.get_by_role("link", name="Lanes of this queue").click()
    await page.get_by_role("link", name="Pause…").first.click()
    await page.get_by_label("Note").fill("no script")
    await page.get_by_role("button", name="Pause this lane").click()
    await expect(page.get_by_role("status")).to_contain_text("is paused. Its running jobs continue.")
    await expect(page.locator("main")).to_contain_text("no script")
