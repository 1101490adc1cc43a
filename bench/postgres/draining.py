"""In the child: the clock of a drain, from the run of a handler until the database holds no live job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from bench.child import BEGUN, SETTLED, halt
from bench.figures import Ran
from bench.stopwatch import Stopwatch

#: The longest that a drain may take; the slowest peer needs half a minute.
PATIENCE_S = 120.0
#: Between two looks at the database, once the last handler has run.
LOOK_S = 0.001


class Draining:
    """Every handler calls `run`."""

    def __init__(self, connection: asyncpg.Connection, left: str | None, jobs: int, counted: int) -> None:
        self._connection = connection
        self._left = left
        self._jobs = jobs
        self._counted = counted
        self._first = jobs - counted + 1
        self._ran = 0
        self._watch: Stopwatch | None = None
        self._all_ran = asyncio.Event()

    def run(self) -> None:
        """One more handler runs."""
        self._ran += 1
        if self._ran == self._first:
            halt(BEGUN)
            self._watch = Stopwatch()
        if self._ran == self._jobs:
            self._all_ran.set()

    async def settled(self) -> Ran:
        """What it took until all had run, and until the database said that none was left."""
        async with asyncio.timeout(PATIENCE_S):
            await self._all_ran.wait()
            while self._left is not None:
                if not await self._connection.fetchval(self._left):
                    break
                await asyncio.sleep(LOOK_S)
        assert self._watch is not None
        ran = self._watch.ran(self._counted)
        halt(SETTLED)
        return ran


@asynccontextmanager
async def draining(url: str, left: str | None, jobs: int, counted: int = 0) -> AsyncIterator[Draining]:
    """The clock of so many jobs, or of the last `counted` of them.

    `left` is a query for whether any is still live; without one the clock stops in the last handler, which is for
    runs that leave others waiting.
    """
    connection = await asyncpg.connect(url)
    try:
        if left is not None:
            await connection.fetchval(left)
        yield Draining(connection, left, jobs, counted or jobs)
    finally:
        await connection.close()
