"""Handlers that take steps and wait, in isolated processes."""

from __future__ import annotations

import os
from pathlib import Path

import jobmill
from jobmill import Context

jobs = jobmill.connect("memory://")


@jobs.handler
async def double(n: int) -> int:
    return 2 * n


def noted(path: str) -> int:
    """Add a line to a file: how often it was called."""
    with Path(path).open("a") as file:
        file.write("x\n")
    return len(Path(path).read_text().splitlines())


async def work(context: Context, n: int, path: str) -> list[object]:
    first = await context.step("note", noted, path)
    doubled = await context.run(double.draft(n=n))
    both = await context.run_all(double.draft(n=m) for m in (3, 4))
    await context.sleep("nap", 0.01)
    await context.add(double.draft(n=0))
    return [first, doubled, both, await context.wait_for("go", int, timeout="1h"), os.getpid()]


def sync_work(context: Context, n: int, path: str) -> list[object]:
    first = context.sync.step("note", noted, path)
    doubled = context.sync.run(double.draft(n=n))
    both = context.sync.run_all(double.draft(n=m) for m in (3, 4))
    context.sync.sleep("nap", 0.01)
    context.sync.add(double.draft(n=0))
    return [first, doubled, both, context.sync.wait_for("go", int, timeout="1h"), os.getpid()]


forked = jobs.handler(name="forked", isolate=True)(work)
pooled = jobs.handler(name="pooled", isolate="pool")(work)
spawned = jobs.handler(name="spawned", isolate="spawn")(work)
sync_forked = jobs.handler(name="sync_forked", isolate=True)(sync_work)
sync_pooled = jobs.handler(name="sync_pooled", isolate="pool")(sync_work)
sync_spawned = jobs.handler(name="sync_spawned", isolate="spawn")(sync_work)


@jobs.handler(isolate=True, max_attempts=3, backoff="1ms")
def dies(context: Context, path: str) -> int:
    """Ends its process after a step, twice."""
    calls = context.sync.step("note", noted, path)
    if context.attempt < 3:
        os._exit(3)
    return calls


@jobs.handler(isolate=True, max_attempts=2, backoff="1ms")
def forgets(context: Context) -> None:
    if context.attempt == 1:
        context.sync.step("first", str, 1)
        raise ValueError("once more")
