"""A run of a crontab, from start to stop: the parts that single runs and batch runs share."""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from datetime import datetime
from random import Random
from typing import Any

from jobmill.core.durations import to_datetime
from jobmill.crontab.hooks import must_propagate
from jobmill.crontab.interval import is_over, next_sleep
from jobmill.crontab.job import Changes, CrontabJob, Ending, LockLost
from jobmill.crontab.settings import CrontabSettings, takes_fence
from jobmill.errors import InvalidValue, StoreError, StoreUnavailable, shown
from jobmill.runtime.backoff import LoopBackoff
from jobmill.runtime.tasks import being_cancelled
from jobmill.runtime.threads import Threads

log = logging.getLogger("jobmill")

#: An ending is given up after this number of refusals.
MAX_REFUSALS = 3
AGAIN = "their documents are handled again when their locks have ended"


class CrontabRun(abc.ABC):
    """The base of single runs and batch runs. It is created in its event loop, and used once."""

    def __init__(self, settings: CrontabSettings) -> None:
        self.settings = settings
        self.hooks = settings.hooks
        self._remove_is_fenced = takes_fence(settings.store.remove)
        self._random = Random()
        self.is_idle = False
        #: The number of documents that were handled and are not written yet.
        self.unwritten = 0
        self.handling: set[asyncio.Task[Ending | None]] = set()
        self._writing: set[asyncio.Task[None]] = set()
        self._threads = Threads()
        self._stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: Done when a document is due again; then a new future replaces it.
        self._due_again: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._handlers_cancelled = False
        #: Calls that fail at present. The key of a write is the id() of its ending.
        self.failing: set[object] = set()
        #: The number of calls that the store has answered.
        self.answers = 0

    # ------------------------------------------------------------------------------------------------ from outside

    async def run(self) -> None:
        """Run until it is stopped, no handler runs and all endings are written."""
        try:
            await self.run_until_stopped()
            while pending := {*self.handling, *self._writing}:
                await asyncio.wait(pending)
        finally:
            for task in (*self.handling, *self._writing):
                task.cancel()
            self._threads.close()

    @abc.abstractmethod
    async def run_until_stopped(self) -> None:
        """Lock, handle and write documents."""

    def stop(self) -> None:
        """Lock no more documents."""
        if not self._stop.done():
            self._stop.set_result(None)

    def cancel_handlers(self) -> None:
        """Cancel running handlers; their locks stay, as after a crash. Writes continue."""
        self._handlers_cancelled = True
        if self.handling:
            handlers = "1 handler" if len(self.handling) == 1 else f"{len(self.handling)} handlers"
            log.warning("crontab: %s did not end in time; %s", handlers, AGAIN)
        for task in self.handling:
            task.cancel()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.done()

    @property
    def is_processing(self) -> bool:
        """Whether a handler runs, or an ending is not written yet."""
        return bool(self.handling) or self.unwritten > 0

    # ------------------------------------------------------------------------------------------------ locking

    def new_backoff(self) -> LoopBackoff:
        """The pauses of a loop that calls the store."""
        return LoopBackoff(self._random)

    async def wait_for_next_lock(self) -> bool:
        """Wait for `next_delay`; False after a stop."""
        await self.pause(self.settings.next_delay)
        return not self.is_stopping

    async def try_to_lock(
        self, lock: Callable[[datetime], Awaitable[list[CrontabJob]]], backoff: LoopBackoff
    ) -> list[tuple[CrontabJob, datetime]] | None:
        """Lock documents once: each job, and the end of its lock. None after an error of the store, and a pause."""
        # In whole milliseconds, which every database can store.
        lock_until = to_datetime(self.settings.clock() + self.settings.lock_ms)
        try:
            jobs = await lock(lock_until)
        except (Exception, asyncio.CancelledError) as error:
            if being_cancelled(error):
                raise
            await self.call_failed(backoff, error)
            await self.pause(backoff.next())
            return None
        backoff.reset()
        self.call_answered(backoff)
        # The store may have written a later end. Jobs from a store that a user wrote may not have this field.
        return [(job, getattr(job, "locked_until", None) or lock_until) for job in jobs]

    def is_past(self, moment: datetime) -> bool:
        """Whether a document is due by now, or a lock has ended, so that another worker may have the document."""
        return moment <= to_datetime(self.settings.clock())

    async def nothing_due(self) -> None:
        """Note that a search for a document to lock found no due document."""
        if not self.is_idle and not self.is_processing:
            self.is_idle = True
            await self.hooks.moment("on_idle")

    def wake_resting(self) -> None:
        """A document may be due: idle loops poll again."""
        self._due_again.set_result(None)
        self._due_again = asyncio.get_running_loop().create_future()

    # ------------------------------------------------------------------------------------------------ handling

    def handle(self, job: CrontabJob, fence: datetime) -> asyncio.Task[Ending | None]:
        """Start the handler in its own task, so that cancelling it does not cancel a write."""
        self.is_idle = False
        name = f"jobmill crontab {job.id}"  # first, because a job without an id raises, and must not leave a coroutine
        task = asyncio.get_running_loop().create_task(self._handle(job, fence), name=name)
        self.handling.add(task)
        task.add_done_callback(self.handling.discard)
        return task

    @staticmethod
    def ending_of(task: asyncio.Task[Ending | None]) -> Ending | None:
        """The ending; None if there is none, or if the task was cancelled before it started."""
        return None if task.cancelled() else task.result()

    async def _handle(self, job: CrontabJob, fence: datetime) -> Ending | None:
        """The ending; None leaves the document locked, so that it runs again when the lock has ended."""
        try:
            if not is_over(job, self.settings.clock()):
                await self.hooks.document(job, self._threads)
        except asyncio.CancelledError:
            if not self._handlers_cancelled:
                await self._report(RuntimeError("the handler was cancelled"), job)
            return None
        except BaseException as error:
            if must_propagate(error):
                raise
            await self._report(error, job)
            return None
        ending = await self._decide(job, fence)
        self.unwritten += 1
        return ending

    async def _decide(self, job: CrontabJob, fence: datetime) -> Ending:
        settings = self.settings
        try:
            next = next_sleep(
                job,
                self.settings.clock(),
                timezone=settings.timezone,
                reprocess_delay_ms=settings.reprocess_delay_ms,
                catch_up=settings.catch_up,
            )
        except InvalidValue as error:
            # Complete it, so that it does not run for ever. Do not remove it, so that the user can correct it.
            await self._report(error, job)
            return Ending(id=job.id, locked_until=fence)
        return Ending(id=job.id, locked_until=fence, sleep_until=next, remove=next is None and bool(job.auto_remove))

    async def _report(self, error: BaseException, job: CrontabJob) -> None:
        """Report the error of a document. Cancelling the hook must not lose the ending of the document."""
        try:
            await self.hooks.error(error, job)
        except asyncio.CancelledError:
            if not self._handlers_cancelled:
                raise

    # ------------------------------------------------------------------------------------------------ writing

    def is_due(self, ending: Ending) -> bool:
        """Whether the document is due again at once."""
        return ending.sleep_until is not None and self.is_past(ending.sleep_until)

    async def write(self, job: CrontabJob, ending: Ending) -> None:
        """Write an ending. If that fails, a background task retries, and this returns."""
        if (error := await self.try_to_write(job, ending)) is not None:
            await self.call_failed(id(ending), error)
            self.keep_writing([(job, ending)])

    def keep_writing(self, endings: Iterable[tuple[CrontabJob, Ending]]) -> None:
        """Retry each ending separately, until it is written or given up."""
        for job, ending in endings:
            self.failing.add(id(ending))
            self.run_in_background(self._keep_writing(job, ending))

    def run_in_background(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task. The run does not end before this task has ended."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return task

    async def _keep_writing(self, job: CrontabJob, ending: Ending) -> None:
        backoff = self.new_backoff()
        refusals = 0
        while True:
            answers = self.answers
            await self.settings.sleep(backoff.next())
            error = await self.try_to_write(job, ending)
            if error is None:
                return
            refusals += self.is_refusal(error, answers)
            if refusals >= MAX_REFUSALS or self.is_past(ending.locked_until):
                self.unwritten -= 1
                self.failing.discard(id(ending))
                log.error("crontab: the ending of job %s could not be written; the job runs again", shown(job.id))
                await self.hooks.error(error, job)
                return
            await self.call_failed(id(ending), error)

    async def try_to_write(self, job: CrontabJob, ending: Ending) -> BaseException | None:
        """Write an ending once. Return the error of the store; None if the store has answered."""
        try:
            is_done = await self._send(ending)
        except (Exception, asyncio.CancelledError) as error:
            if being_cancelled(error):
                raise
            return error
        self.call_answered(id(ending))
        await self.on_written(job, ending, is_done=is_done)
        return None

    async def _send(self, ending: Ending) -> bool:
        store = self.settings.store
        if not ending.remove:
            changes = Changes(sleep_until=ending.sleep_until, locked_until=ending.locked_until)
            return await store.update(ending.id, changes) is not False
        if self._remove_is_fenced:
            return await store.remove(ending.id, locked_until=ending.locked_until) is not False  # type: ignore[call-arg]
        # This store cannot check the lock, so we check the time. After the lock, another worker may have the document.
        if self.is_past(ending.locked_until):
            return False
        return await store.remove(ending.id) is not False

    async def on_written(self, job: CrontabJob, ending: Ending, *, is_done: bool) -> None:
        """The store has answered the write of an ending."""
        self.unwritten -= 1
        if not is_done:
            advice = "the handler took longer than lock_duration, or the document was changed or removed meanwhile"
            await self._report(
                LockLost(f"the lock of the job {shown(job.id)} is lost, nothing was written: {advice}"), job
            )
        elif self.is_due(ending):
            self.wake_resting()

    def release(self, job: CrontabJob, fence: datetime) -> Ending:
        """The ending of a document that was locked during the stop: it gets its old due time back."""
        self.unwritten += 1
        return Ending(id=job.id, locked_until=fence, sleep_until=job.sleep_until)

    # ------------------------------------------------------------------------------------------------ failed calls

    async def call_failed(self, call: object, error: BaseException) -> None:
        """A call failed and will be retried. An outage is reported once, until no call fails any more."""
        is_new = not self.failing
        self.failing.add(call)
        if is_new:
            log.warning("crontab: the store is unavailable (%s: %s); trying again", type(error).__name__, error)
            await self.hooks.error(error, None)

    def call_answered(self, call: object) -> None:
        """A call succeeded."""
        self.answers += 1
        if call in self.failing:
            self.failing.discard(call)
            if not self.failing:
                log.info("crontab: the store is available again")

    def is_refusal(self, error: BaseException, answers: int) -> bool:
        """Whether the store is available and refuses this call. `answers` is the count before the call."""
        if isinstance(error, StoreError):
            return not isinstance(error, StoreUnavailable)
        # The store of a user may raise any exception: it is available if it has answered another call meanwhile.
        return self.answers != answers

    # ------------------------------------------------------------------------------------------------ sleeping

    async def pause(self, seconds: float, *futures: asyncio.Future[None]) -> None:
        """Sleep for this time, or until the stop or one of the futures."""
        if seconds > 0 and not self.is_stopping:
            sleeping = asyncio.ensure_future(self.settings.sleep(seconds))
            try:
                await asyncio.wait({sleeping, self._stop, *futures}, return_when="FIRST_COMPLETED")
            finally:
                sleeping.cancel()

    async def sleep_while_idle(self) -> None:
        """Sleep for `idle_delay`, or until a document is due again, or until the stop."""
        await self.pause(self.settings.idle_delay, self._due_again)

    async def wait_for(self, future: asyncio.Future[None]) -> None:
        """Wait for a future, or for the stop."""
        await asyncio.wait({self._stop, future}, return_when="FIRST_COMPLETED")
