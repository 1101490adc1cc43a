"""Schedules of recurring jobs: their rule in words, their next occurrences, and their runs in the coming week.

A sentence about a rule is made from the values that the rule allows, as the parser sees them. Where no short sentence
says exactly the same, the expression itself is shown.
"""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Final

from cronsim import CronSim
from msgspec import Struct

from jobmill.core.cron import Cron
from jobmill.core.due import due_of
from jobmill.core.durations import instant_ms, shown_ms, to_datetime
from jobmill.core.job import Job
from jobmill.core.lifecycle import occurrence_of
from jobmill.core.recurrence import Recurrence, first_occurrence, next_occurrence
from jobmill.errors import InvalidValue

DAY_NAMES: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
MONTH_NAMES: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
#: A longer list is harder to read than the expression.
LONGEST_LIST: Final = 6
_SAME_IN_ALL_ZONES: Final = re.compile(r"Every( [0-9]+)? (second|minute)s?")
QUARTER_MS: Final = 900_000
HOUR_MS: Final = 3_600_000
DAYS: Final = 7
#: The work for one picture of the coming week: rules whose occurrences are not known yet, and occurrences on a day on
#: which the clock changes.
NEW_RULES: Final = 150
ON_A_DAY: Final = 2_000


class CronFields(Struct, frozen=True):
    """The values that a cron expression allows. `days` or `weekdays` is None if it does not restrict them."""

    seconds: list[int]
    minutes: list[int]
    hours: list[int]
    days: list[int] | None
    months: list[int] | None
    weekdays: list[int] | None


# ---------------------------------------------------------------------------------------------------- words


def expression(rule: Recurrence) -> str:
    """A rule as it was written: a cron expression, or "every 30s"."""
    if rule.cron is not None:
        return rule.cron
    return f"every {shown_ms(rule.every_ms)}" if rule.every_ms is not None else ""


def described(rule: Recurrence) -> str:
    """A rule in words: "Every weekday at 08:00 Europe/Berlin"; the expression if no sentence says exactly the same."""
    if rule.cron is None:
        return _every(rule.every_ms) if rule.every_ms is not None else ""
    try:
        cron = Cron.parse(rule.cron, rule.timezone)
    except InvalidValue:
        return rule.cron
    if cron.every_ms is not None:
        return _every(cron.every_ms)
    fields, zone = _fields(cron), str(cron.zone)
    text = None if fields is None else _sentence(fields)
    if text is None:
        return f"{rule.cron} {zone}" if zone not in rule.cron else rule.cron
    return text if _SAME_IN_ALL_ZONES.fullmatch(text) else f"{text} {zone}"


def _every(ms: int) -> str:
    for unit, size in (("hour", HOUR_MS), ("minute", 60_000), ("second", 1_000)):
        if ms % size == 0:
            count = ms // size
            return f"Every {unit}" if count == 1 else f"Every {count:,} {unit}s"
    return f"Every {ms:,} ms"


def _fields(cron: Cron) -> CronFields | None:
    """None if the expression has something that is no plain value, such as the last day of a month."""
    parsed = CronSim(cron.fields, datetime(2000, 1, 1))
    days, weekdays = _plain(parsed.days, 1), _plain(parsed.weekdays, 0)
    if days is None or weekdays is None:
        return None
    all_days, all_weekdays = len(days) == 31, len({day % 7 for day in weekdays}) == 7
    if not all_days and not all_weekdays:
        return None  # one of them, or both: no short sentence says which
    if not parsed.day_and and (all_days or all_weekdays):
        all_days = all_weekdays = True
    months = sorted(parsed.months)
    return CronFields(
        seconds=sorted(parsed.seconds),
        minutes=sorted(parsed.minutes),
        hours=sorted(parsed.hours),
        days=None if all_days else days,
        months=None if len(months) == 12 else months,
        weekdays=None if all_weekdays else sorted({day % 7 for day in weekdays}),
    )


def _plain(values: Iterable[object], least: int) -> list[int] | None:
    found = [value for value in values if isinstance(value, int) and value >= least]
    return sorted(found) if len(found) == len(list(values)) else None


