"""The peer on PostgreSQL and psycopg whose tables are shared with Elixir: Oban for Python, without Pro."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from bench import callers as drivers
from bench.child import ready
from bench.figures import Ran
from bench.holding import forever, held
from bench.loop import on_uvloop
from bench.peers import apart
from bench.peers.about import About
from bench.pickups import Pickups, Starts, one_after_the_other
from bench.postgres.draining import draining

ABOUT = About(
    name="oban",
    package="oban",
    settings="a queue with a limit as there are slots, the default pool of 1 to 10, uvloop (as `oban start`), other "
    "defaults: what is done is written when the next jobs are fetched, and kept for a day",
    guarantee="repeated: every minute what has run for longer than 5 minutes is put back",
    tried="told by its source; nobody waited for it",
    docs="https://oban.pro/docs/py",
)

#: Of `apart`.
SET = "oban"
OLDEST = (3, 12)
QUEUE = "bench"
LEFT = "select exists (select from oban_jobs where state in ('available', 'scheduled', 'executing', 'retryable'))"
AT_ONCE = 1_000
#: It does not say when its worker listens; one that does not yet would look up only after a second.
LISTENS_AFTER_S = 1.5

Handler = Callable[[dict[str, Any]], Awaitable[None] | None]


def missing() -> str | None:
    """Why it cannot be measured."""
    if sys.version_info[:2] < OLDEST:
        return f"it needs Python 3.12, and this is {sys.version.split()[0]}: run dev.py with a newer one"
    return apart.missing(SET)


@asynccontextmanager
async def _oban(url: str, is_new: bool = False, **options: Any) -> AsyncIterator[Any]:
    apart.use(SET)
    from oban import Oban
    from oban.schema import install

    pool = await Oban.create_pool(url)
    try:
        if is_new:
            await install(pool)
        async with Oban(pool=pool, **options) as oban:
            yield oban
    finally:
        await pool.close()


def _worker(handler: Handler | None = None) -> Any:
    """The class that a job names, which does nothing where jobs are only enqueued."""
    apart.use(SET)
    from oban import worker

    class Bench:
        async def process(self, job: Any) -> None:
            if handler is not None and (done := handler(job.args)) is not None:
                await done

    return worker(queue=QUEUE)(Bench)


@asynccontextmanager
async def _working(url: str, handler: Handler, slots: int) -> AsyncIterator[None]:
    _worker(handler)
    async with _oban(url, queues={QUEUE: slots}):
        yield


@on_uvloop
async def fill(url: str, jobs: int) -> None:
    """Its tables and so many waiting jobs."""
    new = _worker().new
    async with _oban(url, is_new=True) as oban:
        for first in range(0, jobs, AT_ONCE):
            await oban.enqueue_many([new({}) for _ in range(min(AT_ONCE, jobs - first))])


@on_uvloop
async def drain(url: str, jobs: int, slots: int) -> Ran:
    """One worker runs so many no-op jobs."""
    async with draining(url, LEFT, jobs) as clock, _working(url, lambda _: clock.run(), slots):
        return await clock.settled()


@on_uvloop
async def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """Each caller enqueues one job, awaits the answer, and enqueues the next."""
    new = _worker().new
    async with _oban(url) as oban:
        return await drivers.one_by_one(lambda: oban.enqueue(new({})), callers, jobs, seconds)


@on_uvloop
async def bulk(url: str, size: int, jobs: int, seconds: float) -> Ran:
    """One caller hands so many jobs in with each call."""
    new = _worker().new
    async with _oban(url) as oban:
        return await drivers.bulk(lambda: oban.enqueue_many([new({}) for _ in range(size)]), size, jobs, seconds)


@on_uvloop
async def pickup_work(url: str, jobs: int, seconds: float, slots: int) -> list[int]:
    """The worker's side: says that it is ready, and when it started each job."""
    starts = Starts(jobs)
    async with _working(url, lambda args: starts.start(args["number"]), slots):
        await asyncio.sleep(LISTENS_AFTER_S)
        ready()
        await starts.wait(seconds)
    return starts.at


@on_uvloop
async def pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    new = _worker().new
    async with _oban(url) as oban:
        return await one_after_the_other(lambda number: oban.enqueue(new({"number": number})), jobs, seed)


@on_uvloop
async def hold(url: str) -> None:
    """One job for `work`."""
    async with _oban(url) as oban:
        await oban.enqueue(_worker().new({}))


@on_uvloop
async def work(url: str, slots: int, path: str) -> None:
    """A worker until it is killed."""
    async with _working(url, lambda _: held(path), slots):
        ready()
        await forever()
