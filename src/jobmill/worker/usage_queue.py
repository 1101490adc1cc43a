"""Meters: usage on its way to a function of the user's own, or to a table, with a line of its own for each.

Nothing that happens here is a job's concern. Plain functions run in a thread, as handlers do, so that one that blocks
holds nobody up; a line that is full takes nothing more; what a meter raises is logged, and goes no further.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Awaitable
from random import Random
from typing import Any

from jobmill.core.usage import Usage
from jobmill.errors import StoreUnavailable
from jobmill.handlers.usage import Meter, RecordsUsage
from jobmill.runtime.backoff import Backing
from jobmill.runtime.handoff import Line
from jobmill.runtime.tasks import being_cancelled
from jobmill.runtime.threads import Threads

log = logging.getLogger("jobmill")

#: Records that may wait for one meter; what comes after them is dropped.
MOST_WAITING = 10_000
#: How long a record waits for company on its way to a table.
COLLECT_S = 1.0
#: How often the same complaint is logged: it may be true of every job.
COMPLAIN_S = 60.0
#: How long an async meter that waits for nothing may keep the event loop.
BUSY_S = 0.002


class MeterLine:
    """One meter, and the records that wait for it."""

    def __init__(self, meter: Meter, threads: Threads, random: Random) -> None:
        self._meter: Any = meter
        self._threads = threads
        self._random = random
        keeps = isinstance(meter, RecordsUsage)
        call = self._call if inspect.iscoroutinefunction(meter) else self._call_in_thread
        self._line: Line[Usage] = Line(
            "meter", self._keep if keeps else call, most=MOST_WAITING, collect_s=COLLECT_S if keeps else 0.0
        )
        self._full = Complaint("the meter %r is too slow: %d usage records were dropped", meter)
        self._raised = Complaint("the meter %r raised, over %d usage records; no job is affected", meter)

    def start(self) -> None:
        """Begin to hand on."""
        self._line.start()

    def put(self, usage: Usage) -> None:
        """Put a record in line; never waits, never raises."""
        if not self._line.put(usage):
            self._full.about(1)

    async def stop(self, timeout: float) -> None:
        """Hand on what is in line, within this time, and say how much was not."""
        left = await self._line.stop(timeout)
        if left:
            log.error("%d usage records did not reach the meter %r in %g s, and are lost", left, self._meter, timeout)
        self._full.say()
        self._raised.say()

    # ------------------------------------------------------------------------------------------------ functions

    async def _call(self, line: deque[Usage]) -> None:
        pause_at = time.monotonic() + BUSY_S
        while line:
            try:
                await self._meter(line.popleft())
            except BaseException as error:
                self._survive(error, 1)
            if time.monotonic() > pause_at:
                await asyncio.sleep(0)
                pause_at = time.monotonic() + BUSY_S

    async def _call_in_thread(self, line: deque[Usage]) -> None:
        # A thread cannot be stopped. One that is left finds the line empty after the call that it is in.
        for answer in await self._threads.run(lambda: self._calls(line)):
            try:
                await answer
            except BaseException as error:
                self._survive(error, 1)

    def _calls(self, line: deque[Usage]) -> list[Awaitable[Any]]:
        """One call a record; what came back to be awaited, as from a lambda or an object around an async function."""
        answers: list[Awaitable[Any]] = []
        while True:
            try:
                usage = line.popleft()
            except IndexError:
                return answers
            try:
                answer = self._meter(usage)
                if inspect.isawaitable(answer):
                    answers.append(answer)
            except BaseException as error:
                self._raised.about(1, error)

    # ------------------------------------------------------------------------------------------------ tables

    async def _keep(self, line: deque[Usage]) -> None:
        records = list(line)
        pause = Backing(self._random)
        while not await self._is_done(records, pause):
            pass
        line.clear()

    async def _is_done(self, records: list[Usage], pause: Backing) -> bool:
        """Whether they are kept, or given up."""
        try:
            await self._meter.record_usage(records)
        except StoreUnavailable as error:
            wait = pause.next()
            log.warning("the meter %r is away (%s); trying again in %.1f s", self._meter, error, wait)
            await asyncio.sleep(wait)
            return False
        except BaseException as error:
            self._survive(error, len(records))
        return True

    def _survive(self, error: BaseException, records: int) -> None:
        """Whatever a meter raises, SystemExit too, must not take the worker down; only our own end is no error."""
        if being_cancelled(error):
            raise error
        self._raised.about(records, error)


class Complaint:
    """Said at once and then at most once a minute, with the number of records that it is about."""

    def __init__(self, text: str, meter: Meter) -> None:
        self._text = text
        self._meter = meter
        self._unsaid = 0
        self._error: BaseException | None = None
        self._not_before = 0.0

    def about(self, records: int, error: BaseException | None = None) -> None:
        """It is true of so many more."""
        self._unsaid += records
        self._error = error
        if time.monotonic() >= self._not_before:
            self.say()

    def say(self) -> None:
        """Say what is unsaid, if anything is."""
        if self._unsaid:
            log.error(self._text, self._meter, self._unsaid, exc_info=self._error)
            self._unsaid = 0
            self._error = None
            self._not_before = time.monotonic() + COMPLAIN_S
