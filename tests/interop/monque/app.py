"""The Python application of the tests with Monque, run in processes of its own; Monque's is peer.py."""

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


@jobs.handler(max_attempts=10)
async def work(context: Context, ms: int = 0, our_ms: int | None = None, peer_ms: int = 0, fails: int = 0) -> int:
    """A little work, or a lot; it may take longer here than in Monque. It fails so many times at first."""
    note(context)
    await asyncio.sleep((ms if our_ms is None else our_ms) / 1000)
    if context.attempt <= fails:
        raise RuntimeError(f"attempt {context.attempt} is no good")
    note(context, "end")
    return context.attempt


@jobs.handler()
async def late(context: Context) -> None:
    """Asks to be run later, once."""
    note(context)
    if context.fence == 1:
        context.snooze(0.05)
