"""One document at a time, in as many loops as the concurrency says: all that a store of three methods needs."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import datetime

from jobmill.crontab.job import CrontabJob, LockLost
from jobmill.crontab.run import Tools, Work
from jobmill.errors import shown
from jobmill.runtime.backoff import LoopBackoff
from jobmill.runtime.tasks import being_cancelled


class Loops(Work):
    """While nothing is due, one of the loops looks for all."""

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._somebody_looks = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn_until_stopped(self) -> None:
        """All loops, until each has ended."""
        async with asyncio.TaskGroup() as group:
            for number in range(self.settings.concurrency):
                group.create_task(self._loop(), name=f"jobmill crontab loop {number}")

    async def _loop(self) -> None:
        """Lock, handle, write. The write of one document and the lock of the next are under way together."""
        backoff = LoopBackoff(self.tools.random)
        writing: asyncio.Task[None] | None = None
        while await self.goes_on():
            fence = self.lock_until()
            try:
                job = await self.tools.store.lock_next(fence)
            except (Exception, asyncio.CancelledError) as error:
                if being_cancelled(error):
                    raise
                await self.away(backoff, error)
                await self.pause(backoff.next())
                continue
            backoff.reset()
            self.answered(backoff)
            if writing is not None:
                # So that there is never more than one document that is handled and not written.
                await asyncio.wait({writing})
                writing = None
                if job is not None and self.has_ended(self.fence_of(job, fence)):
                    await self._tell_of_the_wait(job)
                    continue
            if job is None:
                await self._idle()
            else:
                writing = await self._take(job, self.fence_of(job, fence))

    async def _take(self, job: CrontabJob, fence: datetime) -> asyncio.Task[None] | None:
        """Handle a document; what is returned writes its ending."""
        if self.is_stopping:
            await self.give_back(job, fence)
            return None
        self._wake_one()
        handling = self.handle(job, fence)
        await asyncio.wait({handling})
        ending = self.ending_of(handling)
        if ending is None:
            return None
        is_due = self.is_due(ending)
        writing = self.beside(self.write(job, ending))
        if is_due:
            # The next lock is to see it: a miss would count as idle.
            await asyncio.wait({writing})
        return writing

    async def _tell_of_the_wait(self, job: CrontabJob) -> None:
        """The write before took so long that this document may be another worker's: it is left alone."""
        advice = "the last write took longer than lock_duration"
        await self.hooks.error(LockLost(f"the lock of the job {shown(job.id)} ended before it began: {advice}"), job)

    async def _idle(self) -> None:
        await self.missed()
        if self._somebody_looks:
            bell = asyncio.get_running_loop().create_future()
            self._waiting.append(bell)
            await self.wait_for(bell)
            return
        self._somebody_looks = True
        try:
            await self.rest()
        finally:
            self._somebody_looks = False

    def _wake_one(self) -> None:
        """There may be more: one looks, and wakes the next if there is; else it is the one that looks from now on."""
        if self._waiting:
            self._waiting.popleft().set_result(None)
