"""The port of a crontab: three methods that every store has, and two optional ones for batches."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from jobmill.crontab.job import Changes, CrontabJob, Ending


class CrontabStore(Protocol):
    """Stores documents that are due by a date. The datetimes that it gets are in UTC, in whole milliseconds."""

    async def lock_next(self, lock_until: datetime) -> CrontabJob | None:
        """Lock the document with the earliest sleep_until, if that is now or past; None if there is none.

        In one atomic step, find the document and set its sleep_until to `lock_until`. Return the document as it was
        before. A document whose sleep_until is missing, null or not a date is never due.
        """

    async def update(self, id: Any, changes: Changes, /) -> bool | None:
        """Write, fenced if `changes` has a fence. False means that no document matched, so the lock is lost."""

    async def remove(self, id: Any, /) -> bool | None:
        """Delete the document. Returns the same as `update`.

        If `remove` has a parameter `locked_until`, it gets the fence.
        """


@runtime_checkable
class BatchCrontabStore(CrontabStore, Protocol):
    """A store that can also lock and write several documents at once, as all stores of this package do."""

    async def remove(self, id: Any, /, *, locked_until: datetime | None = None) -> bool | None:
        """Delete the document, fenced if a fence is given."""

    async def lock_many(self, lock_until: datetime, limit: int, /) -> list[CrontabJob]:
        """Like `lock_next`, for up to `limit` documents, the earliest first.

        A store may write a lock up to a second later than `lock_until`; then its jobs have the field `locked_until`.
        """

    async def finish_many(self, endings: Sequence[Ending]) -> list[bool]:
        """Write each ending under its own fence. Returns one answer each; False: no document matched."""
