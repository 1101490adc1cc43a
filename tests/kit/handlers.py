"""The application that worker processes of tests run."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import jobmill
from jobmill import Context

jobs = jobmill.connect()
here = Path(os.environ.get("NOTES_DIR", "."))


def note(context: Context, word: str = "run") -> None:
    """Append a line to the file that all processes share: the word, the job, its fence and this process."""
    line = f"{word} {context.job.id} {context.fence} {os.getpid()}\n"
    with (here / "notes").open("ab", buffering=0) as notes:
        notes.write(line.encode())


@jobs.handler()
async def short(context: Context, n: int) -> int:
    """A little work."""
    note(context)
    await asyncio.sleep(0.002)
    return n


@jobs.handler(max_attempts=1)
async def ends(context: Context, fails: bool = False) -> str:
    """End, or fail."""
    note(context)
    note(context, "end")
    if fails:
        raise RuntimeError("no luck")
    return "done"


@jobs.handler(max_crashes=1_000)
async def fenced(context: Context, ms: int = 2) -> int:
    """A little work, which returns its fence; its worker may crash as often as it likes."""
    note(context)
    await asyncio.sleep(ms / 1000)
    note(context, "end")
    return context.fence


@jobs.handler()
async def blocks_once(context: Context) -> int:
    """Block its worker in the first run: the lease is not extended, and ends when it was to end at the claim."""
    note(context)
    if context.fence == 1:
        time.sleep(60)  # noqa: ASYNC251 - this must block the whole loop
    return os.getpid()


@jobs.handler()
async def stamped() -> float:
    """Return the time at which it began."""
    return time.time()


@jobs.handler(max_attempts=1)
async def deadly(context: Context) -> None:
    """Kill its own worker."""
    note(context)
    os.kill(os.getpid(), signal.SIGKILL)


@jobs.handler()
def until_file(context: Context, path: str) -> int:
    """End when a file is there, and return the id of the process."""
    note(context)
    deadline = time.monotonic() + 60
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    note(context, "end")
    return os.getpid()


kept: list[bytes] = []


@jobs.handler()
async def grow(megabytes: int) -> None:
    """Keep some memory."""
    kept.append(os.urandom(1_000_000) * megabytes)


@jobs.handler()
async def endless(context: Context) -> None:
    """End only when it is stopped."""
    note(context)
    await asyncio.Event().wait()


@jobs.handler(isolate=True, max_attempts=1)
def dies_alone(context: Context, how: str) -> None:
    """End its own process, and no other."""
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGSEGV)
