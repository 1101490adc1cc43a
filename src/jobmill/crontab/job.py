"""The values that a crontab and its store exchange: a locked document, changes, and the ending of a run."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from jobmill.errors import JobmillError


class CrontabJob(msgspec.Struct, frozen=True, kw_only=True):
    """A document as it was before it was locked. Datetimes are aware, in UTC, in whole milliseconds.

    The values of `interval` and `repeat_until` may be invalid. The store passes them on, and the crontab reports them
    to `on_error`.
    """

    id: Any
    sleep_until: datetime
    interval: str | None = None  # a cron expression; None and "" mean once
    repeat_until: datetime | None = None
    auto_remove: bool = False
    data: Any = None
    #: The lock that the store wrote, if it differs from the one that the store was given.
    locked_until: datetime | None = None


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What to write. UNSET leaves a field unchanged, None makes it null."""

    sleep_until: datetime | UnsetType | None = UNSET
    auto_remove: bool | UnsetType = UNSET
    #: The fence: if it is given, write only while the sleep_until of the document has this value.
    locked_until: datetime | None = None


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The ending of a run: the document is removed, or sleeps until then (None: for ever). Always fenced."""

    id: Any
    locked_until: datetime
    sleep_until: datetime | None = None
    remove: bool = False


class LockLost(JobmillError):
    """A lock ended before its handler, and the document was changed meanwhile: the ending was not written."""
