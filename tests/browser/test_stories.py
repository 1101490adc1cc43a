"""What people do with the dashboard, in a real browser: on SQLite always, on the other stores with `--all`."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

import jobmill
from jobmill import Client, Dashboard
from jobmill.core.values import Filter
from tests.helpers import until
from tests.kit.browser import Tabs, shot
from tests.kit.workers import WorkerProcesses

Serving = Callable[..., Awaitable[str]]

#: A worker starts, a lease ends, a slow machine: a page shows it within this time.
expect.set_options(timeout=30_000)

pytestmark = [pytest.mark.slow, pytest.mark.stores("sqlite", "postgres", "redis", "mongo")]

APP = r"""
import asyncio, os, pathlib
import jobmill

jobs = jobmill.connect()
here = pathlib.Path(os.environ["NOTES_DIR"])

@jobs.handler(max_crashes=5)
async def import_orders(context: jobmill.Context) -> str:
    context.log(f"opened by process {os.getpid()}")
    lines = 0
    while not (here / "finish").exists():
        if (here / f"line-{lines}").exists():
            context.log(f"line {lines} is imported")
            lines += 1
        await asyncio.sleep(0.02)
    return "imported"
"""


@pytest.fixture
async def jobs(store_url: str) -> AsyncIterator[Client]:
    async with jobmill.connect(store_url) as client:
        await client.store.migrate()
        yield client


@pytest.fixture
async def url(jobs: Client, serving: Serving) -> str:
    return await serving(Dashboard(jobs, title="shop"))


@pytest.fixture
async def workers(store_url: str, tmp_path: Path) -> AsyncIterator[WorkerProcesses]:
    made = WorkerProcesses(tmp_path, store_url)
    (tmp_path / "app.py").write_text(APP)
    yield made
    made.end()


def start(workers: WorkerProcesses, name: str) -> Any:
    return workers.start("worker", f"{workers.folder / 'app.py'}:jobs", "--lease", "2s", "--name", name)


async def fails(jobs: Client, count: int, name: str = "send_invoice") -> list[str]:
    """Jobs that have failed, and are counted as a worker counts them."""

    async def handler(order: int) -> None:
        raise ConnectionError(f"no route for order {order}")

    given = jobs.handlers.get(name) or jobs.handler(name=name, max_attempts=1)(handler)
    drafts = [given.draft(order=order) for order in range(count)]
    enqueued = [
        one for first in range(0, count, 1_000) for one in await jobs.enqueue_many(drafts[first : first + 1_000])
    ]
    worker = jobmill.Worker(jobs, concurrency=100)
    async with worker:
        await until(lambda: all_failed(jobs, count), 120)
    return [one.id for one in enqueued]


async def all_failed(jobs: Client, count: int) -> bool:
    return (await jobs.store.count_up_to(Filter(states=("failed",)), count + 1)).count >= count


async def choose(page: Page, label: str) -> None:
    """Press a button of the dialog that is open."""
    await page.locator("dialog[open]").get_by_role("button", name=label).click()


async def test_find_a_failed_job_by_a_payload_field_and_requeue_it(jobs: Client, url: str, tabs: Tabs) -> None:
    ids = await fails(jobs, 20)
    page = await tabs.open(f"{url}/")
    await page.keyboard.press("/")
    await page.keyboard.type("payload.order:7")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("link", name="send_invoice")).to_have_count(1)
    await page.get_by_role("link", name="send_invoice").click()
    await expect(page.locator(".state.big")).to_have_text("failed")
    await page.keyboard.press("Shift+R")
    await expect(page.get_by_role("status")).to_contain_text("requeued")
    assert (await jobs.get(ids[7])).state == "waiting"
    (entry,) = (await jobs.audit_log(what="requeue")).entries
    assert entry.ids == (ids[7],)


async def test_requeue_8000_with_a_preview_and_stop_half_way(
    jobs: Client, url: str, tabs: Tabs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fails(jobs, 8_000)
    change, changed, go_on = jobs.store.change, 0, threading.Event()

    async def gated(*given: Any, **more: Any) -> Any:
        """The real call; half-way it waits until the test has pressed Stop."""
        nonlocal changed
        if changed >= 4_000:
            await asyncio.to_thread(go_on.wait, 60)
        answer = await change(*given, **more)
        changed += len(answer.ids)
        return answer

    monkeypatch.setattr(jobs.store, "change", gated)
    page = await tabs.open(f"{url}/jobs?state=failed")
    await page.get_by_label("Select all on this page").check()
    await page.get_by_label("that match").check()
    await page.get_by_role("button", name="Requeue…").click()
    dialog = page.locator("dialog[open]")
    await expect(dialog).to_contain_text("8,000 will be requeued")
    await dialog.get_by_label("10 minutes").check()
    await dialog.get_by_label("Note for the audit log").fill("relay is back")
    await shot(page, "story-requeue")
    await choose(page, "8,000 jobs")
    try:
        await expect(page.locator("main")).to_contain_text("4,000 of 8,000")
        await page.get_by_role("button", name="Stop").click()
    finally:
        go_on.set()
    await expect(page.locator(".state.big")).to_contain_text("stopped")
    await shot(page, "story-stopped")
    waiting = (await jobs.store.count_up_to(Filter(states=("waiting",)), 10_000)).count
    assert 4_000 <= waiting < 8_000
    (entry,) = (await jobs.audit_log(what="requeue")).entries
    assert (entry.count, str(entry.note).partition(";")[0]) == (waiting, "relay is back")


async def test_ask_why_a_job_waits(jobs: Client, url: str, tabs: Tabs) -> None:
    enqueued = await jobs.enqueue("send", queue="mail")
    await jobs.queue("mail").pause(who="ada", note="api down")
    page = await tabs.open(f"{url}/jobs/{enqueued.id}")
    why = page.locator(".why")
    await expect(why).to_contain_text("The queue mail is paused by ada")
    await expect(why).to_contain_text("No worker")
    await why.get_by_role("button", name="Resume queue mail").click()
    await expect(page.locator(".why")).not_to_contain_text("is paused")
    assert not (await jobs.queue("mail").settings()).paused


async def test_pause_a_queue_with_a_note_and_resume_it(jobs: Client, url: str, tabs: Tabs) -> None:
    await jobs.enqueue("send", queue="mail")
    page = await tabs.open(f"{url}/queues")
    await page.get_by_role("link", name="mail", exact=True).click()
    await page.get_by_role("link", name="Pause queue…").click()
    dialog = page.locator("dialog[open]")
    await dialog.get_by_label("Note").fill("bank api down")
    await choose(page, "Pause queue mail")
    await expect(page.locator("main")).to_contain_text("bank api down")
    assert (await jobs.queue("mail").settings()).paused
    await page.get_by_role("button", name="Resume").first.click()
    await expect(page.locator("main")).not_to_contain_text("bank api down")
    assert not (await jobs.queue("mail").settings()).paused


async def test_edit_a_schedule_and_see_the_edit_kept_after_a_restart(
    jobs: Client, url: str, store_url: str, tabs: Tabs
) -> None:
    await jobs.enqueue("report", cron="0 8 * * *", key="nightly")
    page = await tabs.open(f"{url}/recurring")
    await page.get_by_role("link", name="Edit…").click()
    dialog = page.locator("dialog[open]")
    await dialog.get_by_label("Cron", exact=False).first.fill("30 10 * * *")
    await dialog.locator("button.primary").click()
    await expect(page.locator("main")).to_contain_text("Pinned")
    async with jobmill.connect(store_url) as restarted:
        assert (await restarted.enqueue("report", cron="0 8 * * *", key="nightly")).status == "pinned"
    await page.reload()
    await expect(page.locator("main")).to_contain_text("10:30")
    ((job,)) = (await jobs.find(recurring=True)).jobs
    assert job.recurrence is not None
    assert (job.recurrence.cron, job.recurrence.pinned) == ("30 10 * * *", True)


async def test_follow_a_live_log(jobs: Client, url: str, tabs: Tabs, workers: WorkerProcesses) -> None:
    enqueued = await jobs.enqueue("import_orders")
    start(workers, "w1")
    page = await tabs.open(f"{url}/jobs/{enqueued.id}")
    for number in range(3):
        (workers.folder / f"line-{number}").touch()
        await expect(page.locator("pre.log")).to_contain_text(f"line {number} is imported")
    (workers.folder / "finish").touch()
    await expect(page.locator(".state.big")).to_have_text("succeeded")


async def test_see_a_killed_worker_and_its_job_recovered(
    jobs: Client, url: str, tabs: Tabs, workers: WorkerProcesses
) -> None:
    enqueued = await jobs.enqueue("import_orders")
    first = start(workers, "first")
    page = await tabs.open(f"{url}/jobs/{enqueued.id}")
    await expect(page.locator(".state.big")).to_have_text("running")
    first.send_signal(signal.SIGKILL)
    first.wait(10)
    start(workers, "second")
    await expect(page.locator("main")).to_contain_text("on second")
    await expect(page.locator("main")).to_contain_text("1 crash")
    await page.goto(f"{url}/workers")
    await expect(page.get_by_role("link", name="second").first).to_be_visible(timeout=30_000)
    (workers.folder / "finish").touch()
    await enqueued.result(timeout=30)


async def test_from_an_error_group_to_its_job_to_a_requeue(jobs: Client, url: str, tabs: Tabs) -> None:
    await fails(jobs, 3)
    page = await tabs.open(f"{url}/errors")
    await page.get_by_role("link", name="ConnectionError").click()
    await expect(page.locator("td a.name")).to_have_count(3)
    await page.locator("td a.name").first.click()
    await page.get_by_role("button", name="Requeue").click()
    await expect(page.get_by_role("status")).to_contain_text("requeued")
    assert len((await jobs.find(states="waiting")).jobs) == 1


async def test_cancel_a_running_job(jobs: Client, url: str, tabs: Tabs, workers: WorkerProcesses) -> None:
    enqueued = await jobs.enqueue("import_orders")
    start(workers, "w1")
    page = await tabs.open(f"{url}/jobs/{enqueued.id}")
    await expect(page.locator(".state.big")).to_have_text("running")
    await page.get_by_role("link", name="Cancel…").click()
    await choose(page, "Cancel 1 job")
    await expect(page.locator(".state.big")).to_have_text("cancelled")
    assert (await jobs.get(enqueued.id)).state == "cancelled"


async def test_enqueue_an_edited_copy(jobs: Client, url: str, tabs: Tabs) -> None:
    (id,) = await fails(jobs, 1)
    page = await tabs.open(f"{url}/jobs/{id}")
    await page.get_by_role("link", name="Edit and enqueue a copy…").click()
    await page.locator("dialog[open]").get_by_label("Payload").fill('{"order": 99}')
    await choose(page, "Enqueue")
    await expect(page.get_by_role("status")).to_contain_text("Job send_invoice is enqueued.")
    await expect(page.locator("#pl")).to_contain_text("99")
    (copy,) = (await jobs.find(states="waiting")).jobs
    assert copy.payload == {"order": 99}
