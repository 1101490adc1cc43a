"""The keys that the list of keys names, pressed in a real browser."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from playwright.async_api import expect

import jobmill
from jobmill import Client, Dashboard
from jobmill.dashboard.pages import NAVIGATION
from jobmill.stores.memory import MemoryStore
from tests.kit.browser import Tabs

pytestmark = pytest.mark.slow


@pytest.fixture
async def jobs() -> AsyncIterator[Client]:
    async with jobmill.connect(store=MemoryStore()) as client:
        yield client


async def test_every_page_has_its_keys(jobs: Client, tabs: Tabs, serving: Callable[..., Awaitable[str]]) -> None:
    url = await serving(Dashboard(jobs))
    page = await tabs.open(f"{url}/queues")
    for key, path, title, _ in NAVIGATION:
        await page.keyboard.press("g")
        await page.keyboard.press(key)
        await page.wait_for_url(f"{url}/{path}")
        await expect(page.locator("#nav [aria-current=page]")).to_contain_text(title)


async def test_rows_are_selected_opened_and_changed(
    jobs: Client, tabs: Tabs, serving: Callable[..., Awaitable[str]]
) -> None:
    ids = [(await jobs.enqueue("send", queue="mail")).id for _ in range(3)]
    url = await serving(Dashboard(jobs))
    page = await tabs.open(f"{url}/jobs?state=due")
    rows = page.locator("tbody[data-rows] tr")
    for key, row in (("j", 0), ("j", 1), ("j", 2), ("j", 2), ("k", 1)):
        await page.keyboard.press(key)
        await expect(rows.nth(row).locator("a.name")).to_be_focused()
    await page.keyboard.press("x")
    await expect(page.locator("[data-n]")).to_have_text("1 job selected")
    await page.keyboard.press("Shift+C")
    await page.wait_for_selector("dialog[open] #form")
    await expect(page.locator("dialog[open]")).to_contain_text("Cancel 1 job")
    # In a dialog, keys are text.
    await page.keyboard.press("g")
    await page.keyboard.press("o")
    await expect(page.locator("dialog[open] #form")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.keyboard.press("Shift+D")
    await expect(page.locator("dialog[open]")).to_contain_text("Remove 1 job")
    await page.keyboard.press("Escape")
    await rows.nth(1).locator("a.name").focus()
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"{url}/jobs/{ids[1]}")
    assert [(await jobs.get(id)).state for id in ids] == ["waiting"] * 3


async def test_the_theme_is_kept_and_keys_can_be_switched_off(
    jobs: Client, tabs: Tabs, serving: Callable[..., Awaitable[str]]
) -> None:
    url = await serving(Dashboard(jobs))
    page = await tabs.open(f"{url}/queues")
    root = page.locator("html")
    await page.keyboard.press("t")
    await expect(root).to_have_attribute("data-theme", "dark")
    await page.reload()
    await expect(root).to_have_attribute("data-theme", "dark")
    await page.keyboard.press("?")
    await page.get_by_label("Single-key shortcuts are on").uncheck()
    await page.get_by_role("button", name="Close").click()
    await page.keyboard.press("t")
    await page.keyboard.press("?")
    await expect(root).to_have_attribute("data-theme", "dark")
    await expect(page.locator("#keys")).to_be_hidden()
