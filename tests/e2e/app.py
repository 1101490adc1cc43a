"""The application that the end-to-end tests run in processes of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import jobmill
from jobmill import Context

jobs = jobmill.connect()
here = Path(os.environ.get("E2E_DIR", "."))


def note(context: Context, word: str = "run") -> None:
    """One line in a file that all processes append to: what ran, under which claim, where."""
    line = f"{word} {context.job.id} {context.fence} {os.getpid()}\n"
    with (here / "notes").open("ab", buffering=0) as notes:
        notes.write(line.encode())


@jobs.handler()
async def short(context: Context, n: int) -> int:
    """A little work."""
    note(context)
    await asyncio.sleep(0.002)
    return n


@jobs.handler(max_crashes=1_000)
async def fenced(context: Context, ms: int = 2) -> int:
    """A little work, which returns the claim that it was done under, and may be lost as often as you like."""
    note(context)
    await asyncio.sleep(ms / 1000)
    note(context, "end")
    return context.fence


@jobs.handler()
async def stamped() -> float:
    """When it began."""
    return time.time()


@jobs.handler(max_attempts=1)
async def deadly(context: Context) -> None:
    """Kills its worker."""
    note(context)
    os.kill(os.getpid(), signal.SIGKILL)


@jobs.handler()
def until_file(context: Context, path: str) -> int:
    """Ends when a file is there, and says which process ran it."""
    note(context)
    deadline = time.monotonic() + 60
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    note(context, "end")
    return os.getpid()


@jobs.handler()
async def endless(context: Context) -> None:
    """Ends only when it is stopped."""
    note(context)
    await asyncio.Event().wait()


@jobs.handler(isolate=True, max_attempts=1)
def dies_alone(context: Context, how: str) -> None:
    """Takes its own process down, and nothing else."""
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGSEGV)
