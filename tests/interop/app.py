"""The Python application of the tests with Node, run in processes of its own; the Node one is node/peer.mjs."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import jobmill
from jobmill import Context

jobs = jobmill.connect()
here = Path(os.environ.get("NOTES_DIR", "."))


def note(context: Context, word: str = "run") -> None:
    """One line in a file that all processes append to: what, which job, under which claim, when."""
    line = f"{word} {context.job.id} {context.fence} {time.time() * 1000:.3f}\n"
    with (here / "notes").open("ab", buffering=0) as notes:
        notes.write(line.encode())


@jobs.handler(queue="mail")
async def send(context: Context, to: str = "") -> str:
    """A little work, with progress and a line in the log."""
    note(context)
    if to == "log":
        context.progress(50)
        context.log("half way")
    return f"Python sent {context.job.id.rpartition(':')[2]}"


@jobs.handler(queue="mail")
async def slow(context: Context, ms: int, node_ms: int = 0) -> int:
    """Takes its time; in Node another one, where that is said."""
    note(context)
    await asyncio.sleep(ms / 1000)
    note(context, "end")
    return ms


@jobs.handler(queue="mail")
async def flaky(context: Context, failures: int) -> int:
    """Fails so many times, then does not."""
    note(context)
    if context.attempt <= failures:
        raise RuntimeError(f"attempt {context.attempt} is no good")
    return context.attempt - 1


@jobs.handler(queue="mail")
async def broken(context: Context) -> None:
    """Never does not."""
    note(context)
    raise RuntimeError("always broken")


@jobs.handler(queue="children")
async def child(context: Context, value: int = 0, fails: bool = False) -> int:
    """Of a flow."""
    note(context)
    if fails:
        raise RuntimeError("a bad child")
    return value


@jobs.handler(queue="parents")
async def parent(context: Context) -> str:
    """Of a flow."""
    note(context)
    return "all children are done"
