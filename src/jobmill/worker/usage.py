"""Usage: makes one record of every run that started, and passes it to the usage recorders of the application.

A record is made when the run is over and the store has answered its settlement. Its times are those of the handler. Its
outcome is the one that the store accepted: two runs of a job cannot both have succeeded, even if one came too late.

Recorders cannot harm a job. Plain functions run in a thread, as handlers do, so that a blocking one delays no loop.
A full queue drops new records, and errors of a recorder are logged.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Awaitable, Sequence
from random import Random
from typing import Any

from msgspec import Struct

from jobmill.core.usage import GLOBAL, RunEnded, Usage
from jobmill.core.values import Ended
from jobmill.errors import StoreUnavailable
from jobmill.handlers.usage import UsageRecorder
from jobmill.runtime.backoff import LoopBackoff
from jobmill.runtime.handoff import HandoffQueue
from jobmill.runtime.tasks import being_cancelled
from jobmill.runtime.threads import Threads
from jobmill.store import RecordsUsage, Store
from jobmill.worker.running import Run

log = logging.getLogger("jobmill")

#: How long recorders may take for the last records when the worker stops.
LAST_RECORDS_S = 5.0
#: How many records may wait for one recorder; further ones are dropped.
MAX_WAITING = 10_000
#: How long a record waits for others before a batch goes to a table.
COLLECT_S = 1.0
#: The same message is logged at most this often: it may be true of every job.
LOG_EVERY_S = 60.0
#: How long an async recorder that awaits nothing may keep the event loop.
MAX_BUSY_S = 0.002


class _RunTime(Struct):
    """When the handler of a run was called, and how long it ran."""

    started_ms: int
    began: float
    duration_ms: float = 0.0


class UsageLog:
    """Keeps the times of each run until its record is written, which happens once."""

    def __init__(self, store: Store, worker: str, queues: Sequence[UsageQueue]) -> None:
        self._store = store
        self._worker = worker
        self._queues = queues
        self._open: dict[Run, _RunTime] = {}

    def start(self) -> None:
        """Start the queues."""
        for queue in self._queues:
            queue.start()

    def began(self, run: Run) -> None:
        """The handler is about to be called."""
        self._open[run] = _RunTime(self._store.now(), time.monotonic())

    def ended(self, run: Run) -> None:
        """The handler has ended, or its thread was abandoned. The outcome is not known yet, unless the run was lost."""
        times = self._open.get(run)
        if times is not None:
            times.duration_ms = (time.monotonic() - times.began) * 1000
        if run.lost_as is not None:
            self.settled(run, run.lost_as)

    def lost(self, run: Run, ended: RunEnded) -> None:
        """This worker has lost the run; the handler may have ended before that was known."""
        run.lost_as = ended
        if run.over:
            self.settled(run, ended)

    def settled(self, run: Run, outcome: Ended | RunEnded) -> None:
        """The outcome of the run is known: write its record."""
        assert outcome != "crashed", "crashed jobs are settled without a run"
        times = self._open.pop(run, None)
        if times is None:
            return
        job = run.claimed.job
        usage = Usage(
            job_id=job.id,
            name=job.name,
            queue=job.queue,
            tenant=GLOBAL if job.tenant is None else job.tenant,
            attempt=job.attempt,
            outcome=outcome,
            duration_ms=times.duration_ms,
            started_ms=times.started_ms,
            # Computed, because corrections of the store's clock could otherwise put the end before the start.
            finished_ms=times.started_ms + round(times.duration_ms),
            worker=self._worker,
        )
        for queue in self._queues:
            queue.add(usage)

    async def stop(self) -> None:
        """Record runs that the store did not settle as lost, and pass on the last records."""
        for run in list(self._open):
            if not run.over:
                self.ended(run)
            self.settled(run, "lost")
        await asyncio.gather(*(queue.finish() for queue in self._queues))


class UsageQueue(HandoffQueue[Usage]):
    """One recorder, and the records that wait for it."""

    def __init__(self, recorder: UsageRecorder, threads: Threads, random: Random) -> None:
        if isinstance(recorder, RecordsUsage):
            super().__init__("usage", self._record, max_items=MAX_WAITING, collect_s=COLLECT_S)
        else:
            call = self._call if inspect.iscoroutinefunction(recorder) else self._call_in_thread
            super().__init__("usage", call, max_items=MAX_WAITING)
        self._recorder: Any = recorder
        self._threads = threads
        self._random = random
        self._dropped = RepeatedError("the usage recorder %r is too slow: %d usage records were dropped", recorder)
        self._raised = RepeatedError(
            "the usage recorder %r raised an error for %d usage records; no job is affected", recorder
        )

    def add(self, usage: Usage) -> None:
        """Add a record; never waits, never raises."""
        if not self.put(usage):
            self._dropped.add(1)

    async def finish(self) -> None:
        """Pass on the last records within 5 s, and log how many are lost."""
        left = await self.stop(LAST_RECORDS_S)
        if left:
            text = "%d usage records did not reach the recorder %r in %g s, and are lost"
            log.error(text, left, self._recorder, LAST_RECORDS_S)
        self._dropped.log_now()
        self._raised.log_now()

    # ------------------------------------------------------------------------------------------------ functions

    async def _call(self, records: deque[Usage]) -> None:
        pause_at = time.monotonic() + MAX_BUSY_S
        while records:
            try:
                await self._recorder(records.popleft())
            except BaseException as error:
                self._survive(error, 1)
            if time.monotonic() > pause_at:
                await asyncio.sleep(0)
                pause_at = time.monotonic() + MAX_BUSY_S

    async def _call_in_thread(self, records: deque[Usage]) -> None:
        # A thread cannot be stopped, but an abandoned one finds no more records after its present call.
        for answer in await self._threads.run(lambda: self._call_each(records)):
            try:
                await answer
            except BaseException as error:
                self._survive(error, 1)

    def _call_each(self, records: deque[Usage]) -> list[Awaitable[Any]]:
        """Call the recorder for each record. Returns awaitables, for example of a lambda that calls a coroutine."""
        answers: list[Awaitable[Any]] = []
        while True:
            try:
                usage = records.popleft()
            except IndexError:
                return answers
            try:
                answer = self._recorder(usage)
                if inspect.isawaitable(answer):
                    answers.append(answer)
            except BaseException as error:
                self._raised.add(1, error)

    # ------------------------------------------------------------------------------------------------ tables

    async def _record(self, waiting: deque[Usage]) -> None:
        records = list(waiting)
        backoff = LoopBackoff(self._random)
        while True:
            try:
                await self._recorder.record_usage(records)
            except StoreUnavailable as error:
                wait = backoff.next()
                text = "the usage recorder %r is unavailable (%s); trying again in %.1f s"
                log.warning(text, self._recorder, error, wait)
                await asyncio.sleep(wait)
                continue
            except BaseException as error:
                self._survive(error, len(records))
            waiting.clear()
            return

    def _survive(self, error: BaseException, records: int) -> None:
        """Nothing that a recorder raises, not even SystemExit, may stop the worker; only its own cancellation does."""
        if being_cancelled(error):
            raise error
        self._raised.add(records, error)


class RepeatedError:
    """An error that is logged at once and then at most once a minute, with the number of records that it affected."""

    def __init__(self, text: str, recorder: UsageRecorder) -> None:
        self._text = text
        self._recorder = recorder
        self._unlogged = 0
        self._error: BaseException | None = None
        self._not_before = 0.0

    def add(self, records: int, error: BaseException | None = None) -> None:
        """The error affected this many more records."""
        self._unlogged += records
        self._error = error
        if time.monotonic() >= self._not_before:
            self.log_now()

    def log_now(self) -> None:
        """Log what is not logged yet."""
        if self._unlogged:
            log.error(self._text, self._recorder, self._unlogged, exc_info=self._error)
            self._unlogged = 0
            self._error = None
            self._not_before = time.monotonic() + LOG_EVERY_S
