"""An imitation of mongodb-cron 1.9.0 and of the Go scheduler, where they are wrong or differ.

One class imitates both: if only one of them is wrong, it does what that one does. With it, the tests of our own
decisions must fail.
"""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from typing import Any

from jobmill.core.cron import Cron
from jobmill.core.durations import to_datetime
from jobmill.crontab import Changes, CrontabJob, MemoryCrontab
from jobmill.errors import InvalidValue


class Imitation:
    """The loop of the originals, over the memory store."""

    def __init__(
        self, store: MemoryCrontab, *, on_document: Any, on_error: Any, clock: Any, sleep: Any, **options: Any
    ) -> None:
        self.store = store
        self._on_document = on_document
        self._on_error = on_error
        self._clock = clock
        self._sleep = sleep
        self._idle_delay: float = options.get("idle_delay", 0)
        self._lock_ms = round(options.get("lock_duration", 600) * 1000)
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Go: the channel that a stop has closed stays closed."""
        if not self._stopping:
            self._task = asyncio.create_task(self._loop())

    async def stop(self, timeout: float = 0) -> None:
        """Go: the context of the handler is that of the loop, and a stop cancels it."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _loop(self) -> None:
        while True:
            job = await self.store.lock_next(to_datetime(self._clock() + self._lock_ms))
            if job is None:
                # Not at all, with 0.
                await self._sleep(self._idle_delay)
                continue
            try:
                await self._on_document(job)
            except Exception as error:
                # Go: reported, and then rescheduled like any other.
                await self._on_error(error, job)
            await self._reschedule(job)
            await asyncio.sleep(0)

    async def _reschedule(self, job: CrontabJob) -> None:
        next = self._next(job)
        if next is None and job.auto_remove:
            # Only by the id, even if another worker has locked the document.
            await self.store.remove(job.id)
        else:
            await self.store.update(job.id, Changes(sleep_until=next))

    def _next(self, job: CrontabJob) -> datetime | None:
        if not job.interval:
            return None
        now = to_datetime(self._clock())
        try:
            next = self._slot_after(job.interval, job.sleep_until)
        except InvalidValue:
            # Go: the time before all times, which the clamp below makes now.
            next = datetime.min.replace(tzinfo=UTC)
        if job.repeat_until is not None and next > job.repeat_until:
            return None
        return max(next, now)

    def _slot_after(self, interval: str, after: datetime) -> datetime:
        """Node: in the timezone of the machine; no timezone option, and not all names."""
        if interval.startswith(("TZ=", "CRON_TZ=", "@every", "@midnight")):
            raise InvalidValue("interval", "what cron-parser reads", interval)
        slot = Cron.parse(interval, os.environ.get("TZ", "UTC")).next(round(after.timestamp() * 1000))
        assert slot is not None
        return to_datetime(slot)


class SeedMongo:
    """The seed's lock: `$not $gt` instead of `$lte`, and no sort."""

    def __init__(self, collection: Any, *, clock: Any) -> None:
        self._collection = collection
        self._clock = clock

    async def lock_next(self, lock_until: datetime) -> CrontabJob | None:
        now = to_datetime(self._clock())
        document = await self._collection.find_one_and_update(
            {"$and": [{"sleepUntil": {"$exists": True, "$ne": None}}, {"sleepUntil": {"$not": {"$gt": now}}}]},
            {"$set": {"sleepUntil": lock_until}},
        )
        return None if document is None else CrontabJob(id=document["_id"], sleep_until=document["sleepUntil"])
