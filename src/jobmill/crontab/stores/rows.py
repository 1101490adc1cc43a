"""Converts the values of documents, which other programs may have written, to the values of a job."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from jobmill.core.durations import EPOCH, to_datetime

#: The last millisecond that a datetime can represent.
LAST_MS = 253_402_300_799_999


def instant(value: datetime) -> datetime:
    """An aware datetime in UTC, in whole milliseconds, from 1970 on. A datetime without a zone is taken as UTC."""
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    elif value.tzinfo is not UTC:
        try:
            value = value.astimezone(UTC)
        except OverflowError:  # near the first or the last day that a datetime can represent
            return EPOCH if value.year == 1 else to_datetime(LAST_MS)
    return max(value.replace(microsecond=value.microsecond // 1_000 * 1_000), EPOCH)


def instant_of_text(text: str) -> datetime | None:
    """The same from ISO 8601; None if the text is invalid."""
    try:
        return instant(datetime.fromisoformat(text))
    except ValueError:
        return None


def interval(value: Any) -> Any:
    """A cron expression, or an invalid value, which the crontab reports. As in mongodb-cron, an empty value is None."""
    return value or None


def repeat_until(value: Any) -> Any:
    """An instant, or an invalid value, which the crontab reports."""
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, str):
        return instant_of_text(value) or value
    return value
