"""A question about jobs that is answered with "Do nothing", with and without JavaScript."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from playwright.async_api import expect

import jobmill
from jobmill import Client, Dashboard
from tests.kit.browser import Tabs

Serving = Callable[..., Awaitable[str]]


@pytest.fixture
async def jobs(tmp_path: Path) -> AsyncIterator[Client]:
    async with jobmill.connect(f"sqlite:///{tmp_path}/jobs.db") as client:
        yield client


@pytest.mark.slow
async def test_do_nothing_does_nothing(jobs: Client, tabs: Tabs, serving: Serving) -> None:
    await jobs.enqueue("send", queue="mail")
    url = await serving(Dashboard(jobs))
    page = await tabs.open(f"{url}/jobs")
    await page.locator("tbody [type=checkbox]").first.check()
    await page.get_by_role("button", name="Remove").click()
    await page.get_by_role("button", name="Do nothing").click()
    await expect(page.locator("#dialog")).not_to_be_visible()
    plain = await tabs.open(f"{url}/ask/jobs?act=remove&all=1&back=/jobs%3Fq%3Dqueue:mail", javascript=False)
    await plain.get_by_role("button", name="Do nothing").click()
    await expect(plain).to_have_url(f"{url}/jobs?q=queue%3Amail")
    assert sum(one.count for one in await jobs.count()) == 1
