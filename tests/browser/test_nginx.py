"""The dashboard behind a real nginx, at the root and below paths, which nginx keeps in requests or removes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from playwright.async_api import expect

import jobmill
from jobmill import Client, Dashboard
from jobmill.stores.memory import MemoryStore
from tests.docs.pages import ROOT, blocks
from tests.kit.browser import Tabs
from tests.kit.nginx import reverse_proxy

TOKEN = "a-token-of-this-test"
PAGE: Path = ROOT / "docs/dashboard.md"

pytestmark = pytest.mark.slow


@pytest.fixture
async def jobs() -> AsyncIterator[Client]:
    async with jobmill.connect(store=MemoryStore()) as client:
        await client.enqueue("send", queue="mail")
        yield client


async def use(jobs: Client, tabs: Tabs, home: str) -> None:
    """Log in, follow links, act, and see a change that comes by itself."""
    page = await tabs.open(f"{home}/login")
    await page.get_by_label("Token").fill(TOKEN)
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    await page.locator("#nav").get_by_role("link", name="Queues").click()
    await page.get_by_role("link", name="mail", exact=True).click()
    await page.get_by_role("link", name="Pause queue…").click()
    await page.locator("dialog[open]").get_by_role("button", name="Pause queue mail").click()
    await expect(page.get_by_role("status")).to_contain_text("is paused")
    assert (await jobs.queue("mail").settings()).paused
    await page.goto(f"{home}/queues")
    await jobs.enqueue("send", queue="came-later")
    await expect(page.get_by_role("link", name="came-later")).to_be_visible()


@pytest.mark.parametrize(
    ("path", "strips"),
    [
        pytest.param("", False, id="root-kept"),
        pytest.param("/a/b/jobs", True, id="deep-stripped"),
        pytest.param("", True, id="root-stripped", marks=pytest.mark.extended),
        pytest.param("/a/b/jobs", False, id="deep-kept", marks=pytest.mark.extended),
        pytest.param("/jobs", True, id="jobs-stripped", marks=pytest.mark.extended),
        pytest.param("/jobs", False, id="jobs-kept", marks=pytest.mark.extended),
    ],
)
async def test_it_works_below_any_path(
    jobs: Client,
    tabs: Tabs,
    serving: Callable[..., Awaitable[str]],
    proxying: Callable[[str], str],
    path: str,
    strips: bool,
) -> None:
    url = await serving(Dashboard(jobs, token=TOKEN, path=path))
    outside = proxying(reverse_proxy(path, url, strips=strips))
    await use(jobs, tabs, outside + path)


async def test_the_configuration_of_the_documentation_works(
    jobs: Client, tabs: Tabs, serving: Callable[..., Awaitable[str]], proxying: Callable[[str], str]
) -> None:
    (block,) = [one for one in blocks(PAGE) if one.language == "nginx"]
    url = await serving(Dashboard(jobs, token=TOKEN, path="/a/jobs"))
    outside = proxying(block.code.replace("http://127.0.0.1:8000", url))
    await use(jobs, tabs, f"{outside}/a/jobs")
