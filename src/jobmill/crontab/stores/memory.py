"""Documents in memory, for tests and experiments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET

from jobmill.core.durations import instant_ms, to_datetime
from jobmill.crontab.interval import check_interval
from jobmill.crontab.job import CrontabJob
from jobmill.crontab.stores.base import DocumentStore, Write
from jobmill.errors import InvalidValue


class MemoryDocument(msgspec.Struct, kw_only=True):
    """One document. Its id is its key in `MemoryCrontab.documents`."""

    sleep_until: datetime | None
    interval: str | None
    repeat_until: datetime | None
    auto_remove: bool
    data: Any


class MemoryCrontab(DocumentStore):
    """Documents in this process. `documents` may be read and changed between awaits."""

    def __init__(self, *, clock: Callable[[], int] | None = None) -> None:
        super().__init__(clock)
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

    async def lock_many(self, lock_until: datetime, limit: int) -> list[CrontabJob]:
        """Lock the earliest due documents."""
        now = to_datetime(self._clock())
        due = [
            (document.sleep_until, id)
            for id, document in self.documents.items()
            if document.sleep_until is not None and document.sleep_until <= now
        ]
        due.sort(key=lambda one: one[0])  # ids may have any type, and no order
        jobs = []
        for _, id in due[:limit]:
            document = self.documents[id]
            jobs.append(CrontabJob(id=id, locked_until=lock_until, **msgspec.structs.asdict(document)))
            document.sleep_until = lock_until
        return jobs

    async def _write(self, writes: Sequence[Write]) -> list[bool]:
        return [self._write_one(write) for write in writes]

    def _write_one(self, write: Write) -> bool:
        document = self.documents.get(write.id)
        if document is None or write.locked_until not in (None, document.sleep_until):
            return False
        if write.remove:
            del self.documents[write.id]
            return True
        if write.sleep_until is not UNSET:
            document.sleep_until = write.sleep_until
        if write.auto_remove is not UNSET:
            document.auto_remove = write.auto_remove
        return True
