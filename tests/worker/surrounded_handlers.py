"""Isolated handlers of an application with lifespans and around functions, which run in the same process."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jobmill

jobs = jobmill.connect("memory://")
tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")
NOTES = "SURROUNDED_NOTES"


def note(text: str) -> None:
    """Add a line to the file that the test has named, if it has."""
    if NOTES in os.environ:
        with Path(os.environ[NOTES]).open("a") as file:
            file.write(text + "\n")


@dataclass
class State:
    pid: int = field(default_factory=os.getpid)


@jobs.lifespan
async def state() -> AsyncIterator[State]:
    if os.environ.get("SURROUNDED_BREAK"):
        raise OSError("no database")
    note("open")
    yield State()
    note("close")


@jobs.around
async def with_tenant(context: jobmill.Context[State]) -> AsyncIterator[None]:
    token = tenant.set(f"of {context.job.name}")
    note(f"async in {context.state.pid == os.getpid()}")
    try:
        yield
    except ValueError as error:
        note(f"saw {error}")
        raise
    finally:
        tenant.reset(token)
        note("async out")


@jobs.around
def plain(context: jobmill.Context[State]) -> Iterator[None]:
    note(f"plain in {threading.current_thread() is threading.main_thread()}")
    yield
    note("plain out")


def seen(context: jobmill.Context[State]) -> dict[str, Any]:
    return {"tenant": tenant.get(), "pid": context.state.pid, "thread": threading.current_thread().name}


@jobs.handler(isolate=True)
def in_main(context: jobmill.Context[State]) -> dict[str, Any]:
    note("runs")
    return seen(context)


@jobs.handler(isolate=True)
async def in_loop(context: jobmill.Context[State]) -> dict[str, Any]:
    await asyncio.sleep(0)
    note("runs")
    return seen(context)


@jobs.handler(isolate="pool")
def in_pool(context: jobmill.Context[State]) -> dict[str, Any]:
    return seen(context)


@jobs.handler(isolate="pool")
async def leaves_a_task(context: jobmill.Context[State]) -> dict[str, Any]:
    tasks.append(asyncio.create_task(asyncio.sleep(600)))
    return seen(context)


tasks: list[asyncio.Task[None]] = []


@jobs.handler(isolate=True, max_attempts=1)
def raises() -> None:
    raise ValueError("from the child")


@jobs.handler(isolate=True, max_attempts=1)
async def exits() -> None:
    raise SystemExit(3)


@jobs.handler(isolate=True, max_attempts=1)
def stops() -> None:
    raise StopIteration(5)
