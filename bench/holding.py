"""In the child: a handler that tells of its start and then waits, for a worker that is going to be killed."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path


def tell(path: str) -> None:
    """One more line in the file: a handler has started."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write("started\n")


async def held(path: str) -> None:
    """The handler."""
    tell(path)
    await forever()


async def forever() -> None:
    """Until the process is killed."""
    await asyncio.Event().wait()


def forever_here() -> None:
    """The same, in a thread of its own."""
    threading.Event().wait()
