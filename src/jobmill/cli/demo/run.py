"""The course of `jobmill demo`: enqueue jobs of every kind, watch them until all are final, a burst, a summary."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from jobmill.cli.demo import handlers
from jobmill.cli.demo.story import Story, StoryLine
from jobmill.cli.demo.view import counted, view
from jobmill.cli.output import lasting, plural
from jobmill.client.client import Client, connect
from jobmill.handlers.handler import Draft
from jobmill.worker.worker import Worker

BURST = 2_000
PAGES = ((9, "last"), (5, "second"), (0, "first"))
PINGS = 25
SLOTS = 50
#: Between one enqueue and the next, so that the eye can follow.
STEP_S = 0.25
FRAME_S = 0.1
#: Nothing in here takes so long; a machine that is too busy gets its summary all the same.
LONGEST_S = 12.0
LONGEST_PINGS_S = 1.5
LONGEST_BURST_S = 3.0

NEXT = """\
Next, in a file app.py: jobs = jobmill.connect() and @jobs.handler
on a function; then `jobmill worker app.py:jobs` and, in another terminal,
`jobmill enqueue NAME '{...}' --wait`."""


@dataclass(frozen=True)
class Speed:
    """What was measured at the end."""

    pickups: list[float]
    enqueue_s: float
    done: int
    run_s: float


async def run_demo() -> None:
    """The whole demo."""
    # Its lines would tear the picture apart, and the story tells the same.
    logging.getLogger("jobmill").setLevel(logging.CRITICAL)
    _end_on_sigterm()
    console = Console(highlight=False)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="jobmill-demo-") as folder:
        story = Story(on_line=_no_line if console.is_terminal else _print_line)
        async with _working(f"sqlite:///{folder}/jobmill.db", story) as client:
            with _picture(console, story, client) as draw:
                watching = asyncio.create_task(_watch(client, story, draw))
                try:
                    await _enqueue_all(client, story)
                    await _until_over(client, story)
                    speed = await _measure(client, story)
                finally:
                    watching.cancel()
                await _look(client, story)
                draw(True)
            await _sum_up(client, console, speed, time.monotonic() - began)


def _end_on_sigterm() -> None:
    """As Ctrl-C does, so that the temporary directory goes."""
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


@contextlib.asynccontextmanager
async def _working(url: str, story: Story) -> AsyncIterator[Client]:
    """A client with the demo's handlers, and a worker beside it."""
    client = connect(url)
    client.handlers.update(handlers.jobs.handlers)
    client.on("*")(story.on_event)
    # A short lease has a short heartbeat, by which a worker learns that a running job was cancelled.
    worker = Worker(client, concurrency=SLOTS, lease="3s")
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
            story.say(kinds[0], drafts[0].name, f"enqueued again: {again.status}, no second job")
            story.rows[again.id].note = f"second enqueue: {again.status}"
        await asyncio.sleep(STEP_S)


def _plan() -> list[tuple[list[str], list[Draft], str]]:
    """What is enqueued, in this order: kinds, jobs in one call, and a word about them."""
    until = datetime.now(UTC) + timedelta(seconds=7)
    pages = [handlers.print_page.options(priority=priority).draft(page=page) for priority, page in PAGES]
    plan = [
        (["progress"], [handlers.encode_video.draft(frames=60)], "tells how far it is"),
        (["retried"], [handlers.call_api.draft()], "errs twice, backoff doubles"),
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
        plan.insert(3, (["isolated"], [handlers.parse_file.draft()], "in a process of its own"))
    return plan


async def _until_over(client: Client, story: Story) -> None:
    """Cancel the one that never ends, then wait for all."""
    story.is_complete = True
    endless = [row for row in story.rows.values() if row.kind == "cancelled"]
    await asyncio.sleep(1)
    await client.cancel([row.id for row in endless])
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(story.over.wait(), max(0, LONGEST_S - story.seconds))


async def _measure(client: Client, story: Story) -> Speed:
    """How soon one job is picked up, and how fast many are run."""
    pickups = await _pickups(client)
    story.say("burst", "nothing", f"{plural(BURST)} that do nothing")
    story.burst = BURST
    # Paused meanwhile, so that enqueueing and running are measured one after the other.
    await client.queue(handlers.BURST).pause()
    began = time.perf_counter()
    await client.enqueue_many([handlers.nothing.draft() for _ in range(BURST)])
    enqueued = time.perf_counter()
    await client.queue(handlers.BURST).resume()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(story.burst_over.wait(), LONGEST_BURST_S)
    ended = time.perf_counter()
    return Speed(pickups, enqueued - began, story.burst_done, ended - enqueued)


async def _pickups(client: Client) -> list[float]:
    """Seconds from enqueue to handler, of one job after the other."""
    pickups: list[float] = []
    # A machine that is busy with other things gets fewer of them, not more time.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LONGEST_PINGS_S):
            for _ in range(PINGS):
                (enqueued,) = await client.enqueue_many([handlers.ping.draft(sent=time.perf_counter())])
                pickups.append(await enqueued.result())
    return pickups


# ---------------------------------------------------------------------------------------------------- the picture


@contextlib.contextmanager
def _picture(console: Console, story: Story, client: Client) -> Iterator[Callable[[bool], None]]:
    """A live view on a terminal; elsewhere the lines are enough."""
    if not console.is_terminal:
        yield lambda final: None
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda final: live.update(view(story, client.store.now(), console.height, final=final), refresh=True)


async def _watch(client: Client, story: Story, draw: Callable[[bool], None]) -> None:
    while True:
        await _look(client, story)
        draw(False)
        await asyncio.sleep(FRAME_S)


async def _look(client: Client, story: Story) -> None:
    story.on_jobs((await client.find(queue=handlers.QUEUE)).jobs)


def _print_line(line: StoryLine) -> None:
    click.echo(str(line))


def _no_line(line: StoryLine) -> None:
    """The picture shows them."""


# ---------------------------------------------------------------------------------------------------- the end


async def _sum_up(client: Client, console: Console, speed: Speed, seconds: float) -> None:
    states: Counter[str] = Counter()
    for one in await client.count():
        states[one.state] += one.count
    failed = (await client.find(states="failed", limit=1)).jobs
    rows = [("states", counted(states))]
    rows += [("failed", Text(f"{job.name}: {job.error}, after {job.attempt} attempts", "red")) for job in failed]
    rows += [("pick-up", Text(_pickup(speed))), ("burst", Text(_burst(speed)))]
    console.print()
    for label, text in rows:
        console.print(Text.assemble((f"{label:<9}", "bold"), text), soft_wrap=True)
    console.print(f"\n{seconds:.0f} seconds. {NEXT}", markup=False, soft_wrap=True)


def _pickup(speed: Speed) -> str:
    if not speed.pickups:
        return "not measured: this machine is too busy"
    average = 1000 * sum(speed.pickups) / len(speed.pickups)
    return f"{average:.1f} ms on average from enqueue to handler, one job at a time"


def _burst(speed: Speed) -> str:
    rate = speed.done / speed.run_s
    enqueue, run = lasting(1000 * speed.enqueue_s), lasting(1000 * speed.run_s)
    return f"{plural(speed.done)} enqueued in {enqueue}, run in {run}: {rate:,.0f} jobs/s, all on disk"
