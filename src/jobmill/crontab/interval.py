"""When a document is due again: the rules of mongodb-cron for `interval`, with the recurrence of the core."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, get_args

from jobmill.core.cron import Cron
from jobmill.core.durations import instant_ms, to_datetime
from jobmill.core.recurrence import Recurrence, next_occurrence, next_occurrence_or_now
from jobmill.crontab.job import CrontabJob
from jobmill.errors import InvalidValue

CatchUp = Literal["once", "twice"]
CATCH_UPS: tuple[CatchUp, ...] = get_args(CatchUp)


def check_interval(interval: str | None) -> None:
    """InvalidValue for the field `interval`, unless it is a cron expression or empty."""
    if interval is None or interval == "":
        return
    try:
        Cron.parse(interval)
    except InvalidValue as error:
        raise _for_field(error, "interval") from None


def is_over(job: CrontabJob, now_ms: int) -> bool:
    """Whether a recurring document must not run any more, although it was due before its end.

    An occurrence that is due exactly at the end still runs: it is always found a little later.
    """
    if not job.interval or job.repeat_until is None:
        return False
    try:
        return now_ms > instant_ms(job.repeat_until, "repeat_until") and job.sleep_until != job.repeat_until
    except InvalidValue:  # reported after the run
        return False


def next_sleep(
    job: CrontabJob, now_ms: int, *, timezone: str, reprocess_delay_ms: int, catch_up: CatchUp
) -> datetime | None:
    """When the document is due after a run that ends now; None if it is not due again.

    InvalidValue for `interval` or `repeat_until` if the document has an invalid value in it.
    """
    if job.interval is None or job.interval == "":
        return None
    until_ms = None if job.repeat_until is None else instant_ms(job.repeat_until, "repeat_until")
    rule = Recurrence(key="", cron=job.interval, timezone=timezone, until_ms=until_ms)
    following = next_occurrence if catch_up == "once" else next_occurrence_or_now
    occurrence_ms = instant_ms(job.sleep_until, "sleep_until")
    try:
        found = following(rule, occurrence_ms, now_ms, delay_ms=reprocess_delay_ms)
    except InvalidValue as error:
        raise _for_field(error, "interval") from None
    return None if found is None else to_datetime(found)


def _for_field(error: InvalidValue, field: str) -> InvalidValue:
    """The same error for another field name."""
    return InvalidValue(field, error.expected, error.given, error.advice)
