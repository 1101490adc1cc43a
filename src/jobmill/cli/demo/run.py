"""Runs `jobmill demo`: enqueues jobs of every kind, shows them until all are final, runs a burst, prints a summary."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from jobmill.cli.demo import handlers
from jobmill.cli.demo.story import Story
from jobmill.cli.demo.view import counted, view
from jobmill.cli.output import duration_text, plural
from jobmill.cli.serving import dashboard_beside
from jobmill.client.client import Client, connect
from jobmill.handlers.draft import Draft
from jobmill.worker.worker import Worker

BURST = 2_000
PAGES = ((9, "last"), (5, "second"), (0, "first"))
PINGS = 25
CONCURRENCY = 50
#: The pause after each enqueue, so that a person can follow.
STEP_S = 0.25
FRAME_S = 0.1
#: Timeouts, so that a busy machine prints its summary too.
MAX_STORY_S = 12.0
MAX_PINGS_S = 1.5
MAX_BURST_S = 3.0
MAX_START_S = 8.0
LEASE = "2s"

NEXT = """\
Next: write jobs = jobmill.connect() and a function with @jobs.handler to a file
app.py. Run `jobmill worker app.py:jobs` and, in another terminal,
`jobmill enqueue NAME '{...}' --wait`."""


async def run_demo(dashboard: int | None = None) -> None:
    """Run the demo; with the port of a dashboard, until Ctrl-C."""
    # Log lines would break the live view, and the story shows the same.
    logging.getLogger("jobmill").setLevel(logging.CRITICAL)
    _end_on_sigterm()
    console = Console(highlight=False)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="jobmill-demo-") as folder:
        story = Story(prints=not console.is_terminal)
        url = f"sqlite:///{folder}/jobmill.db"
        async with _working(url, story, handlers.jobs) as client, dashboard_beside(client, dashboard) as link:
            if link is not None:
                console.print(f"dashboard {link}\n", soft_wrap=True)
            with _live_view(console, story, client) as draw:
                tasks = [_watch(client, story, draw), _kill_a_worker(url, story)]
                background = [asyncio.create_task(one) for one in tasks]
                try:
                    await _enqueue_all(client, story)
                    await _until_over(client, story)
                    measured = [("pick-up", await _pickup(client)), ("burst", await _burst(client, story))]
                finally:
                    for task in background:
                        task.cancel()
                    await asyncio.gather(*background, return_exceptions=True)
                await _refresh(client, story)
                draw(True)
            await _print_summary(client, console, measured, time.monotonic() - began)
            if link is not None:
                await _until_signal(console, link)


async def _until_signal(console: Console, link: str) -> None:
    """Wait for Ctrl-C or SIGTERM, which here is the normal end."""
    end = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    console.print(f"\nThe dashboard stays open at {link} until Ctrl-C.", soft_wrap=True)
    await end.wait()


def _end_on_sigterm() -> None:
    """End like Ctrl-C, so that the temporary directory is removed."""
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


@contextlib.asynccontextmanager
async def _working(url: str, story: Story, app: Client) -> AsyncIterator[Client]:
    """A client with the handlers of `app`, and a running worker."""
    client = connect(url)
    client.handlers.update(app.handlers)
    client.on("*")(story.on_event)
    # The heartbeat finds cancelled jobs, and a short lease makes it frequent.
    worker = Worker(client, concurrency=CONCURRENCY, lease="3s")
    try:
        await worker.start()
        yield client
    finally:
        await worker.stop(timeout=0)
        await client.close()


# ---------------------------------------------------------------------------------------------------- the story


async def _enqueue_all(client: Client, story: Story) -> None:
    for kinds, drafts, note in _plan():
        for kind, draft, enqueued in zip(kinds, drafts, await client.enqueue_many(drafts), strict=True):
            story.add(kind, draft.name, enqueued, note)
        if drafts[0].options.unique_key == "stock":
            (again,) = await client.enqueue_many(drafts)
            story.add_line(kinds[0], drafts[0].name, f"enqueued again: {again.status}, no second job")
            story.rows[again.id].note = f"again: {again.status}"
        await asyncio.sleep(STEP_S)


def _plan() -> list[tuple[list[str], list[Draft[Any]], str]]:
    """What to enqueue, in this order: kinds, the jobs of one call, and a note."""
    until = datetime.now(UTC) + timedelta(seconds=7)
    pages = [handlers.print_page.options(priority=priority).draft(page=page) for priority, page in PAGES]
    plan: list[tuple[list[str], list[Draft[Any]], str]] = [
        (["recovered"], [handlers.make_backup.draft(demo_pid=os.getpid())], "for a second worker"),
        (["progress"], [handlers.encode_video.draft(frames=60)], "reports its progress"),
        (["retried"], [handlers.call_api.draft()], "raises twice, the backoff doubles"),
        (["fails"], [handlers.charge_card.draft()], "has two attempts"),
        (["recurring"], [handlers.heartbeat.options(every="1s", key="beat", until=until).draft()], "every second"),
        (["now"], [handlers.greet.draft(name="Ada")], ""),
        (["delayed"], [handlers.send_reminder.options(delay="3s").draft(to="Grace")], "due in 3 s"),
        ([f"priority {priority}" for priority, _ in PAGES], pages, "one at a time, 0 goes first"),
        (["unique"], [handlers.sync_stock.options(unique_key="stock").draft()], ""),
        (["sync"], [handlers.resize_photo.draft(width=640)], "a plain function, in a thread"),
        (["cancelled"], [handlers.crawl.draft()], "would run for an hour"),
    ]
    if "parse_file" in handlers.jobs.handlers:
        plan.insert(4, (["isolated"], [handlers.parse_file.draft()], "in a separate process"))
    return plan


async def _kill_a_worker(url: str, story: Story) -> None:
    """Start a second worker as a process, and kill it while it runs its job. Another worker takes the job over."""
    command = ["-m", "jobmill", "worker", "jobmill.cli.demo.second_worker:jobs", "--lease", LEASE, "--quiet"]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, env={**os.environ, "JOBMILL_URL": url})
    try:
        while story.seconds < MAX_START_S and not story.is_running("recovered"):  # noqa: ASYNC110 - as above
            await asyncio.sleep(FRAME_S)
        story.on_other_worker("recovered", "running", "running in a second worker")
        await asyncio.sleep(1)
    finally:
        process.kill()
        await process.wait()
    story.on_other_worker("recovered", "crashed", f"its worker was killed; the lease ends after {LEASE}")
    async with _working(url, story, handlers.others):
        await asyncio.Event().wait()


async def _until_over(client: Client, story: Story) -> None:
    """Cancel the job that never ends, then wait for all jobs."""
    await asyncio.sleep(1)
    await client.cancel([row.id for row in story.rows.values() if row.kind == "cancelled"])
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0, MAX_STORY_S - story.seconds)):
            while not story.is_over:  # noqa: ASYNC110 - the view polls as well
                await asyncio.sleep(FRAME_S)


async def _pickup(client: Client) -> str:
    """Measure the time from enqueue to handler, for one job after the other."""
    pickups: list[float] = []
    # On a busy machine there are fewer pings; the time is the same.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(MAX_PINGS_S):
            for _ in range(PINGS):
                (enqueued,) = await client.enqueue_many([handlers.ping.draft(sent=time.perf_counter())])
                pickups.append(await enqueued.result())
    if not pickups:
        return "not measured: this machine is too busy"
    return f"{1000 * sum(pickups) / len(pickups):.1f} ms on average from enqueue to handler, one job at a time"


async def _burst(client: Client, story: Story) -> str:
    """Measure how fast many jobs are enqueued and run."""
    story.add_line("burst", "nothing", f"{plural(BURST)} that do nothing")
    story.burst = BURST
    # Paused, so that enqueueing and running are measured separately.
    await client.queue(handlers.BURST).pause()
    began = time.perf_counter()
    await client.enqueue_many([handlers.nothing.draft() for _ in range(BURST)])
    enqueued = time.perf_counter()
    await client.queue(handlers.BURST).resume()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(MAX_BURST_S):
            while story.burst_done < BURST:  # noqa: ASYNC110 - an event per job would slow the burst down
                await asyncio.sleep(0.001)
    done, run_s = story.burst_done, time.perf_counter() - enqueued
    enqueue_text, run_text = duration_text(1000 * (enqueued - began)), duration_text(1000 * run_s)
    run = "run" if done == BURST else f"{done:,} run"
    return f"{plural(BURST)} enqueued in {enqueue_text}, {run} in {run_text}: {done / run_s:,.0f} jobs/s"


# ---------------------------------------------------------------------------------------------------- the live view


@contextlib.contextmanager
def _live_view(console: Console, story: Story, client: Client) -> Iterator[Callable[[bool], None]]:
    """A live view on a terminal; without one, the story prints lines."""
    if not console.is_terminal:
        yield lambda final: None
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda final: live.update(view(story, client.store.now(), console.height, final=final), refresh=True)


async def _watch(client: Client, story: Story, draw: Callable[[bool], None]) -> None:
    while True:
        await _refresh(client, story)
        draw(False)
        await asyncio.sleep(FRAME_S)


async def _refresh(client: Client, story: Story) -> None:
    story.on_jobs((await client.find(queue=handlers.QUEUE)).jobs)


# ---------------------------------------------------------------------------------------------------- the end


async def _print_summary(client: Client, console: Console, measured: list[tuple[str, str]], seconds: float) -> None:
    states: Counter[str] = Counter()
    for one in await client.count():
        states[one.state] += one.count
    failed = (await client.find(states="failed", limit=1)).jobs
    rows = [("states", counted(states))]
    rows += [("failed", Text(f"{job.name}: {job.error}, after {job.attempt} attempts", "red")) for job in failed]
    rows += [(label, Text(text)) for label, text in measured]
    console.print()
    for label, text in rows:
        console.print(Text.assemble((f"{label:<9}", "bold"), text), soft_wrap=True)
    console.print(f"\nThe demo took {seconds:.0f} seconds.\n{NEXT}", markup=False, soft_wrap=True)