def _sentence(fields: CronFields) -> str | None:
    times = _times(fields)
    if times is not None:
        days = _each_day(fields)
        return None if days is None else f"{days} at {times}"
    often, on = _often(fields), _on_days(fields)
    return None if often is None or on is None else often + on


def _times(fields: CronFields) -> str | None:
    """A few times of the day: "08:00 and 20:00"."""
    if len(fields.seconds) != 1 or len(fields.minutes) * len(fields.hours) > LONGEST_LIST:
        return None
    second = f":{fields.seconds[0]:02}" if fields.seconds[0] else ""
    return _list(f"{hour:02}:{minute:02}{second}" for hour in fields.hours for minute in fields.minutes)


def _each_day(fields: CronFields) -> str | None:
    """On which days, as the beginning of a sentence."""
    months = _months(fields)
    if months is None:
        return None
    if fields.weekdays is not None:
        names = _weekday_names(fields.weekdays)
        return f"Every {names}{months}"
    if fields.days is None:
        return f"Every day{months}"
    dates = _dates(fields)
    return None if dates is None else f"On {dates}"


def _on_days(fields: CronFields) -> str | None:
    """On which days, as the end of a sentence."""
    months = _months(fields)
    if months is None:
        return None
    if fields.weekdays is not None:
        return f" on every {_weekday_names(fields.weekdays)}{months}"
    if fields.days is not None:
        dates = _dates(fields)
        return None if dates is None else f" on {dates}"
    return months


def _weekday_names(weekdays: Sequence[int]) -> str:
    if list(weekdays) == [1, 2, 3, 4, 5]:
        return "weekday"
    # A week begins with Monday here, and a list ends with Sunday.
    return _list(DAY_NAMES[day] for day in sorted(weekdays, key=lambda day: (day - 1) % 7))


def _months(fields: CronFields) -> str | None:
    if fields.months is None:
        return ""
    if len(fields.months) > LONGEST_LIST:
        return None
    return f" in {_list(MONTH_NAMES[month - 1] for month in fields.months)}"


def _dates(fields: CronFields) -> str | None:
    """Days of the month: "the 1st and 15th of every month". Not all months have a day after the 28th."""
    days, months = fields.days or [], _months(fields)
    if not days or len(days) > LONGEST_LIST or months is None or (days[-1] > 28 and (len(days) > 1 or months)):
        return None
    listed = _list(_ordinal(day) for day in days)
    if fields.months is not None:
        return f"the {listed} of{months.removeprefix(' in')}"
    return f"the {listed} of every month" + (" that has it" if days[-1] > 28 else "")


def _often(fields: CronFields) -> str | None:
    """How often in the day, or in some hours of it."""
    seconds, minutes, hours = fields.seconds, fields.minutes, fields.hours
    second_step, minute_step = _step(seconds, 60), _step(minutes, 60)
    if len(hours) == 24 and len(minutes) == 60 and second_step is not None and seconds != [0]:
        return "Every second" if second_step == 1 else f"Every {second_step} seconds"
    if seconds != [0]:
        return None
    if len(hours) == 24:
        if minute_step == 1:
            return "Every minute"
        if minute_step is not None and minute_step < 60:
            return f"Every {minute_step} minutes"
        if len(minutes) == 1:
            return f"Every hour, at minute {minutes[0]}"
        return f"Every hour, at minutes {_list(map(str, minutes))}" if len(minutes) <= LONGEST_LIST else None
    between = f"from {hours[0]:02}:{minutes[0]:02} to {hours[-1]:02}:{minutes[-1]:02}"
    is_gapless = hours == list(range(hours[0], hours[-1] + 1))
    if len(minutes) == 1 and len(hours) > 2:
        step = hours[1] - hours[0]
        if hours == list(range(hours[0], hours[-1] + 1, step)):
            return f"Every {'hour' if step == 1 else f'{step} hours'} {between}"
    if is_gapless and minute_step is not None and minute_step < 60:
        return f"Every {'minute' if minute_step == 1 else f'{minute_step} minutes'} {between}"
    return None


def _step(values: Sequence[int], size: int) -> int | None:
    """The distance of values that are spread evenly over the whole size, from 0 on."""
    step = size // len(values)
    return step if size % len(values) == 0 and list(values) == list(range(0, size, step)) else None


