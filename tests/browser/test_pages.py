"""Every page in a real browser: nothing that its policy forbids, nothing that axe finds, on all screens.

Set JOBMILL_TEST_SHOTS to a folder to have a picture of each.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from playwright.async_api import expect

import jobmill
from jobmill import Access, Client, Dashboard
from jobmill.core.values import DEPTH_LIMIT, Depth
from jobmill.errors import StoreUnavailable
from jobmill.stores.memory import MemoryStore
from tests.browser.site import Shop, open_shop
from tests.kit.browser import PHONE, WIDE, Tabs, axe, shot

PAGES = {
    "ask-stop": "/ask/worker_stop?id=card-1",  # before the announcement of the worker is too old
    "overview": "/",
    "overview-3d": "/?range=3d",
    "jobs": "/jobs",
    "jobs-failed": "/jobs?state=failed&q=queue%3Amail",
    "jobs-none": "/jobs?q=name%3Anobody",
    "job-failed": "/jobs/{failed}",
    "job-waiting": "/jobs/{waiting}",
    "job-succeeded": "/jobs/{succeeded}",
    "job-running": "/jobs/{running}",
    "job-recurring": "/jobs/{recurring}",
    "queues": "/queues",
    "queue": "/queues/mail",
    "queue-paused": "/queues/invoices",
    "queue-lanes": "/queues/newsletters",
    "lanes": "/lanes/newsletters",
    "lane": "/lanes/newsletters?lane=bigco",
    "lanes-none": "/lanes/mail",
    "ask-lanes": "/ask/lanes/newsletters",
    "ask-lane": "/ask/lane?queue=newsletters&lane=bigco",
    "ask-pause-lane": "/ask/pause_lane?queue=newsletters&lane=acme",
    "job-in-lane": "/jobs/{in_lane}",
    "jobs-in-lane": "/jobs?state=held&q=queue%3Anewsletters",
    "errors": "/errors",
    "recurring": "/recurring",
    "flows": "/flows",
    "flow": "/flows/{flow}",
    "flow-large": "/flows/{large_flow}",
    "job-in-flow": "/jobs/{flow}",
    "related": "/related/{flow}",
    "ask-flow": "/ask/flow?act=flow_retry&id={flow}",
    "workers": "/workers",
    "audit": "/audit",
    "system": "/system",
    "ask-requeue": "/ask/jobs?act=requeue&state=failed&all=1",
    "ask-pause": "/ask/pause/mail",
    "ask-copy": "/ask/copy?id={failed}",
    "ask-enqueue": "/ask/enqueue",
    "ask-add": "/ask/recur_add?cron=0+8+*+*+1-5",
    "ask-edit": "/ask/recur_edit?id={recurring}",
}
SCREENS: dict[str, tuple[Any, bool]] = {"light": (WIDE, False), "dark": (WIDE, True), "phone": (PHONE, False)}

# Ends when the page has learned that queues have changed, and has had the time to ask for them.
EVENTS = """() => { window.heard = new Promise((done) => {
  let changed = false, seconds = 0;
  document.body.addEventListener("queues", () => changed = true);
  document.body.addEventListener("second", () => { if (changed && ++seconds > 1) done(); });
}) }"""


@pytest.fixture
async def jobs() -> AsyncIterator[Client]:
    async with jobmill.connect(store=MemoryStore()) as client:
        yield client


@pytest.fixture
async def shop(jobs: Client) -> Shop:
    return await open_shop(jobs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "screen", ["light", *(pytest.param(one, marks=pytest.mark.extended) for one in ("dark", "phone"))]
)
async def test_every_page(
    jobs: Client, shop: Shop, tabs: Tabs, serving: Callable[..., Awaitable[str]], screen: str
) -> None:
    url = await serving(Dashboard(jobs, title="shop prod", color="red", redact=("card",)))
    size, dark = SCREENS[screen]
    page = await tabs.open(f"{url}/queues", size, dark=dark, timezone="Europe/Berlin")
    found: list[str] = []
    for name, path in PAGES.items():
        await page.goto(url + path.format(**vars(shop)))
        found += [f"{name}: {one}" for one in await axe(page)]
        await shot(page, f"{name}-{screen}")
        wide = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if wide > 0:
            found.append(f"{name}: {wide} px wider than the screen")
    assert found == []


@pytest.mark.slow
@pytest.mark.extended
async def test_no_page_is_wider_than_the_screen(
    jobs: Client, shop: Shop, tabs: Tabs, serving: Callable[..., Awaitable[str]]
) -> None:
    """On tablets and small laptops, between the two screens of the other tests."""
    url = await serving(Dashboard(jobs))
    page = await tabs.open(f"{url}/queues")
    found: list[str] = []
    for width in (1_200, 1_090, 1_000, 910, 720):
        await page.set_viewport_size({"width": width, "height": 800})
        for name, path in PAGES.items():
            if name != "ask-stop":  # its worker may have gone
                await page.goto(url + path.format(**vars(shop)))
                more = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
                found += [f"{name}: {more} px wider than {width}"] if more > 0 else []
    assert found == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["overview", "jobs", "job-failed", "queue", "lanes", "recurring", "workers", "flow"])
async def test_a_visitor_who_may_only_look(
    jobs: Client, shop: Shop, tabs: Tabs, serving: Callable[..., Awaitable[str]], name: str
) -> None:
    url = await serving(Dashboard(jobs, authorize=lambda request: Access()))
    page = await tabs.open(url + PAGES[name].format(**vars(shop)), PHONE)
    assert await axe(page) == []
    assert await page.locator("form[method=post]").count() == 0
    await shot(page, f"{name}-readonly")


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
async def test_reading_works_without_javascript(
    jobs: Client, shop: Shop, tabs: Tabs, serving: Callable[..., Awaitable[str]], name: str
) -> None:
    url = await serving(Dashboard(jobs))
    page = await tabs.open(url + PAGES[name].format(**vars(shop)), javascript=False)
    assert await page.locator("h1").count() == 1
    assert await page.locator("main").is_visible()


@pytest.mark.slow
@pytest.mark.parametrize(
    "dark", [pytest.param(False, id="light"), pytest.param(True, id="dark", marks=pytest.mark.extended)]
)
async def test_dialogs_and_menus_that_are_open(
    jobs: Client, shop: Shop, tabs: Tabs, serving: Callable[..., Awaitable[str]], dark: bool
) -> None:
    url = await serving(Dashboard(jobs))
    page = await tabs.open(f"{url}/jobs?state=failed", dark=dark)
    found: list[str] = []

    async def check(what: str) -> None:
        found.extend(f"{what}: {one}" for one in await axe(page))
        await shot(page, f"open-{what}-{'dark' if dark else 'light'}")

    await page.keyboard.press("?")
    await page.wait_for_selector("#keys[open]")
    await check("keys")
    await page.keyboard.press("Escape")
    await page.keyboard.press("/")
    await page.wait_for_selector(".menu:visible")
    await check("filters")
    await page.locator("h1").click()  # the menu closes
    await page.get_by_label("Select all on this page").check()
    await check("bulk")
    await page.get_by_role("button", name="Requeue…").click()
    await page.wait_for_selector("dialog[open] #form")
    await check("requeue")
    for path, link in (
        ("/queues/mail", "Pause queue…"),
        ("/queues/newsletters", "Change the rule…"),
        ("/lanes/newsletters", "Limits…"),
        ("/lanes/newsletters", "Pause…"),
        ("/recurring", "Edit…"),
        ("/recurring", "Add a schedule…"),
        (f"/jobs/{shop.failed}", "Edit and enqueue a copy…"),
        (f"/jobs/{shop.waiting}", "Reschedule…"),
        (f"/jobs/{shop.waiting}", "Remove…"),
        (f"/flows/{shop.flow}", "Cancel flow…"),
    ):
        await page.goto(url + path)
        await page.get_by_role("link", name=link).first.click()
        await page.wait_for_selector("dialog[open] #form")
        await check(link.strip("…").replace(" ", "-"))
    page = await tabs.open(f"{url}/", PHONE, dark=dark)
    await page.get_by_role("button", name="Menu").click()
    await page.wait_for_selector("#nav:popover-open")
    await check("navigation")
    assert found == []


@pytest.mark.slow
async def test_a_new_schedule_is_previewed_and_added(
    jobs: Client, tabs: Tabs, serving: Callable[..., Awaitable[str]]
) -> None:
    url = await serving(Dashboard(jobs))
    page = await tabs.open(f"{url}/recurring", timezone="Europe/Berlin")
    await page.get_by_role("link", name="Add a schedule…").click()
    form = page.locator("dialog[open] #form")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await form.get_by_label("Handler").fill("digest")
    await form.get_by_label("Payload").fill('{"to": "ada"}')
    await form.get_by_label("Cron expression").fill("0 8 * * 1")
    await form.get_by_role("button", name="Preview").click()
    await expect(form.get_by_text("Every Monday at 08:00 Europe/Berlin")).to_be_visible()
    await expect(form.get_by_role("list", name="The first runs").get_by_role("listitem")).to_have_count(5)
    assert not [one for one in asked if "ada" in one]  # a payload is in no address, and so in no log of a proxy
    await expect(form.get_by_label("Handler")).to_have_value("digest")
    await shot(page, "open-Add-a-schedule-preview")
    await form.get_by_label("Key", exact=True).fill("monday-mail")
    await form.get_by_role("button", name="Add this schedule").click()
    await expect(page.get_by_text("digest is added.")).to_be_visible()
    (job,) = (await jobs.find(recurring=True)).jobs
    assert (job.name, job.payload) == ("digest", {"to": "ada"})


@pytest.mark.slow
async def test_paused_means_paused_and_the_page_says_how_old_it_is(
    jobs: Client, tabs: Tabs, serving: Callable[..., Awaitable[str]]
) -> None:
    await jobs.enqueue("send", queue="mail")
    url = await serving(Dashboard(jobs))
    page = await tabs.open(f"{url}/", timezone="UTC")
    due, notice = page.locator(".figures dd").first, page.locator("#paused")
    await expect(due).to_have_text("1")
    await expect(notice).to_be_hidden()
    color = await due.evaluate("one => getComputedStyle(one).color")
    await page.keyboard.press("l")
    await expect(page.get_by_role("button", name="Paused").first).to_be_visible()
    await expect(notice).to_contain_text(re.compile(r"Live updates are paused. This page is from \d\d:\d\d:\d\d"))
    assert await due.evaluate("one => getComputedStyle(one).color") != color
    assert await axe(page) == []
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    await page.evaluate(EVENTS)
    await jobs.enqueue("send", queue="mail")
    await page.evaluate("window.heard")
    assert [one for one in requests if "/live" not in one] == []
    await expect(due).to_have_text("1")
    await page.keyboard.press("l")
    await expect(due).to_have_text("2")
    await expect(notice).to_be_hidden()


class _Away(MemoryStore):
    """A store that can be away."""

    is_away = False

    async def depths(self, queues: Sequence[str] | None = None, limit: int = DEPTH_LIMIT) -> list[Depth]:
        if self.is_away:
            raise StoreUnavailable("connection to db.internal, port 5432 failed: Connection refused")
        return await super().depths(queues, limit)


@pytest.mark.slow
@pytest.mark.parametrize(
    "screen", ["light", *(pytest.param(one, marks=pytest.mark.extended) for one in ("dark", "phone"))]
)
async def test_a_store_that_goes_away_and_comes_back(
    tabs: Tabs, serving: Callable[..., Awaitable[str]], screen: str
) -> None:
    store = _Away()
    async with jobmill.connect(store=store) as jobs:
        await open_shop(jobs)
        url = await serving(Dashboard(jobs, title="shop prod", color="red"))
        size, dark = SCREENS[screen]
        page = await tabs.open(f"{url}/", size, dark=dark, timezone="UTC")
        due, alert = page.locator(".figures dd").first, page.get_by_role("alert")
        text, color = await due.text_content(), await due.evaluate("one => getComputedStyle(one).color")
        store.is_away = True
        # The open page says that it is old, or was loaded again already; then it keeps its figures.
        await expect(page.locator("#stale, [role=alert]").locator("visible=true")).to_have_count(1)
        assert await due.evaluate("one => getComputedStyle(one).color") != color
        await page.reload()
        await tabs.expect("response 503: GET")
        await expect(alert).to_contain_text(re.compile(r"The figures below are \S+ \w+ old, from \d\d:\d\d:\d\d"))
        await expect(due).to_have_text(text or "")
        assert await due.evaluate("one => getComputedStyle(one).color") != color
        assert await axe(page) == []
        await shot(page, f"unavailable-{screen}")
        await page.goto(f"{url}/jobs")
        await expect(page.get_by_role("heading", name="The store does not answer")).to_be_visible()
        assert await axe(page) == []
        await shot(page, f"unavailable-jobs-{screen}")
        await page.goto(f"{url}/")
        store.is_away = False
        await expect(alert).to_have_count(0)
        await expect(due).to_have_text(text or "")
        assert await due.evaluate("one => getComputedStyle(one).color") == color
