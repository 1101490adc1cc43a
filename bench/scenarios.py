"""In the child: what measures ask of a contender in Python, by the names of the commands of the scripts on Node.js."""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from msgspec import convert

from bench.child import READY, halt, say
from bench.clocks import Crowd, Draining, Looked, Pickups, Ran, Starts, emptied, looking
from bench.queues import AsyncQueue, Handler, Queue


def _queue(adapter: str, url: str) -> Queue:
    module, _, name = adapter.partition(":")
    made: Queue = getattr(importlib.import_module(module), name)(url)
    return made


def _taking(queue: Queue, seconds: float, end: Callable[[int], None]) -> Handler:
    """A handler that takes this time, or less if it is stopped, and then calls `end`."""

    async def wait(number: int) -> None:
        try:
            await asyncio.sleep(seconds)
        finally:
            end(number)

    def block(number: int) -> None:
        time.sleep(seconds)
        end(number)

    if not seconds:
        return end
    return wait if isinstance(queue, AsyncQueue) else block


def fill(adapter: str, url: str, jobs: int, delayed: int = 0) -> None:
    """Create the tables, and enqueue jobs."""
    _queue(adapter, url).fill(jobs, delayed)


def drain(adapter: str, url: str, jobs: int, slots: int, leave: bool = False, ms: int = 0) -> Ran:
    """One worker runs this number of jobs, whose handlers take `ms`: all jobs, or with `leave` some of them."""
    queue = _queue(adapter, url)
    clock = Draining(None if leave else looking(url, queue.left), jobs)
    return queue.drain(jobs, _taking(queue, ms / 1000, clock.run), slots, clock.settled)


def isolated(adapter: str, url: str, jobs: int, slots: int) -> Ran:
    """One worker runs all jobs in processes of their own, which only the database can count."""
    queue = _queue(adapter, url)
    return queue.run_worker(lambda _: None, slots, lambda: emptied(url, queue.left, jobs))


def enqueue(adapter: str, url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """Each caller enqueues one job, waits for the answer, and enqueues the next."""
    return _queue(adapter, url).call(callers, 0, jobs, seconds)


def bulk(adapter: str, url: str, size: int, jobs: int, seconds: float) -> Ran:
    """One caller enqueues many jobs with each call."""
    return _queue(adapter, url).call(1, size, jobs, seconds)


def pickup(adapter: str, url: str, jobs: int, seconds: float, slots: int, takes_s: float = 0.0) -> list[int]:
    """An idle worker says that it is ready, and returns when it started each job; if handlers take time, their ends."""
    queue, starts = _queue(adapter, url), Starts(jobs)

    def wait() -> list[int]:
        time.sleep(queue.ready_after_s)
        say(READY)
        return starts.wait(seconds)

    return queue.run_worker(_taking(queue, takes_s, starts.start), slots, wait)


def pickupEnqueue(adapter: str, url: str, gaps: list[float]) -> Pickups:  # noqa: N802
    """Enqueue for that worker."""
    return _queue(adapter, url).call_with_gaps(gaps)


def ends(adapter: str, url: str, gaps: list[float], cancels: bool) -> list[int]:
    """Enqueue a job after each gap, and cancel it while it runs, or wait for its result; when that was."""
    return _queue(adapter, url).ends(gaps, cancels)


def hold(adapter: str, url: str) -> None:
    """Enqueue one job for `work`."""
    _queue(adapter, url).call_with_gaps([0.0])


def work(adapter: str, url: str, slots: int, path: str) -> None:
    """A worker that says that it is ready, and works until it is killed; its handler writes to the file and waits."""
    queue = _queue(adapter, url)

    def held(_: int) -> Awaitable[None] | None:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write("started\n")
        return queue.hold()

    def wait() -> None:
        time.sleep(queue.ready_after_s)
        say(READY)
        threading.Event().wait()

    queue.run_worker(held, slots, wait)


def fillFlows(adapter: str, url: str, jobs: int, each: int) -> None:  # noqa: N802
    """Create the tables, and enqueue jobs that others wait for."""
    _queue(adapter, url).fill_flows(jobs, each)


def settle(adapter: str, url: str, jobs: int, each: int) -> Ran:
    """Settle jobs that others wait for, without a worker."""
    return _queue(adapter, url).settle(jobs, each)


def crowd(adapter: str, url: str, crowd: dict[str, Any]) -> None:
    """Add jobs in all states to a queue."""
    _queue(adapter, url).crowd(convert(crowd, Crowd))


def operations(adapter: str, url: str, crowds: list[dict[str, Any]], looks: int) -> Looked:
    """What operators look at, each operation some times."""
    return _queue(adapter, url).operations(convert(crowds, list[Crowd]), looks)


def nothing() -> None:
    """What the harness itself takes of memory."""
    halt(READY)
