"""In the child: what measures ask of a contender in Python, by the names of the commands of the scripts on Node.js."""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, get_type_hints

from msgspec import convert

from bench.child import READY, halt, say
from bench.clocks import Draining, Pickups, Ran, Starts, emptied, looking
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


def own(adapter: str, url: str, verb: str, **arguments: Any) -> Any:
    """What only Jobmill is asked for: a method of it by name, while it is connected."""
    queue = _queue(adapter, url)
    assert isinstance(queue, AsyncQueue)
    method = getattr(queue, verb)
    types = get_type_hints(method)

    async def run() -> Any:
        async with queue.connected():
            return await method(**{name: convert(value, types[name]) for name, value in arguments.items()})

    return queue.run(run())


def nothing() -> None:
    """What the harness itself takes of memory."""
    halt(READY)
