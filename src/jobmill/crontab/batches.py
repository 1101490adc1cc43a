"""Many documents at a time: one call takes as many as there is room for, another writes all that have ended.

What ends while a call is in flight goes into the next one, so batches grow by themselves under load and nothing waits
when idle.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

from jobmill.crontab.job import CrontabJob, Ending
from jobmill.crontab.run import Tools, Work
from jobmill.crontab.store import BatchCrontabStore
from jobmill.errors import StoreError
from jobmill.runtime.backoff import LoopBackoff
from jobmill.runtime.tasks import being_cancelled


class Batches(Work):
    """One call that locks and one that writes, at most, are in flight."""

    def __init__(self, tools: Tools, store: BatchCrontabStore) -> None:
        super().__init__(tools)
        self._store = store
        self._ended: list[tuple[CrontabJob, Ending]] = []
        self._is_writing = False
        self._freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # ------------------------------------------------------------------------------------------------ locking

    async def turn_until_stopped(self) -> None:
        """Lock what there is room for, again and again."""
        backoff = LoopBackoff(self.tools.random)
        while await self.goes_on():
            room = self._room()
            if room == 0:
                await self.wait_for(self._freed)
                continue
            fence = self.lock_until()
            try:
                jobs = await self._store.lock_many(fence, room)
            except (Exception, asyncio.CancelledError) as error:
                if being_cancelled(error):
                    raise
                await self.away("lock", error)
                await self.pause(backoff.next())
                continue
            backoff.reset()
            self.answered("lock")
            for job in jobs:
                self._begin(job, self.fence_of(job, fence))
            if not jobs:
                await self.missed()
                await self.rest()

    def _room(self) -> int:
        # Where handlers are faster than writes, what waits to be written is bounded too: by two batches, so that one
        # can be in flight while the next one grows.
        most = self.settings.concurrency
        return 0 if self.unwritten >= 2 * most else most - len(self.handling)

    def _begin(self, job: CrontabJob, fence: datetime) -> None:
        if self.is_stopping:
            self.unwritten += 1
            self._over(job, Ending(id=job.id, locked_until=fence, sleep_until=job.sleep_until))
            return
        self.handle(job, fence).add_done_callback(lambda task: self._over(job, self.ending_of(task)))

    # ------------------------------------------------------------------------------------------------ writing

    def _over(self, job: CrontabJob, ending: Ending | None) -> None:
        if ending is not None:
            self._ended.append((job, ending))
            if not self._is_writing:
                self._is_writing = True
                self.beside(self._write_all())
        self._free()

    def _free(self) -> None:
        """There is room again."""
        if not self._freed.done():
            self._freed.set_result(None)
        self._freed = asyncio.get_running_loop().create_future()
        if not self.is_processing:
            # The last miss was not counted as idle, for something was still handled then.
            self.stir()

    async def _write_all(self) -> None:
        backoff = LoopBackoff(self.tools.random)
        answers = self.answers
        try:
            while self._ended:
                batch, self._ended = self._ended, []
                error = await self._try_to_write_all(batch)
                if error is None:
                    backoff.reset()
                    answers = self.answers
                    continue
                await self.away("write", error)
                if len(batch) == 1 or self.answers != answers or self.is_refusal(error, answers):
                    self._part(batch)
                else:
                    await self._survive(batch, backoff.next())
        finally:
            self._is_writing = False

    async def _try_to_write_all(self, batch: list[tuple[CrontabJob, Ending]]) -> BaseException | None:
        """What the store raised; None when it has answered."""
        try:
            answers = await self._store.finish_many([ending for _, ending in batch])
            if len(answers) != len(batch):
                raise StoreError(f"finish_many gave {len(answers)} answers to {len(batch)} endings")
        except (Exception, asyncio.CancelledError) as error:
            if being_cancelled(error):
                raise
            return error
        self.answered("write")
        for (job, ending), is_done in zip(batch, answers, strict=True):
            await self.written(job, ending, is_done=is_done)
        self._free()
        return None

    async def _survive(self, batch: list[tuple[CrontabJob, Ending]], wait: float) -> None:
        """One ending that the store chokes on must not hold the others up; and while it is away, one call is enough."""
        await self.tools.sleep(wait)
        first, *others = batch
        if await self.try_to_write(*first) is None:
            self._free()
            if await self._try_to_write_all(others) is not None:
                self._part(others)
        elif self.has_ended(first[1].locked_until):
            # Or what is never taken would be kept for ever, and there would be no room again.
            self._part(batch)
        else:
            # Another one is tried next.
            self._ended = [*others, first, *self._ended]

    def _part(self, batch: list[tuple[CrontabJob, Ending]]) -> None:
        """From now on each is on its own."""
        self.keep_writing(batch)
        self.gave_up("write")

    async def _keep_writing(self, job: CrontabJob, ending: Ending) -> None:
        await super()._keep_writing(job, ending)
        self._free()
