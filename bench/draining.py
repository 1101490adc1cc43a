"""In the child: the clock of a drain, from the run of a handler until the database holds no live job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bench.child import BEGUN, SETTLED, halt
from bench.figures import Ran
from bench.stopwatch import Stopwatch

#: The longest that a drain may take; the slowest peer needs half a minute.
PATIENCE_S = 120.0
#: Between two looks at the database, once the last handler has run.
LOOK_S = 0.001


class Draining:
    """Every handler calls `run`.

    `is_left` asks the database whether any job is still live; without it the clock stops in the last handler, which is
    for runs that leave others waiting. Of all jobs the last `counted` count.
    """

    def __init__(self, is_left: Callable[[], Awaitable[bool]] | None, jobs: int, counted: int = 0) -> None:
        self._is_left = is_left
        self._jobs = jobs
        self._counted = counted or jobs
        self._first = jobs - self._counted + 1
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
            while self._is_left is not None:
                if not await self._is_left():
                    break
                await asyncio.sleep(LOOK_S)
        assert self._watch is not None
        ran = self._watch.ran(self._counted)
        halt(SETTLED)
        return ran
