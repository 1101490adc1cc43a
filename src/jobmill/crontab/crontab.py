"""The crontab: takes documents that are due, calls the user's handler, and writes when they are due again."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from random import Random

from jobmill.core.durations import to_ms
from jobmill.crontab.batches import Batches
from jobmill.crontab.hooks import Hooks, is_to_pass
from jobmill.crontab.interval import CatchUp
from jobmill.crontab.loops import Loops
from jobmill.crontab.run import Tools, Work
from jobmill.crontab.settings import (
    Duration,
    OnDocument,
    OnError,
    OnMoment,
    Sleep,
    checked_store,
    settings,
)
from jobmill.crontab.store import BatchCrontabStore, CrontabStore
from jobmill.crontab.stores.clock import process_ms
from jobmill.errors import JobmillError

log = logging.getLogger("jobmill")

#: What handlers that were cancelled, and writes, still get when the time of a stop is over.
LAST_WORDS_S = 2.0


class Crontab:
    """A scheduler over a store. It may be made anywhere, and is started in a loop; again after a stop if need be.

    Hooks are functions or async functions: `on_document(job)`, `on_start()`, `on_stop()`, `on_idle()`, once per idle
    period, and `on_error(error, job or None)`. An `on_document` that is not async runs in a thread.
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
        self._tools = Tools(
            store=self.store,
            remove_is_fenced=_takes_a_fence(self.store.remove),
            hooks=Hooks(on_document, on_start, on_stop, on_idle, on_error),
            settings=settings(
                next_delay=next_delay,
                reprocess_delay=reprocess_delay,
                idle_delay=idle_delay,
                lock_duration=lock_duration,
                concurrency=concurrency,
                timezone=timezone,
                catch_up=catch_up,
            ),
            clock=clock or process_ms,
            sleep=sleep,
            random=Random(),
        )
        self._work: Work | None = None
        self._main: asyncio.Task[None] | None = None
        #: What ended the last work without a stop.
        self._failure: BaseException | None = None

    # ------------------------------------------------------------------------------------------------ state

    @property
    def is_running(self) -> bool:
        """Whether it was started and not told to stop."""
        return self._work is not None and not self._work.is_stopping

    @property
    def is_processing(self) -> bool:
        """Whether a document is being handled, or waits for its final write."""
        return self._work is not None and self._work.is_processing

    @property
    def is_idle(self) -> bool:
        """Whether the last look found nothing that is due."""
        return self._work is not None and self._work.is_idle

    # ------------------------------------------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Begin, and return when `on_start` has; harmless when it runs. While it stops, this waits for the end."""
        while self._main is not None and not self.is_running:
            if self._tools.hooks.is_calling():
                raise JobmillError("a hook cannot start its crontab while that stops: it would wait for itself")
            await asyncio.wait({self._main})
        if self._main is None:
            work = self._new_work()
            started = asyncio.get_running_loop().create_future()
            self._work, self._failure = work, None
            self._main = asyncio.create_task(self._run(work, started), name="jobmill crontab")
            await asyncio.shield(started)

    async def stop(self, timeout: Duration = "30s") -> None:
        """Lock nothing more, wait for the handlers that run and for what they write, then call `on_stop`.

        After `timeout` the handlers are cancelled: their documents stay locked, and are taken again when the lock has
        ended, as after a crash. Called by a hook, which cannot wait for its own end, this returns at once. It is
        harmless when nothing runs.
        """
        seconds = to_ms(timeout, "timeout") / 1000
        work, main = self._work, self._main
        if work is None or main is None:
            return
        work.stop()
        if self._tools.hooks.is_calling():
            return
        if not await _ended(main, seconds):
            work.hurry()
            # The first time what hangs may be a write, and then on_stop.
            while not await _ended(main, LAST_WORDS_S):
                main.cancel()

    async def run(self) -> None:
        """Start, and return when it has been stopped. Cancelling the task that runs this stops it as `stop()` does.

        Cancelling it once more stops it as `stop(timeout=0)` does. It raises what ended the crontab without a stop: a
        job, say, that a store of the user's own has made and that lacks a field.
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
        """Start."""
        try:
            await self.start()
        except asyncio.CancelledError:
            await self.stop(timeout=0)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        await self.stop()

    # ------------------------------------------------------------------------------------------------ the work

    def _new_work(self) -> Work:
        store = self._tools.store
        if self._tools.settings.concurrency > 1 and isinstance(store, BatchCrontabStore):
            return Batches(self._tools, store)
        return Loops(self._tools)

    async def _run(self, work: Work, started: asyncio.Future[None]) -> None:
        hooks = self._tools.hooks
        try:
            await hooks.moment("on_start")
            started.set_result(None)
            await self._work_off(work)
            await hooks.moment("on_stop")
        finally:
            if not started.done():
                started.set_result(None)
            self._work = self._main = None

    async def _work_off(self, work: Work) -> None:
        try:
            await work.run()
        except asyncio.CancelledError:
            log.error("crontab: %d endings could not be written in time; their locks will end", work.unwritten)
            if (task := asyncio.current_task()) is not None:
                task.uncancel()  # on_stop is still to be called
        except BaseException as error:
            if is_to_pass(error):
                raise
            self._failure = error
            work.stop()
            log.exception("crontab: this must not happen; it has stopped")
            await self._tools.hooks.error(error, None)


def _takes_a_fence(remove: Callable[..., object]) -> bool:
    try:
        return "locked_until" in inspect.signature(remove).parameters
    except (TypeError, ValueError):  # a function whose parameters Python does not know
        return False


async def _ended(task: asyncio.Task[None], seconds: float) -> bool:
    """Whether it ends within that time; cancelling the caller does not cancel it."""
    done, _ = await asyncio.wait({task}, timeout=seconds)
    return bool(done)
