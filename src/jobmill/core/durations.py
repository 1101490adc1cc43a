"""Durations and instants as whole milliseconds, the only form in which time crosses the port."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from jobmill.errors import InvalidValue

#: Seconds, a text such as "10m", or a timedelta.
Duration: TypeAlias = float | str | timedelta

EXPECTED = 'a duration such as 30, "30s", "10m" or timedelta'

UNITS_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}

# Almost 7,900 years: from any instant of this century it ends before the year 10,000, where datetime ends too.
MAX_MS = 7_900 * 365 * UNITS_MS["d"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MICROSECOND = timedelta(microseconds=1)
#: The last millisecond of the year 9999, where the calendar of Python ends.
LAST_MS = (datetime.max.replace(tzinfo=UTC) - EPOCH) // _MILLISECOND

# Every unit at most once, large before small. 18 digits are more than enough, and no text is slow to read.
_TEXT = re.compile("".join(f"(?:([0-9]{{1,18}}){unit})?" for unit in UNITS_MS))


def to_ms(value: Duration, field: str, *, least: int = 0) -> int:
    """A duration (seconds, text or timedelta) in ms, rounded half up; a positive one is at least 1 ms.

    Less than `least` ms is refused, and so is every negative duration.
    """
    exact = _exact_ms(value, field)
    if exact > MAX_MS:
        raise InvalidValue(field, f"a duration of at most {shown_ms(MAX_MS)}", value)
    ms = max(math.floor(exact + 0.5), 1) if exact > 0 else 0
    if exact < 0 or ms < least:
        expected = "a duration above 0" if least == 1 else f"a duration of at least {shown_ms(least)}"
        raise InvalidValue(field, expected, value)
    return ms


def shown_ms(ms: int) -> str:
    """A duration as people write it, and as `to_ms` reads it: "1h30m", "250ms", "0s"."""
    if ms == 0:
        return "0s"
    text, rest = "", abs(ms)
    for unit, size in UNITS_MS.items():
        # "8d" is easier to read than "1w1d".
        if unit != "w" and rest >= size:
            text += f"{rest // size}{unit}"
            rest %= size
    return text if ms > 0 else f"-{text}"


def instant_ms(value: datetime, field: str) -> int:
    """An aware datetime as ms since 1970, rounded down."""
    if not isinstance(value, datetime):
        raise InvalidValue(field, "an aware datetime", value)
    if value.utcoffset() is None:
        raise InvalidValue(
            field, "an aware datetime", value, "add a time zone, as in datetime.now(UTC) or tzinfo=ZoneInfo(...)"
        )
    ms = (value - EPOCH) // _MILLISECOND
    if not 0 <= ms <= LAST_MS:
        raise InvalidValue(field, "a datetime in the years 1970 to 9999 of UTC", value)
    return ms


def to_datetime(ms: int) -> datetime:
    """Milliseconds since 1970 as an aware datetime in UTC, exactly."""
    try:
        return EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        raise InvalidValue("time", "milliseconds since 1970, before the year 10,000", ms) from None


def _exact_ms(value: object, field: str) -> int | float:
    """The duration in ms, not yet rounded."""
    if isinstance(value, timedelta):
        return (value // _MICROSECOND) / 1_000
    if isinstance(value, str):
        return _text_ms(value, field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -math.inf < value < math.inf:
        raise InvalidValue(field, EXPECTED, value)
    return value * 1_000


def _text_ms(text: str, field: str) -> int:
    match = _TEXT.fullmatch(text)
    if not text or not match:
        advice = "whole numbers, each with its unit: w, d, h, m, s, ms, in this order and without spaces"
        raise InvalidValue(field, EXPECTED, text, advice)
    return sum(int(number) * size for number, size in zip(match.groups("0"), UNITS_MS.values(), strict=True))
