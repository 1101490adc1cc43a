"""Recurrences in the words of Node: BullMQ and Monque use cron-parser, which accepts less than Jobmill does.

cron-parser 5 refuses a list with a value twice (`0,7`, `*/15,0`, `1-5,WED`), `@every`, `@midnight`, `TZ=` and `LW`, and
reads `*/1` in a day field as a restriction. So the fields are written anew from their values.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from itertools import groupby

from cronsim import CronSim
from msgspec import structs

from jobmill.core.cron import Cron
from jobmill.core.recurrence import Recurrence

_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LAST = CronSim.LAST
_ANY_DAY = datetime(2000, 1, 1)  # cronsim wants one, also where only the fields are read


def for_node(rule: Recurrence) -> Recurrence | None:
    """The rule with the same occurrences in words that cron-parser accepts; None if it has no words for them.

    Around a change of the clock, cron-parser has rules of its own.
    """
    if rule.cron is None:
        return rule
    cron = Cron.parse(rule.cron, rule.timezone)
    if cron.every_ms is not None:
        return structs.replace(rule, cron=None, every_ms=cron.every_ms)
    text = node_cron(cron)
    return None if text is None else structs.replace(rule, cron=text, timezone=str(cron.zone))


@lru_cache(maxsize=1024)
def node_cron(cron: Cron) -> str | None:
    """The fields of an expression as cron-parser accepts them, five of them where the seconds are 0; None if it cannot.

    Not possible are `LW`, and `#` beside another weekday.
    """
    found = CronSim(cron.fields, _ANY_DAY)
    days = _days_of(found.days, found.months)
    weekdays = _weekdays(found.weekdays)
    if days is None or weekdays is None:
        return None
    if not found.day_and and "*" in (days, weekdays):  # one of two conditions, and one is always true
        days = weekdays = "*"
    if not days:  # a day that none of the months has
        days = "*"
    seconds = _values(found.seconds, 0, 59)
    times = (_values(found.minutes, 0, 59), _values(found.hours, 0, 23))
    fields = (*times, days, _values(found.months, 1, 12), weekdays)
    return " ".join(fields if seconds == "0" else (seconds, *fields))


def _days_of(days: set[int], months: set[int]) -> str | None:
    longest = max(_DAYS[month - 1] for month in months)
    listed = _values({day for day in days if 0 < day <= longest}, 1, longest)
    if listed == "*" or not days - set(range(1, 32)):
        return listed
    return None if CronSim.LAST_WEEKDAY in days else ",".join(filter(None, (listed, "L")))


def _weekdays(weekdays: set[int | tuple[int, int]]) -> str | None:
    plain = {day % 7 for day in weekdays if isinstance(day, int)}
    pairs = {(day[0] % 7, day[1]) for day in weekdays if isinstance(day, tuple)}
    special = sorted(pair for pair in pairs if pair[0] not in plain)
    nth = [f"{day}#{n}" for day, n in special if n != _LAST]
    if nth and (plain or len(special) > 1):
        return None
    listed = [_values(plain, 0, 6)] if plain else []
    return ",".join([*listed, *nth, *(f"{day}L" for day, n in special if n == _LAST)])


def _values(values: set[int], first: int, last: int) -> str:
    """A star, a star with a step, or single values and ranges."""
    ordered = sorted(values)
    if len(ordered) == last - first + 1:
        return "*"
    step = ordered[1] - ordered[0] if len(ordered) > 2 and last > 6 else 0  # weekdays: to cron-parser, a star ends at 7
    if step > 1 and ordered == list(range(first, last + 1, step)):
        return f"*/{step}"
    runs = ([value for _, value in run] for _, run in groupby(enumerate(ordered), lambda item: item[1] - item[0]))
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
