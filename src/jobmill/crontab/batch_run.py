"""A run in batches: one call locks as many documents as can run, another call writes all endings.

Handlers that end while a write is in flight go into the next write. So batches grow under load, and nothing waits when
the crontab is idle.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

from jobmill.crontab.job import CrontabJob, Ending
from jobmill.crontab.run import CrontabRun
from jobmill.crontab.settings import CrontabSettings
from jobmill.crontab.store import BatchCrontabStore
from jobmill.errors import StoreError
from jobmill.runtime.tasks import being_cancelled


class BatchRun(CrontabRun):
    """Has at most one lock call and one write call in flight."""

    def __init__(self, settings: CrontabSettings, store: BatchCrontabStore) -> None:
        super().__init__(settings)
        self._store = store
        self._ended: list[tuple[CrontabJob, Ending]] = []
        self._is_writing = False
        self._freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # ------------------------------------------------------------------------------------------------ locking

    async def run_until_stopped(self) -> None:
        """Lock as many documents as can run, until the stop."""
        backoff = self.new_backoff()
        while await self.wait_for_next_lock():
            if self._room() == 0:
                await self.wait_for(self._freed)
                continue
            found = await self.try_to_lock(self._lock_many, backoff)
            for job, fence in found or ():
                self._begin(job, fence)
            if found == []:
                await self.nothing_due()
                await self.sleep_while_idle()

    async def _lock_many(self, lock_until: datetime) -> list[CrontabJob]:
        return await self._store.lock_many(lock_until, self._room())

    def _room(self) -> int:
        # The number of unwritten endings is limited too, to two batches: one is in flight while the next one grows.
        concurrency = self.settings.concurrency
        return 0 if self.unwritten >= 2 * concurrency else concurrency - len(self.handling)

    def _begin(self, job: CrontabJob, fence: datetime) -> None:
        if self.is_stopping:
            self._over(job, self.release(job, fence))
            return
        self.handle(job, fence).add_done_callback(lambda task: self._over(job, self.ending_of(task)))

    # ------------------------------------------------------------------------------------------------ writing

    def _over(self, job: CrontabJob, ending: Ending | None) -> None:
        if ending is not None:
            self._ended.append((job, ending))
            if not self._is_writing:
                self._is_writing = True
                self.run_in_background(self._write_all())
        self._free()

    def _free(self) -> None:
        """Another document can be locked."""
        if not self._freed.done():
            self._freed.set_result(None)
        self._freed = asyncio.get_running_loop().create_future()
        if not self.is_processing:
            # The last lock that found nothing did not count as idle, because a handler was still running.
            self.wake_resting()

    async def _write_all(self) -> None:
        backoff = self.new_backoff()
        answers = self.answers
        try:
            while self._ended:
                batch, self._ended = self._ended, []
                error = await self._try_to_write_all(batch)
                if error is None:
                    backoff.reset()
                    answers = self.answers
                    continue
                await self.call_failed("write", error)
                if len(batch) == 1 or self.answers != answers or self.is_refusal(error, answers):
                    self._split(batch)
                else:
                    await self._retry(batch, backoff.next())
        finally:
            self._is_writing = False

    async def _try_to_write_all(self, batch: list[tuple[CrontabJob, Ending]]) -> BaseException | None:
        """The error of the store; None if it has answered."""
        try:
            answers = await self._store.finish_many([ending for _, ending in batch])
            if len(answers) != len(batch):
                raise StoreError(f"finish_many returned {len(answers)} answers for {len(batch)} endings")
        except (Exception, asyncio.CancelledError) as error:
            if being_cancelled(error):
                raise
            return error
        self.call_answered("write")
        for (job, ending), is_done in zip(batch, answers, strict=True):
            await self.on_written(job, ending, is_done=is_done)
        self._free()
        return None

    async def _retry(self, batch: list[tuple[CrontabJob, Ending]], wait: float) -> None:
        """An ending that raises in the store must not block the others. While the store is down, try only one."""
        await self.settings.sleep(wait)
        first, *others = batch
        if await self.try_to_write(*first) is None:
            self._free()
            if await self._try_to_write_all(others) is not None:
                self._split(others)
        elif self.is_past(first[1].locked_until):
            # Otherwise an ending that the store never accepts would block all further locks.
            self._split(batch)
        else:
            # The next try is with another ending.
            self._ended = [*others, first, *self._ended]

    def _split(self, batch: list[tuple[CrontabJob, Ending]]) -> None:
        """From now on, write each ending separately."""
        self.keep_writing(batch)
        self.failing.discard("write")

    async def _keep_writing(self, job: CrontabJob, ending: Ending) -> None:
        await super()._keep_writing(job, ending)
        self._free()
