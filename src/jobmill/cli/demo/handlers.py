"""The handlers of `jobmill demo`, in a module of their own: the process of an isolated job imports it again."""

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

# Only a place to define handlers: the demo puts them on a client of its own, on a file that is not known here.
jobs = connect("memory://")


@jobs.handler(queue=QUEUE)
async def greet(name: str) -> str:
    """Now."""
    await asyncio.sleep(0.8)
    return f"hello {name}"


@jobs.handler(queue=QUEUE)
async def send_reminder(to: str) -> str:
    """Delayed."""
    await asyncio.sleep(0.6)
    return f"reminded {to}"


@jobs.handler(queue=QUEUE, concurrency=1)
async def print_page(page: str) -> str:
    """By priority: with room for one at a time, the order shows."""
    await asyncio.sleep(0.9)
    return f"printed the {page} page"


@jobs.handler(queue=QUEUE)
async def sync_stock() -> str:
    """Unique."""
    await asyncio.sleep(1.5)
    return "in sync"


@jobs.handler(queue=QUEUE)
async def heartbeat(context: Context) -> str:
    """Recurring."""
    await asyncio.sleep(0.25)
    return f"beat {context.job.runs + 1}"


@jobs.handler(queue=QUEUE, max_attempts=5, backoff=exponential("700ms"))
async def call_api(context: Context) -> str:
    """Errs twice, then succeeds."""
    await asyncio.sleep(0.5)
    if context.attempt < 3:
        raise ConnectionError("503")
    return "the API answered"


@jobs.handler(queue=QUEUE, max_attempts=2, backoff=fixed("1s"))
async def charge_card() -> None:
    """Errs until it has no attempts left."""
    await asyncio.sleep(0.5)
    raise PermissionError("card declined")


@jobs.handler(queue=QUEUE)
async def encode_video(context: Context, frames: int) -> str:
    """Tells how far it is."""
    for frame in range(frames):
        context.progress(100 * frame / frames, f"frame {frame}")
        await asyncio.sleep(5 / frames)
    context.progress(100, f"frame {frames}")
    return f"{frames} frames"


@jobs.handler(queue=QUEUE)
def resize_photo(width: int) -> str:
    """A plain function: runs in a thread."""
    time.sleep(1.2)
    return f"{width} px wide"


@jobs.handler(queue=QUEUE)
async def crawl() -> None:
    """Never ends by itself."""
    await asyncio.sleep(3600)


@jobs.handler(queue=BURST)
async def nothing() -> None:
    """What the burst is made of."""


@jobs.handler(queue=BURST)
async def ping(sent: float) -> float:
    """How long it took to get here, in seconds, by the clock of the process that both ends share."""
    return time.perf_counter() - sent


if os.name == "posix":

    @jobs.handler(queue=QUEUE, isolate=True, max_attempts=2, backoff=fixed("1s"))
    def parse_file(context: Context) -> str:
        """Takes its process down with it the first time; nobody else notices."""
        time.sleep(0.4)
        if context.attempt == 1:
            ctypes.string_at(0)
        return "parsed at the second attempt"
