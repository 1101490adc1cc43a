"""The crontab: locks due documents, calls the user's handler, and writes when they are due again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from jobmill.core.cron import timezone_named
from jobmill.core.durations import to_ms
from jobmill.crontab.batch_run import BatchRun
from jobmill.crontab.hooks import CrontabHooks, OnDocument, OnError, OnMoment, must_propagate
from jobmill.crontab.interval import CatchUp
from jobmill.crontab.run import AGAIN, CrontabRun
from jobmill.crontab.settings import CrontabSettings, Duration, Sleep, checked_store
from jobmill.crontab.single_run import SingleRun
from jobmill.crontab.store import BatchCrontabStore, CrontabStore
from jobmill.crontab.stores.base import process_ms
from jobmill.errors import JobmillError

log = logging.getLogger("jobmill")

#: How long cancelled handlers and writes may take after the timeout of a stop.
LAST_CALLS_S = 2.0


class Crontab:
    """A scheduler over a store. It can be created outside of an event loop, and started again after a stop.

    The hooks are functions or async functions: `on_document(job)`, `on_start()`, `on_stop()`, `on_idle()` (once per
    idle period) and `on_error(error, job or None)`. A sync `on_document` runs in a thread.
    """

    def __init__(
        self,
        store: CrontabStore | None = None,
        *,
        on_document: OnDocument | None = None,
        on_start: OnMoment | None = None,
        on_stop: OnMoment | None = None,
        on_idle: OnMoment | None = None,
        on_error: OnError | None = None,
        next_delay: Duration = 0,
        reprocess_delay: Duration = 0,
        idle_delay: Duration = 0,
        lock_duration: Duration = "10m",
        concurrency: int = 1,
        timezone: str = "UTC",
        catch_up: CatchUp = "once",
        clock: Callable[[], int] | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.store = checked_store(store)
        self._hooks = CrontabHooks(on_document, on_start, on_stop, on_idle, on_error)
        timezone_named(timezone)
        self._settings = CrontabSettings(
            store=self.store,
            hooks=self._hooks,
            next_delay=to_ms(next_delay, "next_delay") / 1000,
            # With 0, an idle crontab would keep a processor busy.
            idle_delay=max(to_ms(idle_delay, "idle_delay"), 1) / 1000,
            reprocess_delay_ms=to_ms(reprocess_delay, "reprocess_delay"),
            lock_ms=to_ms(lock_duration, "lock_duration", least=1),
            concurrency=concurrency,
            timezone=timezone,
            catch_up=catch_up,
            clock=clock or process_ms,
            sleep=sleep,
        )
        self._active: CrontabRun | None = None
        self._main: asyncio.Task[None] | None = None
        #: The error that ended the last run without a stop.
        self._failure: BaseException | None = None

    # ------------------------------------------------------------------------------------------------ state

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not stopped since."""
        return self._active is not None and not self._active.is_stopping

    @property
    def is_processing(self) -> bool:
        """Whether a handler runs, or an ending is not written yet."""
        return self._active is not None and self._active.is_processing

    @property
    def is_idle(self) -> bool:
        """Whether the last lock found no due document."""
        return self._active is not None and self._active.is_idle

    # ------------------------------------------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Start, and return when `on_start` has returned. It does nothing while the crontab runs."""
        while self._main is not None and not self.is_running:
            if self._hooks.is_calling():
                raise JobmillError("a hook cannot start its crontab while the crontab stops: it would wait for itself")
            await asyncio.wait({self._main})
        if self._main is None:
            work = self._new_run()
            started = asyncio.get_running_loop().create_future()
            self._active, self._failure = work, None
            self._main = asyncio.create_task(self._run(work, started), name="jobmill crontab")
            await asyncio.shield(started)

    async def stop(self, timeout: Duration = "30s") -> None:
        """Lock no more documents, wait for running handlers and their writes, then call `on_stop`.

        After `timeout` the handlers are cancelled. Their documents stay locked, and run again when the lock has ended,
        as after a crash. When a hook calls this, it returns at once, because the stop waits for the hook. It does
        nothing if the crontab does not run.
        """
        seconds = to_ms(timeout, "timeout") / 1000
        work, main = self._active, self._main
        if work is None or main is None:
            return
        work.stop()
        if self._hooks.is_calling():
            return
        if not await _ended(main, seconds):
            work.cancel_handlers()
            # The first cancellation may hit a hanging write, the second one on_stop.
            while not await _ended(main, LAST_CALLS_S):
                main.cancel()

    async def run(self) -> None:
        """Start, and return when the crontab has stopped. Cancelling the task of this call acts like `stop()`.

        A second cancellation acts like `stop(timeout=0)`. This raises the error that ended the crontab without a stop,
        for example when a store of the user returned a job without a required field.
        """
        try:
            await self.start()
            if self._main is not None:
                await asyncio.wait({self._main})
        except asyncio.CancelledError:
            try:
                await self.stop()
            except asyncio.CancelledError:
                await self.stop(timeout=0)
            raise
        if self._failure is not None:
            raise self._failure

    async def __aenter__(self) -> Crontab:
        """Start the crontab."""
        try:
            await self.start()
        except asyncio.CancelledError:
            await self.stop(timeout=0)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the crontab."""
        await self.stop()

    # ------------------------------------------------------------------------------------------------ the run

    def _new_run(self) -> CrontabRun:
        if self._settings.concurrency > 1 and isinstance(self.store, BatchCrontabStore):
            return BatchRun(self._settings, self.store)
        return SingleRun(self._settings)

    async def _run(self, work: CrontabRun, started: asyncio.Future[None]) -> None:
        try:
            await self._hooks.moment("on_start")
            started.set_result(None)
            await self._run_to_end(work)
            await self._hooks.moment("on_stop")
        finally:
            if not started.done():
                started.set_result(None)
            self._active = self._main = None

    async def _run_to_end(self, work: CrontabRun) -> None:
        try:
            await work.run()
        except asyncio.CancelledError:
            log.error("crontab: %d endings could not be written in time; %s", work.unwritten, AGAIN)
            if (task := asyncio.current_task()) is not None:
                task.uncancel()  # on_stop is still to be called
        except BaseException as error:
            if must_propagate(error):
                raise
            self._failure = error
            work.stop()
            log.exception("crontab: stopped by an unexpected error")
            await self._hooks.error(error, None)


async def _ended(task: asyncio.Task[None], seconds: float) -> bool:
    """Whether the task ends within this time. Cancelling the caller does not cancel the task."""
    done, _ = await asyncio.wait({task}, timeout=seconds)
    return bool(done)
