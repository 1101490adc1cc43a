"""The port of a crontab: three methods, which a user's own store may have and no more; and two for many at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from jobmill.crontab.job import Changes, CrontabJob, Ending


class CrontabStore(Protocol):
    """Documents that are jobs by their date. Datetimes that it is given are in UTC, of whole milliseconds."""

    async def lock_next(self, lock_until: datetime) -> CrontabJob | None:
        """Of the documents whose sleep_until is now or past, take the one with the earliest; None when there is none.

        In one step with finding it, its sleep_until becomes `lock_until`; what is returned is the document before. One
        whose sleep_until is missing, null or no date is no job.
        """

    async def update(self, id: Any, changes: Changes, /) -> bool | None:
        """Write, under the fence where `changes` has one. False: nothing matched, so the lock is lost; None is done."""

    async def remove(self, id: Any, /) -> bool | None:
        """Delete the document; answers like `update`.

        A store whose `remove` also has a parameter `locked_until` is given the fence by that name.
        """


@runtime_checkable
class BatchCrontabStore(CrontabStore, Protocol):
    """A store that can also take and write several at once: what all of ours are."""

    async def remove(self, id: Any, /, *, locked_until: datetime | None = None) -> bool | None:
        """Delete the document, under the fence where it is given."""

    async def lock_many(self, lock_until: datetime, most: int) -> list[CrontabJob]:
        """Like `lock_next`, for up to `most` documents, the earliest first.

        A store may write another lock than `lock_until`, not before it and less than a second later; the jobs name it.
        """

    async def finish_many(self, endings: Sequence[Ending]) -> list[bool]:
        """Write each under its own fence; one answer each, False where nothing matched and so nothing was written."""
