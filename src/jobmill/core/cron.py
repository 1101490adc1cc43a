"""Cron expressions, computed by cronsim under rules of our own for time zones, days and clock changes.

Allowed are five fields, or six with seconds first; names (`mon`, `jan`); `?` for `*`; `@daily` and the like;
`@every 1h30m`; and before any of them `TZ=Europe/Berlin ` or `CRON_TZ=Europe/Berlin `. The two day fields are ORed
unless one of them is a bare star.

When the clock changes in the time zone:
- An expression that names hours follows the wall clock. An occurrence that the change skips runs once, right after the
  gap; an occurrence that the change repeats runs once, the first time.
- An expression for every hour (`*/5 * * * *`) follows elapsed time: no pause while an hour is repeated, and no extra
  occurrence for one that is skipped.
"""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_left
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from jobmill.core.durations import LAST_MS
from jobmill.errors import InvalidValue

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_SECOND = (datetime(1, 1, 2, tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)  # a day of room for any zone's offset
_LONGEST = 256
_NEVER = "no match in 50 years"  # there cronsim gives up; what we accept waits 40 at most (a Monday, 29 February)

_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_UNIT_MS = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|h|m|s)")
_EVERY = re.compile(rf"@every\s+((?:{_DURATION_PART.pattern})+)")
_ZONE_PREFIX = re.compile(r"(?:CRON_)?TZ=(\S*)\s*")
_BARE_STAR = re.compile(r"\*(/0*1)?")
_RANGE = re.compile(r"(?<![^\s,])(\w+)-(\w+)/0*[1-9][0-9]*(?![^\s,])")
_WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_VALUES = {name: n for n, name in enumerate(_WEEKDAYS)} | {name: n for n, name in enumerate(_MONTHS, 1)}
_LAST_WEEKDAY = re.compile(rf"({'|'.join(_WEEKDAYS)})L", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """A parsed expression; made by `Cron.parse`, and then asked for its occurrences."""

    text: str
    every_ms: int | None = None  # set for `@every`, which has no fields
    fields: str = field(default="", repr=False)
    zone: tzinfo = field(default=UTC, repr=False)
    _every_hour: bool = field(default=False, repr=False)

    @staticmethod
    def parse(text: str, timezone: str = "UTC") -> Cron:
        """Parse a cron expression, in `timezone` unless the text names one; InvalidValue names cron or timezone."""
        if not isinstance(text, str):
            raise InvalidValue("cron", "a cron expression as text", text)
        if len(text) > _LONGEST:
            raise InvalidValue("cron", f"at most {_LONGEST} characters", text)
        return _parse(text, timezone_named(timezone))

    def next(self, after_ms: int) -> int | None:
        """The first occurrence strictly after `after_ms`; None when there is none up to the year 9999.

        The occurrences of `@every` are the multiples of its duration since 1970.
        """
        if self.every_ms is not None:
            occurrence = (after_ms // self.every_ms + 1) * self.every_ms
            return occurrence if occurrence <= LAST_MS else None
        try:
            after = _EPOCH + timedelta(seconds=max(after_ms // 1000, _FIRST_SECOND))
            found = self._by_elapsed_time(after) if self._every_hour else self._by_wall_clock(after)
        except OverflowError:  # what datetime says to a year beyond 9999
            return None
        return (found - _EPOCH) // timedelta(seconds=1) * 1000

    # cronsim is only ever given wall times, without a zone. Its own handling of time changes leaves out expressions of
    # six fields, misses some where the clock changes by half an hour, and never ends where a midnight is repeated.

    def _by_wall_clock(self, after: datetime) -> datetime:
        for wall in CronSim(self.fields, after.astimezone(self.zone).replace(tzinfo=None)):
            occurrence = _first_shown(wall, self.zone)
            # While an hour is repeated, the clock shows the same times again: those occurrences have passed.
            if occurrence > after:
                return occurrence
        raise OverflowError(_NEVER)

    def _by_elapsed_time(self, after: datetime) -> datetime:
        local = after.astimezone(self.zone)
        occurrence = self._shown_after(local, local.fold)
        shown_again = local.replace(fold=1)
        if shown_again.utcoffset() != local.utcoffset():
            # The clock will be set back, to before this time: an occurrence from there may come first.
            change = _change_between(after, shown_again.astimezone(UTC), self.zone)
            occurrence = min(occurrence, self._shown_after(change.astimezone(self.zone) - timedelta(seconds=1), fold=1))
        return occurrence

    def _shown_after(self, local: datetime, fold: int) -> datetime:
        """The first match after `local` on the wall clock, the first (0) or the second (1) time that it is shown."""
        for wall in CronSim(self.fields, local.replace(tzinfo=None)):
            occurrence = wall.replace(tzinfo=self.zone, fold=fold).astimezone(UTC)
            if _shows(occurrence, wall, self.zone):  # not in a gap
                return occurrence
        raise OverflowError(_NEVER)


def timezone_named(name: object, blamed: str = "timezone") -> tzinfo:
    """The time zone of that IANA name; InvalidValue for the field `blamed` when there is none."""
    if name == "UTC":
        return UTC
    # The first two depend on the machine; the third counts leap seconds, which our instants do not.
    if isinstance(name, str) and not name.startswith(("localtime", "posixrules", "right/")):
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):  # not found; not a name; a directory such as "America", or too long
            pass
    raise InvalidValue(blamed, "the IANA name of a time zone, such as Europe/Berlin", name)


@lru_cache(maxsize=1024)
def _parse(text: str, zone: tzinfo) -> Cron:
    rule = text.strip()
    if prefix := _ZONE_PREFIX.match(rule):
        zone = timezone_named(prefix[1], blamed="cron")
        rule = rule[prefix.end() :]
    if rule.startswith("@every"):
        return Cron(text=text, every_ms=_every_ms(rule, text))
    if rule.startswith("@") and rule not in _NAMED:
        raise InvalidValue("cron", f"one of {', '.join(_NAMED)}, @every", text)
    parts = _parts(_NAMED.get(rule, rule), text)
    every_hour = len(_checked(parts, text).hours) == 24
    return Cron(text=text, fields=" ".join(parts), zone=zone, _every_hour=every_hour)


def _every_ms(rule: str, text: str) -> int:
    match = _EVERY.fullmatch(rule)
    if match is None:
        raise InvalidValue("cron", "@every with a duration in h, m, s and ms, such as @every 1h30m", text)
    every_ms = int(sum(Decimal(amount) * _UNIT_MS[unit] for amount, unit in _DURATION_PART.findall(match[1])))
    if not 1 <= every_ms <= LAST_MS:
        raise InvalidValue("cron", f"@every with a duration from 1 to {LAST_MS} ms", text)
    return every_ms


def _parts(rule: str, text: str) -> list[str]:
    """The six fields, spelled so that cronsim reads them our way."""
    parts = _RANGE.sub(_without_step, rule.replace("?", "*")).split()
    if len(parts) == 5:
        parts.insert(0, "0")
    if len(parts) != 6:
        raise InvalidValue("cron", "five fields (minute, hour, day, month, weekday), or six with seconds first", text)
    parts[3] = _day_field(parts[3], "1-31")
    parts[5] = _day_field(_LAST_WEEKDAY.sub(lambda last: f"{_value(last[1])}L", parts[5]), "0-6")
    return parts


def _without_step(found: re.Match[str]) -> str:
    """A range of one value as this value. cronsim reads 5-5/2 as 5/2, which is 5, 7, 9 and so on."""
    return found[1] if _value(found[1]) == _value(found[2]) else found[0]


def _value(text: str) -> int | str:
    """The number that a text in a field means; the text itself if it is neither a number nor a name."""
    return int(text) if text.isascii() and text.isdigit() else _VALUES.get(text.upper(), text)


def _day_field(part: str, whole: str) -> str:
    """A day field that begins with a star if it has a bare one, else not: by that, cronsim decides on AND or OR."""
    stars = ["*" if _BARE_STAR.fullmatch(term) else term for term in part.split(",")]
    terms = [whole + term[1:] if term.startswith("*/") else term for term in stars]
    return ",".join(sorted(terms, key=lambda term: term != "*"))


def _checked(parts: list[str], text: str) -> CronSim:
    try:
        return CronSim(" ".join(parts), _EPOCH)
    except CronSimError as error:
        bad = str(error).removeprefix("Bad ")
    if bad == "day-of-month":
        with contextlib.suppress(CronSimError):
            CronSim(" ".join([*parts[:4], "*", parts[5]]), _EPOCH)
            raise InvalidValue("cron", "a day that its months have", text, "it would never run")
    raise InvalidValue("cron", f"a valid {bad} field", text)


def _first_shown(wall: datetime, zone: tzinfo) -> datetime:
    """When the clock of `zone` first shows `wall`; where it skips `wall`, the end of that gap."""
    local = wall.replace(tzinfo=zone, fold=0)
    instant = local.astimezone(UTC)
    if _shows(instant, wall, zone):
        return instant
    # In a gap the offset from before gives an instant after the change, the offset from after one before it.
    return _change_between(local.replace(fold=1).astimezone(UTC), instant, zone)


def _shows(instant: datetime, wall: datetime, zone: tzinfo) -> bool:
    return instant.astimezone(zone).replace(tzinfo=None) == wall


def _change_between(early: datetime, late: datetime, zone: tzinfo) -> datetime:
    """The first instant with another offset than `early`, which `late` has."""
    offset = early.astimezone(zone).utcoffset()

    def has_changed(second: int) -> bool:
        return (early + timedelta(seconds=second)).astimezone(zone).utcoffset() != offset

    seconds = (late - early) // timedelta(seconds=1)
    return early + timedelta(seconds=bisect_left(range(seconds), True, key=has_changed))
