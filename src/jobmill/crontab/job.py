"""The values that cross a crontab's store: a locked document, what is written back, and how its run ended."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from jobmill.errors import JobmillError


class CrontabJob(msgspec.Struct, frozen=True, kw_only=True):
    """A document of the user's, as it was before it was locked. Datetimes are aware, in UTC, of whole milliseconds.

    What a document holds at the place of `interval` or `repeat_until` may be anything: the store passes on what it
    cannot read, and the crontab tells `on_error` of it.
    """

    id: Any
    sleep_until: datetime
    interval: str | None = None  # a cron expression; None and "" mean once
    repeat_until: datetime | None = None
    auto_remove: bool = False
    data: Any = None
    #: The lock as it was written, where that is not the moment that the store was given.
    locked_until: datetime | None = None


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What to write: UNSET leaves a field as it is, None makes it null."""

    sleep_until: datetime | UnsetType | None = UNSET
    auto_remove: bool | UnsetType = UNSET
    #: The fence: where it is given, write only while the document's sleep_until is still this value.
    locked_until: datetime | None = None


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a run leaves its document: removed, or asleep until then; None: for good. Always under the fence."""

    id: Any
    locked_until: datetime
    sleep_until: datetime | None = None
    remove: bool = False


class LockLost(JobmillError):
    """A handler ended after its lock was over and another worker, or a person, had written: ours was not."""
