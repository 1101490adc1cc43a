"""Documents in memory, for tests and for trying things out: the port in plain Python."""

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


class Document(msgspec.Struct, kw_only=True):
    """What is kept of one; its id is the key that it is kept under."""

    sleep_until: datetime | None
    interval: str | None
    repeat_until: datetime | None
    auto_remove: bool
    data: Any


class MemoryCrontab:
    """Documents of this process alone; `documents` may be looked at and changed at any time between awaits."""

    def __init__(self, *, clock: Callable[[], int] | None = None) -> None:
        self._clock = clock or process_ms
        self.documents: dict[Any, Document] = {}

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
        """Write a document, or write it anew; due at once unless `sleep_until` says when. A bad cron is refused."""
        check_interval(interval)
        due = self._clock() if sleep_until is None else instant_ms(sleep_until, "sleep_until")
        last = None if repeat_until is None else to_datetime(instant_ms(repeat_until, "repeat_until"))
        try:
            hash(id)
        except TypeError:
            raise InvalidValue("id", "a value that can be the key of a dict", id) from None
        self.documents[id] = Document(
            sleep_until=to_datetime(due), interval=interval, repeat_until=last, auto_remove=auto_remove, data=data
        )

    async def lock_next(self, lock_until: datetime) -> CrontabJob | None:
        """The earliest that is due."""
        return next(iter(await self.lock_many(lock_until, 1)), None)

    async def lock_many(self, lock_until: datetime, most: int) -> list[CrontabJob]:
        """The earliest that are due."""
        now = to_datetime(self._clock())
        due = [
            (document.sleep_until, id)
            for id, document in self.documents.items()
            if document.sleep_until is not None and document.sleep_until <= now
        ]
        due.sort(key=lambda one: one[0])  # the ids may be of any type, and have no order
        return [self._lock(id, sleep_until, lock_until) for sleep_until, id in due[:most]]

    async def update(self, id: Any, changes: Changes, /) -> bool:
        """Write what is set."""
        document = self._held(id, changes.locked_until)
        if document is None:
            return False
        if changes.sleep_until is not UNSET:
            document.sleep_until = changes.sleep_until
        if changes.auto_remove is not UNSET:
            document.auto_remove = changes.auto_remove
        return True

    async def remove(self, id: Any, /, *, locked_until: datetime | None = None) -> bool:
        """Delete."""
        if self._held(id, locked_until) is None:
            return False
        del self.documents[id]
        return True

    async def finish_many(self, endings: Sequence[Ending]) -> list[bool]:
        """One after the other."""
        return [
            await self.remove(ending.id, locked_until=ending.locked_until)
            if ending.remove
            else await self.update(ending.id, Changes(sleep_until=ending.sleep_until, locked_until=ending.locked_until))
            for ending in endings
        ]

    async def migrate(self) -> None:
        """There is no index."""

    async def close(self) -> None:
        """There is no connection."""

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

    def _held(self, id: Any, locked_until: datetime | None) -> Document | None:
        document = self.documents.get(id)
        if document is None or (locked_until is not None and document.sleep_until != locked_until):
            return None
        return document
