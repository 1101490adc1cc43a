"""The peer on PostgreSQL and psycopg, one call for each step of a job: SAQ's PostgresQueue."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from bench import callers as drivers
from bench.child import ready
from bench.figures import Ran
from bench.holding import forever, held
from bench.loop import on_asyncio
from bench.peers import apart
from bench.peers.about import About
from bench.pickups import Pickups, Starts, one_after_the_other
from bench.postgres.draining import draining

ABOUT = About(
    name="saq",
    package="saq",
    settings="PostgresQueue.from_url with its default pool of 4 to 20, a Worker with concurrency as there are slots, "
    "asyncio's own event loop (as `saq`), other defaults: what is done is kept for 10 minutes; it enqueues many only "
    "one by one",
    guarantee="lost: a job has one attempt by default, and the sweep of another worker (every 60 s, of what started "
    "10 s ago) aborts it",
    tried="the job of a killed worker was not started again within 100 s",
    docs="https://saq-py.readthedocs.io/",
)

#: Of `apart`.
SET = "saq"

LEFT = "select exists (select from saq_jobs where status in ('new', 'queued', 'active'))"
#: As its own `enqueue` writes them.
COPY = "copy saq_jobs (key, job, queue, status, scheduled) from stdin"
#: It does not say when its worker listens.
LISTENS_AFTER_S = 1.0
STOPS_WITHIN_S = 2.0

Handler = Callable[..., Coroutine[Any, Any, None]]


def missing() -> str | None:
    """Why it cannot be measured."""
    return apart.missing(SET)


@asynccontextmanager
async def _queue(url: str) -> AsyncIterator[Any]:
    apart.use(SET)
    from saq.queue.postgres import PostgresQueue

    queue = PostgresQueue.from_url(url)
    await queue.connect()
    try:
        yield queue
    finally:
        await queue.disconnect()


@asynccontextmanager
async def _working(queue: Any, name: str, handler: Handler, slots: int) -> AsyncIterator[None]:
    from saq import Worker

    worker: Any = Worker(queue, [(name, handler)], concurrency=slots)
    running = asyncio.create_task(worker.start())
    try:
        yield
    finally:
        # A task of it that waits for a connection heeds the second cancellation only.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(worker.stop(), STOPS_WITHIN_S)
        await running


@on_asyncio
async def fill(url: str, jobs: int) -> None:
    """Its tables and so many waiting jobs, copied in: it has no way to enqueue many in a call."""
    apart.use(SET)
    from saq import Job, Status
    from saq.utils import now, now_seconds

    async with _queue(url) as queue, queue.pool.connection() as own, own.cursor().copy(COPY) as copy:
        for _ in range(jobs):
            job = Job(function="noop", queue=queue, queued=now(), status=Status.QUEUED)
            await copy.write_row((job.key, queue.serialize(job), queue.name, job.status, int(now_seconds())))


@on_asyncio
async def drain(url: str, jobs: int, slots: int) -> Ran:
    """One worker runs so many no-op jobs."""
    async with draining(url, LEFT, jobs) as clock, _queue(url) as queue:

        async def noop(_: Any) -> None:
            clock.run()

        async with _working(queue, "noop", noop, slots):
            return await clock.settled()


@on_asyncio
async def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """Each caller enqueues one job, awaits the answer, and enqueues the next."""
    async with _queue(url) as queue:
        return await drivers.one_by_one(lambda: queue.enqueue("noop"), callers, jobs, seconds)


@on_asyncio
async def pickup_work(url: str, jobs: int, seconds: float, slots: int) -> list[int]:
    """The worker's side: says that it is ready, and when it started each job."""
    starts = Starts(jobs)

    async def pick(_: Any, *, number: int) -> None:
        starts.start(number)

    async with _queue(url) as queue, _working(queue, "pick", pick, slots):
        await asyncio.sleep(LISTENS_AFTER_S)
        ready()
        await starts.wait(seconds)
    return starts.at


@on_asyncio
async def pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    async with _queue(url) as queue:
        return await one_after_the_other(lambda number: queue.enqueue("pick", number=number), jobs, seed)


@on_asyncio
async def hold(url: str) -> None:
    """One job for `work`."""
    async with _queue(url) as queue:
        await queue.enqueue("hold")


@on_asyncio
async def work(url: str, slots: int, path: str) -> None:
    """A worker until it is killed."""

    async def hold_it(_: Any) -> None:
        await held(path)

    async with _queue(url) as queue, _working(queue, "hold", hold_it, slots):
        ready()
        await forever()
