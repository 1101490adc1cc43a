"""A run with single calls: each loop handles one document at a time. It works with every store."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import datetime

from jobmill.crontab.job import CrontabJob, LockLost
from jobmill.crontab.run import CrontabRun
from jobmill.crontab.settings import CrontabSettings
from jobmill.errors import shown


class SingleRun(CrontabRun):
    """Has as many loops as the concurrency. While nothing is due, one loop polls for all."""

    def __init__(self, settings: CrontabSettings) -> None:
        super().__init__(settings)
        self._is_polling = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def run_until_stopped(self) -> None:
        """Run all loops until each has ended."""
        async with asyncio.TaskGroup() as group:
            for number in range(self.settings.concurrency):
                group.create_task(self._loop(), name=f"jobmill crontab loop {number}")

    async def _loop(self) -> None:
        """Lock, handle, write. The write of one document and the lock of the next are in flight together."""
        backoff = self.new_backoff()
        writing: asyncio.Task[None] | None = None
        while await self.wait_for_next_lock():
            found = await self.try_to_lock(self._lock_next, backoff)
            if found is None:
                continue
            if writing is not None:
                # So that each loop has at most one unwritten document.
                await asyncio.wait({writing})
                writing = None
                if found and self.is_past(found[0][1]):
                    await self._report_late_lock(found[0][0])
                    continue
            if found:
                writing = await self._handle_document(*found[0])
            else:
                await self._idle()

    async def _lock_next(self, lock_until: datetime) -> list[CrontabJob]:
        job = await self.settings.store.lock_next(lock_until)
        return [] if job is None else [job]

    async def _handle_document(self, job: CrontabJob, fence: datetime) -> asyncio.Task[None] | None:
        """Handle a document. Returns the task that writes its ending."""
        if self.is_stopping:
            await self.write(job, self.release(job, fence))
            return None
        self._wake_one()
        handling = self.handle(job, fence)
        await asyncio.wait({handling})
        ending = self.ending_of(handling)
        if ending is None:
            return None
        is_due = self.is_due(ending)
        writing = self.run_in_background(self.write(job, ending))
        if is_due:
            # The next lock must find it: finding nothing would count as idle.
            await asyncio.wait({writing})
        return writing

    async def _report_late_lock(self, job: CrontabJob) -> None:
        """The last write took so long that another worker may have locked this document: skip it."""
        advice = "the last write took longer than lock_duration"
        await self.hooks.error(LockLost(f"the lock of the job {shown(job.id)} ended before it began: {advice}"), job)

    async def _idle(self) -> None:
        await self.nothing_due()
        if self._is_polling:
            bell = asyncio.get_running_loop().create_future()
            self._waiting.append(bell)
            await self.wait_for(bell)
            return
        self._is_polling = True
        try:
            await self.sleep_while_idle()
        finally:
            self._is_polling = False

    def _wake_one(self) -> None:
        """More documents may be due: wake one loop. If it finds one, it wakes the next; if not, it polls for all."""
        if self._waiting:
            self._waiting.popleft().set_result(None)