def _ordinal(day: int) -> str:
    ends = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}
    return f"{day}{ends.get(day, 'th')}"


def _list(texts: Iterable[str]) -> str:
    *most, last = texts
    return f"{', '.join(most)} and {last}" if most else last


# ---------------------------------------------------------------------------------------------------- occurrences


def coming(job: Job, now_ms: int, count: int) -> list[int]:
    """When a recurring job runs next; nothing for a held job. InvalidValue if its rule cannot be read."""
    rule, due_ms = job.recurrence, due_of(job)
    if rule is None or due_ms is None:
        return []
    if job.state == "waiting":
        found, after_ms = [due_ms], max(due_ms, now_ms)
    else:
        found, after_ms = [], now_ms
    occurrence_ms: int | None = next_occurrence(rule, occurrence_of(job), after_ms)
    while occurrence_ms is not None and len(found) < count:
        found.append(occurrence_ms)
        occurrence_ms = next_occurrence(rule, occurrence_ms, occurrence_ms)
    return found


def first_of(rule: Recurrence, now_ms: int, count: int) -> list[int]:
    """The first occurrences of a rule that begins now."""
    found: list[int] = []
    occurrence_ms = first_occurrence(rule, now_ms)
    while occurrence_ms is not None and len(found) < count:
        found.append(occurrence_ms)
        occurrence_ms = next_occurrence(rule, occurrence_ms, occurrence_ms)
    return found


# ---------------------------------------------------------------------------------------------------- the coming week


class CalendarDay(Struct, frozen=True, kw_only=True):
    """The coming runs on one day, by the hours of the visitor's clock."""

    #: 2026-11-16
    date: str
    hours: list[int]


#: The occurrences of cron expressions by quarters of an hour, for all who look in the same hour.
_KNOWN: dict[tuple[str, str, int], tuple[dict[int, int], bool]] = {}


def coming_week(jobs: Iterable[Job], now_ms: int, zone: tzinfo) -> tuple[list[CalendarDay], bool]:
    """How many runs the schedules of these jobs have in each hour of the coming week, and whether that is all."""
    week = Week(now_ms, zone)
    for job in jobs:
        if job.recurrence is not None and due_of(job) is not None:
            with contextlib.suppress(InvalidValue):  # the row of such a job says that its rule cannot be read
                week.add(job, job.recurrence)
    week.add_crons()
    return week.days(), week.is_all


