"""Files with jobs in them, made before anything is measured."""

from __future__ import annotations

import asyncio

from bench.ours.noop import noops
from jobmill.handlers.handler import Draft
from jobmill.handlers.options import NO_OPTIONS_GIVEN


def fill(url: str, jobs: int, busy: bool = False) -> None:
    """So many waiting jobs; with `busy`, one of that name before them."""
    asyncio.run(_fill(url, jobs, busy))


async def _fill(url: str, jobs: int, busy: bool) -> None:
    async with noops(url) as ours:
        if busy:
            await ours.client.enqueue_many([Draft("busy", b"{}", NO_OPTIONS_GIVEN)])
        await ours.fill(jobs)


def top_up(url: str, due: int, delayed: int) -> None:
    """Bring a file (back) to so many due jobs and so many delayed ones, without finished ones.

    The delayed ones are of the first call; later calls find them there.
    """
    asyncio.run(_top_up(url, due, delayed))


async def _top_up(url: str, due: int, delayed: int) -> None:
    async with noops(url) as ours:
        await ours.client.remove(states=["succeeded"])
        waiting = sum(one.count for one in await ours.client.count(states=["waiting"]))
        if not waiting:
            await ours.fill(delayed, delay="1d")
            waiting = delayed
        await ours.fill(due + delayed - waiting)
