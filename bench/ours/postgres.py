"""Jobmill's side of the measures on PostgreSQL, on the loop that `jobmill worker` takes."""

from __future__ import annotations

import asyncio

from msgspec import structs

from bench.figures import Ran
from bench.loop import run
from bench.ours import about
from bench.ours import drain as draining_port
from bench.ours.alike import bulk, enqueue, hold, pickup_enqueue, pickup_work, work
from bench.ours.noop import noops
from bench.postgres.draining import draining
from bench.postgres.server import Session
from jobmill.client.client import connect
from jobmill.worker.worker import Worker

__all__ = [
    "ABOUT",
    "DAY_MS",
    "FILL",
    "LEFT",
    "bulk",
    "drain",
    "drain_on_asyncio",
    "drain_some",
    "enqueue",
    "exchange",
    "fill",
    "fill_deep",
    "hold",
    "missing",
    "pickup_enqueue",
    "pickup_work",
    "work",
]

ABOUT = structs.replace(about.ON_POSTGRES, name="jobmill")

LEFT = "select exists (select from jobmill.jobs)"

#: Straight into the table, as `enqueue_many` would fill it: a million jobs in seconds. Ids sort as uuid7s do.
FILL = """
    insert into jobmill.jobs (id, queue, name, priority, due_ms, created_ms, updated_ms, payload)
    select
        lpad(to_hex(jobmill.now_ms()), 12, '0') || lpad(to_hex(n), 20, '0'), 'default', 'noop', 0,
        jobmill.now_ms() + {delay_ms}, jobmill.now_ms(), jobmill.now_ms(), '{{}}'
    from generate_series(1, {jobs}) as n
"""
DAY_MS = 24 * 60 * 60 * 1000


def missing() -> str | None:
    """It is always there."""
    return None


def fill(url: str, jobs: int) -> None:
    """Its schema and so many waiting jobs."""
    run(_fill(url, jobs))


async def _fill(url: str, jobs: int) -> None:
    client = connect(url)
    await client.store.migrate()
    await client.close()
    async with noops(url) as ours:
        await ours.fill(jobs)


def fill_deep(url: str, waiting: int, delayed: int) -> None:
    """Its schema and so many jobs, of which some are due only tomorrow."""
    fill(url, 0)
    with Session(url) as session:
        session.execute(FILL.format(jobs=delayed, delay_ms=DAY_MS))
        session.execute(FILL.format(jobs=waiting, delay_ms=0))


def drain(url: str, jobs: int, slots: int, counted: int = 0) -> Ran:
    """One worker runs all jobs; the clock is for all of them, or for the last `counted`."""
    return run(_drain(url, LEFT, jobs, slots, counted))


def drain_on_asyncio(url: str, jobs: int, slots: int) -> Ran:
    """The same, on asyncio's own loop."""
    return asyncio.run(_drain(url, LEFT, jobs, slots))


def drain_some(url: str, jobs: int, slots: int) -> Ran:
    """One worker runs so many jobs of more."""
    return run(_drain(url, None, jobs, slots))


async def _drain(url: str, left: str | None, jobs: int, slots: int, counted: int = 0) -> Ran:
    client = connect(url)
    async with draining(url, left, jobs, counted) as clock, client:

        @client.handler()
        async def noop() -> None:
            clock.run()

        async with Worker(client, concurrency=slots):
            return await clock.settled()


def exchange(url: str, batch: int, jobs: int, seconds: float) -> Ran:
    """The port's hot verb without a worker."""
    return run(draining_port.exchanging(url, batch, jobs, seconds))
