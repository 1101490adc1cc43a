"""Converts the values of documents, which other programs may have written, to the values of a job."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from jobmill.core.durations import EPOCH, LAST_MS, to_datetime
from jobmill.crontab.job import CrontabJob


def job(
    id: Any, *, sleep_until: Any, interval: Any, repeat_until: Any, auto_remove: Any, data: Any, locked_until: datetime
) -> CrontabJob:
    """A due document as a job. The crontab reports an interval and an end that are invalid."""
    return CrontabJob(
        id=id,
        # A database may accept more formats than Python. The document was due, so the exact date does not matter.
        sleep_until=sleep_until if isinstance(sleep_until, datetime) else EPOCH,
        interval=interval or None,  # as in mongodb-cron, an empty value means once
        repeat_until=repeat_until,
        auto_remove=bool(auto_remove),
        data=data,
        locked_until=locked_until,
    )


def date(value: Any) -> Any:
    """A datetime or a text of ISO 8601 as an instant; any other value unchanged."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return value
    return instant(value) if isinstance(value, datetime) else value


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


def instant_of_ms(ms: int) -> datetime:
    """The same from milliseconds since 1970, limited to the years of Python."""
    return to_datetime(min(max(ms, 0), LAST_MS))
