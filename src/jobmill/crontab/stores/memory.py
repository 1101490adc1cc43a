"""Documents in memory, for tests and experiments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET

from jobmill.core.durations import instant_ms, to_datetime
from jobmill.crontab.interval import check_interval
from jobmill.crontab.job import Changes, CrontabJob, Ending
from jobmill.crontab.stores.clock import process_ms
from jobmill.errors import InvalidValue


class MemoryDocument(msgspec.Struct, kw_only=True):
    """One document. Its id is its key in `MemoryCrontab.documents`."""

    sleep_until: datetime | None
    interval: str | None
    repeat_until: datetime | None
    auto_remove: bool
    data: Any


class MemoryCrontab:
    """Documents in this process. `documents` may be read and changed between awaits."""

    def __init__(self, *, clock: Callable[[], int] | None = None) -> None:
        self._clock = clock or process_ms
        self.documents: dict[Any, MemoryDocument] = {}

    async def add(
        self,
        id: Any,
        *,
        sleep_until: datetime | None = None,
        interval: str | None = None,
        repeat_until: datetime | None = None,
        auto_remove: bool = False,
        data: Any = None,
    ) -> None:
        """Write or replace a document. It is due at `sleep_until` (default: now). An invalid cron is refused."""
        check_interval(interval)
        due = self._clock() if sleep_until is None else instant_ms(sleep_until, "sleep_until")
        last = None if repeat_until is None else to_datetime(instant_ms(repeat_until, "repeat_until"))
        try:
            hash(id)
        except TypeError:
            raise InvalidValue("id", "a hashable value", id) from None
        self.documents[id] = MemoryDocument(
            sleep_until=to_datetime(due), interval=interval, repeat_until=last, auto_remove=auto_remove, data=data
        )

    async def lock_next(self, lock_until: datetime) -> CrontabJob | None:
        """Lock the earliest due document."""
        return next(iter(await self.lock_many(lock_until, 1)), None)

    async def lock_many(self, lock_until: datetime, limit: int) -> list[CrontabJob]:
        """Lock the earliest due documents."""
        now = to_datetime(self._clock())
        due = [
            (document.sleep_until, id)
            for id, document in self.documents.items()
            if document.sleep_until is not None and document.sleep_until <= now
        ]
        due.sort(key=lambda one: one[0])  # ids may have any type, and no order
        return [self._lock(id, sleep_until, lock_until) for sleep_until, id in due[:limit]]

    async def update(self, id: Any, changes: Changes, /) -> bool:
        """Write the fields that are set."""
        document = self._held(id, changes.locked_until)
        if document is None:
            return False
        if changes.sleep_until is not UNSET:
            document.sleep_until = changes.sleep_until
        if changes.auto_remove is not UNSET:
            document.auto_remove = changes.auto_remove
        return True

    async def remove(self, id: Any, /, *, locked_until: datetime | None = None) -> bool:
        """Delete the document."""
        if self._held(id, locked_until) is None:
            return False
        del self.documents[id]
        return True

    async def finish_many(self, endings: Sequence[Ending]) -> list[bool]:
        """Write one ending after the other."""
        return [
            await self.remove(ending.id, locked_until=ending.locked_until)
            if ending.remove
            else await self.update(ending.id, Changes(sleep_until=ending.sleep_until, locked_until=ending.locked_until))
            for ending in endings
        ]

    async def migrate(self) -> None:
        """Nothing to do: there is no index."""

    async def close(self) -> None:
        """Nothing to do: there is no connection."""

    def _lock(self, id: Any, sleep_until: datetime, lock_until: datetime) -> CrontabJob:
        document = self.documents[id]
        document.sleep_until = lock_until
        return CrontabJob(
            id=id,
            sleep_until=sleep_until,
            interval=document.interval,
            repeat_until=document.repeat_until,
            auto_remove=document.auto_remove,
            data=document.data,
            locked_until=lock_until,
        )

    def _held(self, id: Any, locked_until: datetime | None) -> MemoryDocument | None:
        document = self.documents.get(id)
        if document is None or (locked_until is not None and document.sleep_until != locked_until):
            return None
        return document
