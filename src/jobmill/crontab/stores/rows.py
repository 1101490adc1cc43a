"""What a document may hold, read as the values of a job: others wrote it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from jobmill.core.durations import EPOCH, to_datetime

#: The last moment that a datetime can say.
LAST_MS = 253_402_300_799_999


def instant(value: datetime) -> datetime:
    """Aware, in UTC, of whole milliseconds, from 1970 on; one without a zone is in UTC already."""
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    elif value.tzinfo is not UTC:
        try:
            value = value.astimezone(UTC)
        except OverflowError:  # a zone's offset away from the first or the last day that there is
            return EPOCH if value.year == 1 else to_datetime(LAST_MS)
    return max(value.replace(microsecond=value.microsecond // 1_000 * 1_000), EPOCH)


def instant_of_text(text: str) -> datetime | None:
    """The same from ISO 8601; None where it is none."""
    try:
        return instant(datetime.fromisoformat(text))
    except ValueError:
        return None


def interval(value: Any) -> Any:
    """A cron expression, or what is none, for the crontab to tell of; nothing is None, as the originals see it."""
    return value or None


def repeat_until(value: Any) -> Any:
    """An instant, or what is none, for the crontab to tell of."""
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, str):
        return instant_of_text(value) or value
    return value
