"""In the child: the shape of a contender in Python, and what every measure does with it.

A contender says how to connect, enqueue, and run a worker with a handler. All the rest is written here, once.
`AsyncQueue` is for those with an event loop, `ThreadQueue` for those whose callers and handlers are threads.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import Any, ClassVar, TypeVar

from msgspec import Struct

from bench.clocks import Pickups, Ran, metering
from bench.peers import apart

T = TypeVar("T")

#: Given the number of a job, or 0 where it has none. In a loop, what it returns is awaited.
Handler = Callable[[int], Awaitable[None] | None]


class About(Struct, frozen=True, kw_only=True):
    """What the report says about a contender beside its figures."""

    name: str
    settings: str
    #: What becomes of running jobs when their worker is killed with kill -9, beginning with one of three words.
    #: kept: another worker runs them again. repeated: it does so because they have run for long, whether or not their
    #: worker lives. lost: nobody runs them again.
    guarantee: str
    #: How that is known, where the measure "recovery" alone does not tell.
    tried: str | None = None
    docs: str | None = None


class Queue:
    """One contender on the database at a URL."""

    about: ClassVar[About]
    #: The package that must be installed, or the name of its set in `peers/apart`.
    package: ClassVar[str] = ""
    apart: ClassVar[str] = ""
    #: Tells whether a job is live; see `bench.clocks.looking`.
    left: ClassVar[Any] = None
    has_bulk: ClassVar[bool] = True
    max_slots: ClassVar[int | None] = None
    #: Jobs in one call while a database is filled.
    fill_size: ClassVar[int] = 1_000
    #: How long after its start a worker that does not say so waits for jobs.
    ready_after_s: ClassVar[float] = 0.0
    #: A guess at jobs per second, with one slot and with many. It only saves trials.
    rate: ClassVar[tuple[float, float]] = (1_000, 1_000)

    def __init__(self, url: str) -> None:
        if self.apart:
            apart.use(self.apart)
        self.url = url

    @classmethod
    def missing(cls) -> str | None:
        """Why it cannot be measured; None when it can."""
        if cls.apart:
            return apart.missing(cls.apart)
        if cls.package and importlib.util.find_spec(cls.package) is None:
            return f"the package {cls.package} is not installed; `python3 dev.py bench` installs it"
        return None

    def fill(self, jobs: int, delayed: int = 0) -> None:
        """Create the tables, and enqueue jobs. Only Jobmill is asked for delayed jobs."""
        raise NotImplementedError

    def call(self, callers: int, size: int, jobs: int, seconds: float) -> Ran:
        """Enqueue until all jobs are enqueued or the time is over: one by one, or `size` jobs in each call."""
        raise NotImplementedError

    def call_with_gaps(self, gaps: Sequence[float]) -> Pickups:
        """Enqueue one numbered job after each gap; when each call began and returned."""
        raise NotImplementedError

    def run_worker(self, handler: Handler, slots: int, until: Callable[[], T]) -> T:
        """Run a worker in this process until the function returns, which runs in another thread or blocks this one."""
        raise NotImplementedError

    def drain(self, jobs: int, handler: Handler, slots: int, until: Callable[[], T]) -> T:
        """The same for a drain of a number of jobs; a few contenders have another way for that."""
        return self.run_worker(handler, slots, until)

    def hold(self) -> Awaitable[None] | None:
        """What a handler does that never ends."""
        raise NotImplementedError


def job_of(handler: Handler) -> Callable[..., Awaitable[None]]:
    """A job in a loop that has a number."""

    async def job(number: int = 0) -> None:
        if (done := handler(number)) is not None:
            await done

    return job


class AsyncQueue(Queue):
    """A contender with an event loop."""

    #: As its own command runs it.
    on_uvloop: ClassVar[bool] = True

    async def install(self) -> None:
        """Create its tables."""

    def connected(self, callers: int = 1) -> AbstractAsyncContextManager[None]:
        """Connected for enqueueing, by a number of callers at once."""
        return self.opened(lambda _: None)

    def opened(self, handler: Handler) -> AbstractAsyncContextManager[None]:
        """Connected, with a handler that a worker can run; for contenders that enqueue by their handlers."""
        raise NotImplementedError

    async def enqueue(self, number: int = 0) -> object:
        """One job."""
        raise NotImplementedError

    async def enqueue_many(self, size: int) -> None:
        """Jobs in one call; where there is no such call, many calls at once. Only for filling, then."""
        await asyncio.gather(*(self.enqueue() for _ in range(size)))

    def working(self, handler: Handler, slots: int) -> AbstractAsyncContextManager[None]:
        """A worker that runs."""
        raise NotImplementedError

    def run(self, work: Awaitable[T]) -> T:
        """Run to the end."""
        factory = None
        if self.on_uvloop:
            import uvloop

            factory = uvloop.new_event_loop

        async def awaited() -> T:
            return await work

        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(awaited())

    def fill(self, jobs: int, delayed: int = 0) -> None:

        async def fill() -> None:
            async with self.connected():
                await self.install()
                for first in range(0, jobs, self.fill_size):
                    await self.enqueue_many(min(self.fill_size, jobs - first))

        self.run(fill())

    def call(self, callers: int, size: int, jobs: int, seconds: float) -> Ran:

        async def calling() -> Ran:
            done = 0
            async with self.connected(callers):
                with metering() as watch:

                    async def call() -> None:
                        nonlocal done
                        while done < jobs and watch.seconds < seconds:
                            done += size or 1
                            await (self.enqueue_many(size) if size else self.enqueue())

                    await asyncio.gather(*(call() for _ in range(callers)))
                    return watch.ran(done)

        return self.run(calling())

    def call_with_gaps(self, gaps: Sequence[float]) -> Pickups:

        async def calling() -> Pickups:
            pickups = Pickups()
            async with self.connected():
                for number, gap in enumerate(gaps):
                    await asyncio.sleep(gap)
                    pickups.called.append(time.time_ns())
                    await self.enqueue(number)
                    pickups.returned.append(time.time_ns())
            return pickups

        return self.run(calling())

    def run_worker(self, handler: Handler, slots: int, until: Callable[[], T]) -> T:

        async def work() -> T:
            async with self.working(handler, slots):
                return await asyncio.to_thread(until)

        return self.run(work())

    async def hold(self) -> None:
        await asyncio.Event().wait()


class ThreadQueue(Queue):
    """A contender whose callers and handlers are threads."""

    def connect(self, callers: int = 1) -> None:
        """Connect for enqueueing, by a number of callers at once."""
        raise NotImplementedError

    def enqueue(self, number: int = 0) -> object:
        """One job."""
        raise NotImplementedError

    def enqueue_many(self, size: int) -> None:
        """Jobs in one call; where there is no such call, many calls. Only for filling, then."""
        with ThreadPoolExecutor(4) as pool:
            for one in [pool.submit(self.enqueue) for _ in range(size)]:
                one.result()

    def working(self, handler: Handler, slots: int) -> AbstractContextManager[None]:
        """A worker that runs beside this thread."""
        raise NotImplementedError

    def fill(self, jobs: int, delayed: int = 0) -> None:
        self.connect()
        for first in range(0, jobs, self.fill_size):
            self.enqueue_many(min(self.fill_size, jobs - first))

    def call(self, callers: int, size: int, jobs: int, seconds: float) -> Ran:
        self.connect(callers)
        done, lock = 0, threading.Lock()
        self.enqueue()  # opens the connection

        def call() -> None:
            nonlocal done
            while watch.seconds < seconds:
                with lock:
                    if done >= jobs:
                        return
                    done += size or 1
                if size:
                    self.enqueue_many(size)
                else:
                    self.enqueue()

        with ThreadPoolExecutor(callers) as pool, metering() as watch:
            for one in [pool.submit(call) for _ in range(callers)]:
                one.result()
            return watch.ran(done)

    def call_with_gaps(self, gaps: Sequence[float]) -> Pickups:
        self.connect()
        pickups = Pickups()
        for number, gap in enumerate(gaps):
            time.sleep(gap)
            pickups.called.append(time.time_ns())
            self.enqueue(number)
            pickups.returned.append(time.time_ns())
        return pickups

    def run_worker(self, handler: Handler, slots: int, until: Callable[[], T]) -> T:
        with self.working(handler, slots):
            return until()

    def hold(self) -> None:
        threading.Event().wait()


@asynccontextmanager
async def running(
    work: Awaitable[object], stop: Callable[[asyncio.Task[object]], Awaitable[object]]
) -> AsyncIterator[None]:
    """A worker's main coroutine as a task, ended by `stop`."""

    async def awaited() -> object:
        return await work

    task = asyncio.create_task(awaited())
    try:
        yield
    finally:
        await stop(task)


async def cancel(task: asyncio.Task[object]) -> None:
    """End a task that has no gentler way."""
    task.cancel()
    await asyncio.wait([task])


@contextmanager
def started(start: Callable[[], object], stop: Callable[[], object]) -> Iterator[None]:
    """Between the two calls."""
    start()
    try:
        yield
    finally:
        stop()


class MainThreadQueue(ThreadQueue):
    """A contender whose worker must have the main thread, and stops at a SIGTERM."""

    def work(self, handler: Handler, slots: int) -> None:
        """Work until the signal comes."""
        raise NotImplementedError

    def run_worker(self, handler: Handler, slots: int, until: Callable[[], T]) -> T:
        future: Future[T] = Future()

        def wait() -> None:
            try:
                future.set_result(until())
            except BaseException as error:
                future.set_exception(error)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=wait, daemon=True).start()
        with suppress(SystemExit):  # how some workers stop
            self.work(handler, slots)
        return future.result()
