"""The handlers of `jobmill demo`, in a separate module because the process of an isolated job imports it again."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time

from jobmill.client.client import connect
from jobmill.core.retry import exponential, fixed
from jobmill.handlers.context import Context

QUEUE = "demo"
BURST = "burst"

# Only for defining the handlers. The demo copies them to its own client, whose file is not known yet.
jobs = connect("memory://")
#: For the worker that is killed, and for the one that takes its job over.
others = connect("memory://")


@jobs.handler(queue=QUEUE)
async def greet(name: str) -> str:
    """Runs at once."""
    await asyncio.sleep(0.8)
    return f"hello {name}"


@jobs.handler(queue=QUEUE)
async def send_reminder(to: str) -> str:
    """Runs after a delay."""
    await asyncio.sleep(0.6)
    return f"reminded {to}"


@jobs.handler(queue=QUEUE, concurrency=1)
async def print_page(page: str) -> str:
    """Runs by priority. The concurrency of 1 makes the order visible."""
    await asyncio.sleep(0.9)
    return f"printed the {page} page"


@jobs.handler(queue=QUEUE)
async def sync_stock() -> str:
    """Has a unique key."""
    await asyncio.sleep(1.5)
    return "in sync"


@jobs.handler(queue=QUEUE)
async def heartbeat(context: Context) -> str:
    """Runs every second."""
    await asyncio.sleep(0.25)
    return f"beat {context.job.runs + 1}"


@jobs.handler(queue=QUEUE, max_attempts=5, backoff=exponential("700ms"))
async def call_api(context: Context) -> str:
    """Raises twice, then succeeds."""
    await asyncio.sleep(0.5)
    if context.attempt < 3:
        raise ConnectionError("503")
    return "the API answered"


@jobs.handler(queue=QUEUE, max_attempts=2, backoff=fixed("1s"))
async def charge_card() -> None:
    """Raises until it has no attempts left."""
    await asyncio.sleep(0.5)
    raise PermissionError("card declined")


@jobs.handler(queue=QUEUE)
async def encode_video(context: Context, frames: int) -> str:
    """Reports its progress."""
    for frame in range(frames):
        context.progress(100 * frame / frames, f"frame {frame}")
        await asyncio.sleep(5 / frames)
    context.progress(100, f"frame {frames}")
    return f"{frames} frames"


@jobs.handler(queue=QUEUE)
def resize_photo(width: int) -> str:
    """Is a plain function, which runs in a thread."""
    time.sleep(1.2)
    return f"{width} px wide"


@jobs.handler(queue=QUEUE)
async def crawl() -> None:
    """Runs until it is cancelled."""
    await asyncio.sleep(3600)


@others.handler(queue=QUEUE)
async def make_backup(demo_pid: int) -> str:
    """Runs until its worker, a process of its own, is killed; then again in the process of the demo."""
    await asyncio.sleep(0.6 if demo_pid == os.getpid() else 3600)
    return "backed up"


@jobs.handler(queue=BURST)
async def nothing() -> None:
    """Is the job of the burst."""


@jobs.handler(queue=BURST)
async def ping(sent: float) -> float:
    """Measures the seconds from enqueue to handler. Both run in one process and share its clock."""
    return time.perf_counter() - sent


if os.name == "posix":

    @jobs.handler(queue=QUEUE, isolate=True, max_attempts=2, backoff=fixed("1s"))
    def parse_file(context: Context) -> str:
        """Crashes its process at the first attempt, without harm to other jobs."""
        time.sleep(0.4)
        if context.attempt == 1:
            ctypes.string_at(0)
        return "parsed at the second attempt"