class Week:
    """The hours of a week on the visitor's clock, and how many runs were counted in each."""

    def __init__(self, now_ms: int, zone: tzinfo) -> None:
        today = to_datetime(now_ms).astimezone(zone).date()
        self._now_ms = now_ms
        self._dates = [today + timedelta(days=day) for day in range(DAYS)]
        hours = [(date, hour) for date in self._dates for hour in range(24)]
        #: Where each hour begins, and where the last one ends.
        self._starts = [_at(date, hour, zone) for date, hour in hours] + [_at(today + timedelta(days=DAYS), 0, zone)]
        self._counts: Counter[int] = Counter()
        #: How many jobs have the same expression, zone and end.
        self._crons: Counter[tuple[Cron, int]] = Counter()
        self.is_all = True

    def days(self) -> list[CalendarDay]:
        """The counts by day."""
        return [
            CalendarDay(date=date.isoformat(), hours=[self._counts[day * 24 + hour] for hour in range(24)])
            for day, date in enumerate(self._dates)
        ]

    def add(self, job: Job, rule: Recurrence) -> None:
        """Count the runs of a job."""
        end_ms = self._starts[-1] if rule.until_ms is None else min(self._starts[-1], rule.until_ms + 1)
        cron = None if rule.cron is None else Cron.parse(rule.cron, rule.timezone)
        every_ms = rule.every_ms if cron is None else cron.every_ms
        if every_ms is not None:
            # The run of a late job is in the past.
            first_ms = next((ms for ms in coming(job, self._now_ms, 2) if ms >= self._now_ms), end_ms)
            self._add_interval(first_ms, every_ms, end_ms)
        elif cron is not None:
            self._crons[cron, end_ms] += 1

    def add_crons(self) -> None:
        """Count the runs of all jobs with a cron expression, equal ones at once."""
        from_ms, new_rules = self._now_ms - self._now_ms % QUARTER_MS, NEW_RULES
        for (cron, end_ms), jobs in self._crons.items():
            key = (cron.fields, str(cron.zone), from_ms)
            if key not in _KNOWN:
                if new_rules == 0:
                    self.is_all = False
                    continue
                new_rules -= 1
                if len(_KNOWN) > 8 * NEW_RULES:
                    _KNOWN.clear()
                _KNOWN[key] = _by_quarters(cron, from_ms)
            quarters, has_all = _KNOWN[key]
            self.is_all = self.is_all and has_all
            for quarter_ms, count in quarters.items():
                if quarter_ms < end_ms:
                    rest = _rest(cron, from_ms, self._now_ms) if quarter_ms == from_ms else count
                    self._counts[bisect_right(self._starts, quarter_ms) - 1] += rest * jobs

    def _add_interval(self, first_ms: int, every_ms: int, end_ms: int) -> None:
        # How many occurrences are before the beginning of each hour. There may be a thousand jobs: this is kept short.
        before = [0 if ms <= first_ms else (ms - first_ms - 1) // every_ms + 1 for ms in self._starts]
        if end_ms < self._starts[-1]:
            most = 0 if end_ms <= first_ms else (end_ms - first_ms - 1) // every_ms + 1
            before = [min(count, most) for count in before]
        for index, (one, other) in enumerate(pairwise(before)):
            if one != other:
                self._counts[index] += other - one


def _at(day: date, hour: int, zone: tzinfo) -> int:
    return instant_ms(datetime(day.year, day.month, day.day, hour, tzinfo=zone), "time")


def _by_quarters(cron: Cron, from_ms: int) -> tuple[dict[int, int], bool]:
    """How many occurrences a cron has in each quarter of an hour of eight days, and whether these are all.

    All zones differ by whole quarters.
    """
    parsed, counts, is_all = CronSim(cron.fields, datetime(2000, 1, 1)), Counter[int](), True
    minutes = {
        quarter: count * len(parsed.seconds) for quarter, count in Counter(one // 15 for one in parsed.minutes).items()
    }
    end_ms, after_ms = from_ms + (DAYS + 1) * 24 * HOUR_MS, from_ms - 1
    while True:
        found_ms = cron.next(after_ms)
        if found_ms is None or found_ms >= end_ms:
            return dict(counts), is_all
        day = to_datetime(found_ms).astimezone(cron.zone).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
        day_ms = instant_ms(day, "time")
        next_ms = instant_ms((day.replace(tzinfo=None) + timedelta(days=1)).replace(tzinfo=cron.zone), "time")
        if next_ms - day_ms == 24 * HOUR_MS:
            for hour in parsed.hours:
                for quarter, count in minutes.items():
                    quarter_ms = day_ms + hour * HOUR_MS + quarter * QUARTER_MS
                    if quarter_ms > after_ms:
                        counts[quarter_ms] += count
        else:
            # The clock changes on this day: go from one occurrence to the next.
            is_all = _add_one_by_one(counts, cron, after_ms, next_ms) and is_all
        after_ms = next_ms - 1


def _rest(cron: Cron, from_ms: int, now_ms: int) -> int:
    """How many occurrences of this quarter of an hour are still to come."""
    parsed, quarter = CronSim(cron.fields, datetime(2000, 1, 1)), to_datetime(from_ms).astimezone(cron.zone).minute
    times = [(minute - quarter) * 60_000 + second * 1_000 for minute in parsed.minutes for second in parsed.seconds]
    return sum(now_ms - from_ms < ms < QUARTER_MS for ms in times)


def _add_one_by_one(counts: Counter[int], cron: Cron, after_ms: int, until_ms: int) -> bool:
    for _ in range(ON_A_DAY):
        found_ms = cron.next(after_ms)
        if found_ms is None or found_ms >= until_ms:
            return True
        counts[found_ms - found_ms % QUARTER_MS] += 1
        after_ms = found_ms
    return False
