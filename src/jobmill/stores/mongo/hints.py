"""Hints about jobs that end or are cancelled. They are polled: a change stream makes every job more expensive.

The server reads its whole log for a change stream, which is about a sixth of what a job costs (see wake.py). So a
process queries the status of the jobs that it waits for, and nothing else. Nobody is queried where nobody waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

from jobmill.runtime.tasks import end
from jobmill.stores.common.job_hints import JobHints, poll
from jobmill.stores.mongo.codec import FINAL, ID_SHOWN
from jobmill.stores.mongo.connection import translated_errors

if TYPE_CHECKING:
    from jobmill.stores.mongo.context import MongoContext

log = logging.getLogger("jobmill")

#: How often a worker asks whether jobs were cancelled that it runs for longer than this.
CANCEL_POLL_SECONDS = 0.4
#: How often a process asks whether jobs have ended, in one query for all that it waits for.
END_POLL_SECONDS = 0.04


async def wait_for_cancel(ctx: MongoContext, ids: Collection[str], until_ms: int) -> None:
    """See the port."""

    async def find_ended(running: list[str]) -> list[str]:
        statuses = await _statuses(ctx, running)
        return [id for id in running if statuses.get(id) != "processing"]

    await poll(ids, (until_ms - ctx.now()) / 1000, CANCEL_POLL_SECONDS, find_ended)


async def wait_for_end(ctx: MongoContext, id: str, queue: str, until_ms: int) -> None:
    """See the port."""
    await ctx.end_polls.here().wait(id, (until_ms - ctx.now()) / 1000)


async def _statuses(ctx: MongoContext, ids: list[str]) -> dict[str, str]:
    with translated_errors(ctx.url):
        found = await ctx.by_ids(ids, ID_SHOWN)
    return {id: document["status"] for id, document in found.items()}


class EndPoll:
    """Queries the jobs whose end tasks of one event loop wait for, in one query for all."""

    def __init__(self, ctx: MongoContext) -> None:
        self._ctx = ctx
        self._hints = JobHints()
        #: How many tasks wait for each job.
        self._ids: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None

    async def wait(self, id: str, seconds: float) -> None:
        """Wait until this job may have ended, at most this long."""
        self._ids[id] += 1
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._poll(), name="poll for ends of jobs")
        try:
            await self._hints.wait((id,), seconds)
        finally:
            self._ids[id] -= 1

    async def _poll(self) -> None:
        while self._ids:
            await asyncio.sleep(END_POLL_SECONDS)
            self._ids = +self._ids
            try:
                statuses = await _statuses(self._ctx, list(self._ids))
            except Exception as error:
                # The caller queries the job itself, and raises the error.
                log.debug("the ends of jobs could not be queried: %s", error)
            else:
                self._hints.tell(id for id in self._ids if statuses.get(id) in (None, *FINAL))

    async def close(self) -> None:
        """Wake all tasks, and query nothing more."""
        self._hints.tell()
        if self._task is not None:
            await end([self._task])

    def abandon(self) -> None:
        """The loop has ended, and the task with it."""
