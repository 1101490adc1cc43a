"""From one start to its stop: what both ways of working share. Handling, deciding, writing, idling, and bad days."""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime
from random import Random
from typing import Any

import msgspec

from jobmill.core.durations import to_datetime
from jobmill.crontab.hooks import Hooks, is_to_pass
from jobmill.crontab.interval import next_sleep
from jobmill.crontab.job import Changes, CrontabJob, Ending, LockLost
from jobmill.crontab.settings import Settings, Sleep
from jobmill.crontab.store import CrontabStore
from jobmill.errors import InvalidValue, StoreError, StoreUnavailable, shown
from jobmill.runtime.backoff import LoopBackoff
from jobmill.runtime.tasks import being_cancelled
from jobmill.runtime.threads import Threads

log = logging.getLogger("jobmill")

#: An ending that the store refuses so often will not be taken the next time either.
REFUSALS = 3


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """What a crontab hands to its work."""

    store: CrontabStore
    remove_is_fenced: bool
    settings: Settings
    hooks: Hooks
    clock: Callable[[], int]
    sleep: Sleep
    random: Random


class Work(abc.ABC):
    """The base of the two ways; it is made in the loop that runs it, and used once."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.settings = tools.settings
        self.hooks = tools.hooks
        self.is_idle = False
        #: Documents that were handled and are not yet written.
        self.unwritten = 0
        self.handling: set[asyncio.Task[Ending | None]] = set()
        self._writing: set[asyncio.Task[None]] = set()
        self._threads = Threads()
        self._stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: Rung when something is due; then there is a new one.
        self.stirred: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hurried = False
        #: Calls that have failed, and have not been answered since; one that writes is known by its ending.
        self._failing: set[object] = set()
        #: How many calls the store has answered.
        self.answers = 0

    # ------------------------------------------------------------------------------------------------ from outside

    async def run(self) -> None:
        """Until it is stopped, nothing is handled and everything is written."""
        try:
            await self.turn_until_stopped()
            while pending := {*self.handling, *self._writing}:
                await asyncio.wait(pending)
        finally:
            for task in (*self.handling, *self._writing):
                task.cancel()
            self._threads.close()

    @abc.abstractmethod
    async def turn_until_stopped(self) -> None:
        """Lock, handle and write."""

    def stop(self) -> None:
        """Lock nothing more."""
        if not self._stop.done():
            self._stop.set_result(None)

    def hurry(self) -> None:
        """Cancel the handlers that still run; their locks stay, as after a crash. Writes go on."""
        self._hurried = True
        if self.handling:
            log.warning("crontab: %d handlers did not end in time; their locks will end", len(self.handling))
        for task in self.handling:
            task.cancel()

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stop.done()

    @property
    def is_processing(self) -> bool:
        """Whether a document is being handled or waits for its final write."""
        return bool(self.handling) or self.unwritten > 0

    # ------------------------------------------------------------------------------------------------ locking

    async def goes_on(self) -> bool:
        """Wait as long as a lock has to wait; whether there is to be one."""
        await self.pause(self.settings.next_delay)
        return not self.is_stopping

    def lock_until(self) -> datetime:
        """The lock for a document that is taken now: of whole milliseconds, or no database would give back the same."""
        return to_datetime(self.tools.clock() + self.settings.lock_ms)

    @staticmethod
    def fence_of(job: CrontabJob, lock_until: datetime) -> datetime:
        """The lock as it was written; a store of the user's own may have jobs that do not name it."""
        return getattr(job, "locked_until", None) or lock_until

    def has_ended(self, lock: datetime) -> bool:
        """Whether the document may be another worker's by now."""
        return lock <= to_datetime(self.tools.clock())

    async def missed(self) -> None:
        """Nothing is due."""
        if not self.is_idle and not self.is_processing:
            self.is_idle = True
            await self.hooks.moment("on_idle")

    def stir(self) -> None:
        """Something may be due: whoever rests looks again."""
        self.stirred.set_result(None)
        self.stirred = asyncio.get_running_loop().create_future()

    # ------------------------------------------------------------------------------------------------ handling

    def handle(self, job: CrontabJob, fence: datetime) -> asyncio.Task[Ending | None]:
        """The handler, in a task of its own: cancelling it leaves alone what writes."""
        self.is_idle = False
        name = f"jobmill crontab {job.id}"  # first: what has no id must not leave a coroutine behind
        task = asyncio.get_running_loop().create_task(self._handle(job, fence), name=name)
        self.handling.add(task)
        task.add_done_callback(self.handling.discard)
        return task

    @staticmethod
    def ending_of(task: asyncio.Task[Ending | None]) -> Ending | None:
        """What became of it; None as well when it was cancelled before it began."""
        return None if task.cancelled() else task.result()

    async def _handle(self, job: CrontabJob, fence: datetime) -> Ending | None:
        """How the document is to be left; None leaves it locked, to be taken again when the lock has ended."""
        try:
            await self.hooks.document(job, self._threads)
        except asyncio.CancelledError:
            if not self._hurried:
                await self._tell(RuntimeError("the handler was cancelled"), job)
            return None
        except BaseException as error:
            if is_to_pass(error):
                raise
            await self._tell(error, job)
            return None
        ending = await self._decide(job, fence)
        self.unwritten += 1
        return ending

    async def _decide(self, job: CrontabJob, fence: datetime) -> Ending:
        ruled = self.settings
        try:
            next = next_sleep(
                job,
                self.tools.clock(),
                timezone=ruled.timezone,
                reprocess_delay_ms=ruled.reprocess_delay_ms,
                catch_up=ruled.catch_up,
            )
        except InvalidValue as error:
            # Completed, or it would come again for ever; but not removed, so that somebody can mend it.
            await self._tell(error, job)
            return Ending(id=job.id, locked_until=fence)
        return Ending(id=job.id, locked_until=fence, sleep_until=next, remove=next is None and bool(job.auto_remove))

    async def _tell(self, error: BaseException, job: CrontabJob) -> None:
        """Tell of a document's error; cutting the hook short must not lose what was decided on the document."""
        try:
            await self.hooks.error(error, job)
        except asyncio.CancelledError:
            if not self._hurried:
                raise

    # ------------------------------------------------------------------------------------------------ writing

    def is_due(self, ending: Ending) -> bool:
        """Whether the document is to run again at once."""
        return ending.sleep_until is not None and ending.sleep_until <= to_datetime(self.tools.clock())

    async def write(self, job: CrontabJob, ending: Ending) -> None:
        """Write an ending. If the store does not take it, that is tried again beside; the caller goes on."""
        if (error := await self.try_to_write(job, ending)) is not None:
            await self.away(id(ending), error)
            self.keep_writing([(job, ending)])

    def keep_writing(self, endings: Iterable[tuple[CrontabJob, Ending]]) -> None:
        """Try each again, by itself, until it is written or there is no sense in it."""
        for job, ending in endings:
            self._failing.add(id(ending))
            self.beside(self._keep_writing(job, ending))

    def beside(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run what the end of the work waits for."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return task

    async def _keep_writing(self, job: CrontabJob, ending: Ending) -> None:
        backoff = LoopBackoff(self.tools.random)
        refusals = 0
        while True:
            answers = self.answers
            await self.tools.sleep(backoff.next())
            error = await self.try_to_write(job, ending)
            if error is None:
                return
            refusals += self.is_refusal(error, answers)
            if refusals >= REFUSALS or self.has_ended(ending.locked_until):
                self.unwritten -= 1
                self.gave_up(id(ending))
                log.error("crontab: the end of the job %s could not be written; it runs again", shown(job.id))
                await self.hooks.error(error, job)
                return
            await self.away(id(ending), error)

    async def try_to_write(self, job: CrontabJob, ending: Ending) -> BaseException | None:
        """What the store raised; None when it has answered."""
        try:
            is_done = await self._send(ending)
        except (Exception, asyncio.CancelledError) as error:
            if being_cancelled(error):
                raise
            return error
        self.answered(id(ending))
        await self.written(job, ending, is_done=is_done)
        return None

    async def _send(self, ending: Ending) -> bool:
        store = self.tools.store
        if not ending.remove:
            changes = Changes(sleep_until=ending.sleep_until, locked_until=ending.locked_until)
            return await store.update(ending.id, changes) is not False
        if self.tools.remove_is_fenced:
            return await store.remove(ending.id, locked_until=ending.locked_until) is not False  # type: ignore[call-arg]
        # Without a fence there is only the time: once the lock has ended, the document may be another worker's.
        if self.has_ended(ending.locked_until):
            return False
        return await store.remove(ending.id) is not False

    async def written(self, job: CrontabJob, ending: Ending, *, is_done: bool) -> None:
        """The store has answered to an ending."""
        self.unwritten -= 1
        if not is_done:
            advice = "the handler took longer than lock_duration, or the document was changed or removed meanwhile"
            await self._tell(
                LockLost(f"the lock of the job {shown(job.id)} is lost, nothing was written: {advice}"), job
            )
        elif self.is_due(ending):
            self.stir()

    async def give_back(self, job: CrontabJob, fence: datetime) -> None:
        """A document that was locked when the stop came: it is due again as it was."""
        self.unwritten += 1
        await self.write(job, Ending(id=job.id, locked_until=fence, sleep_until=job.sleep_until))

    # ------------------------------------------------------------------------------------------------ bad days

    async def away(self, call: object, error: BaseException) -> None:
        """A call failed, and will be tried again. While any does, that is one outage: it is said once."""
        is_new = not self._failing
        self._failing.add(call)
        if is_new:
            log.warning("crontab: the store is away (%s: %s); trying again", type(error).__name__, error)
            await self.hooks.error(error, None)

    def answered(self, call: object) -> None:
        """A call was answered."""
        self.answers += 1
        if call in self._failing:
            self._failing.discard(call)
            if not self._failing:
                log.info("crontab: the store is back")

    def is_refusal(self, error: BaseException, answers: int) -> bool:
        """Whether the store is there and does not want this, as far as can be known; `answers`: how many there were."""
        if isinstance(error, StoreError):
            return not isinstance(error, StoreUnavailable)
        # A store of the user's own raises what it likes: then it is there if it has answered to another call meanwhile.
        return self.answers != answers

    def gave_up(self, call: object) -> None:
        """A call that failed is not tried again, in this form."""
        self._failing.discard(call)

    # ------------------------------------------------------------------------------------------------ sleeping

    async def pause(self, seconds: float) -> None:
        """Sleep, at most until the stop."""
        if seconds > 0 and not self.is_stopping:
            await self._first_of(seconds, self._stop)

    async def rest(self) -> None:
        """Sleep while there is nothing to do, at most until something is due."""
        if not self.is_stopping:
            await self._first_of(self.settings.idle_delay, self._stop, self.stirred)

    async def wait_for(self, bell: asyncio.Future[None]) -> None:
        """Sleep until it is rung, or the stop."""
        await asyncio.wait({self._stop, bell}, return_when="FIRST_COMPLETED")

    async def _first_of(self, seconds: float, *bells: asyncio.Future[None]) -> None:
        sleeping = asyncio.ensure_future(self.tools.sleep(seconds))
        try:
            await asyncio.wait({sleeping, *bells}, return_when="FIRST_COMPLETED")
        finally:
            sleeping.cancel()
