from __future__ import annotations

from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobmill.core.cron import Cron
from jobmill.core.durations import LAST_MS
from jobmill.errors import InvalidValue

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND, MINUTE, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)


def ms(instant: datetime) -> int:
    return (instant - EPOCH) // timedelta(milliseconds=1)


def at(text: str, zone: str = "UTC", fold: int = 0) -> int:
    return ms(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold))


def slots(text: str, after: int, count: int, zone: str = "UTC") -> list[int]:
    cron, found = Cron.parse(text, zone), [after]
    for _ in range(count):
        slot = cron.next(found[-1])
        assert slot is not None
        found.append(slot)
    return found[1:]


# ---------------------------------------------------------------- what may be written

SPELLINGS = [
    ("0 9 * * mon", "2026-01-05T09:00"),
    ("30 4 1 jan,JUL *", "2026-01-01T04:30"),
    ("15 30 4 2 * *", "2026-01-02T04:30:15"),
    ("0 0 * * 7", "2026-01-04T00:00"),
    ("0 0 * * 6-7", "2026-01-03T00:00"),
    ("0 12 ? * ?", "2026-01-01T12:00"),
    ("  0\t9  *  * * ", "2026-01-01T09:00"),
    ("0 9 * * *".ljust(256), "2026-01-01T09:00"),
    ("0 0 L * *", "2026-01-31T00:00"),
    ("0 0 * * fri#2", "2026-01-09T00:00"),
    ("@hourly", "2026-01-01T01:00"),
    *((name, "2026-01-02T00:00") for name in ("@daily", "@midnight")),
    ("@weekly", "2026-01-04T00:00"),
    ("@monthly", "2026-02-01T00:00"),
    *((name, "2027-01-01T00:00") for name in ("@yearly", "@annually")),
    ("@every 1h30m", "2026-01-01T01:30"),
    ("@every 1.5h", "2026-01-01T01:30"),
    ("@every 250ms", "2026-01-01T00:00:00.250"),
    ("TZ=America/New_York 0 9 * * *", "2026-01-01T14:00"),
    ("CRON_TZ=Asia/Tokyo @daily", "2026-01-01T15:00"),
]


@pytest.mark.parametrize(("text", "expected"), SPELLINGS)
def test_spellings(text: str, expected: str) -> None:
    assert slots(text, at("2026-01-01"), 1) == [at(expected)]


def test_the_timezone_in_the_expression_takes_precedence() -> None:
    cron = Cron.parse("TZ=Asia/Tokyo 0 9 * * *", "Europe/Berlin")
    assert cron.next(at("2026-01-01")) == at("2026-01-02T09:00", "Asia/Tokyo")


# Thursday, 1 January 2026; the days of January on which each runs.
DAYS = [
    ("0 0 13 * 5", [2, 9, 13, 16, 23, 30]),  # two restrictions: ORed
    ("0 0 13-13/2 * *", [13]),
    ("0 0 3-03/2 * *", [3]),  # a range of one value, by its value
    ("0 0 * * WED-wed/2", [7, 14, 21, 28]),
    ("0 0 * * 3-WED/2", [7, 14, 21, 28]),
    ("0 0 5 JAN-01/3 *", [5]),
    ("0 0 * * MONL", [26]),
    ("0 0 * * sunl,3L", [25, 28]),
    ("0 0 * * 5", [2, 9, 16, 23, 30]),
    ("0 0 */10 * 5", [1, 2, 9, 11, 16, 21, 23, 30, 31]),  # a star with a step is a restriction
    ("0 0 13 * */3", [3, 4, 7, 10, 11, 13, 14, 17, 18, 21, 24, 25, 28, 31]),
    ("0 0 */10 * */6", [1, 3, 4, 10, 11, 17, 18, 21, 24, 25, 31]),
    ("0 0 */1 * 5", [2, 9, 16, 23, 30]),  # a step of one is none
    ("0 0 13,* * 5", [2, 9, 16, 23, 30]),
    ("0 0 1-31 * 5", list(range(1, 32))),
]


@pytest.mark.parametrize(("text", "expected"), DAYS)
def test_a_day_matches_either_day_field_unless_one_is_a_star(text: str, expected: list[int]) -> None:
    found = slots(text, at("2026-01-01") - 1, len(expected))
    assert found == [at(f"2026-01-{day:02}") for day in expected]
    assert slots(text, found[-1], 1)[0] >= at("2026-02-01")


# ---------------------------------------------------------------- what is refused

FIELDS = "cron: expected five fields (minute, hour, day, month, weekday), or six with seconds first, got "
NEVER = "cron: expected a day that its months have, got {!r}; it would never run"
NAMES = "cron: expected one of @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually, @every, got "
EVERY_WHAT = "cron: expected @every with a duration in h, m, s and ms, such as @every 1h30m, got {!r}"
EVERY_RANGE = f"cron: expected @every with a duration from 1 to {LAST_MS} ms, got "
ZONE = "cron: expected the IANA name of a time zone, such as Europe/Berlin, got "
REFUSED: dict[str, list[object]] = {
    FIELDS: ["", "* * * *", "* * * * * * *", "TZ=Europe/Berlin"],
    "cron: expected a valid second field, got {!r}": ["60 * * * * *"],
    "a valid minute field": ["60 * * * *", "*/0 * * * *", "-1 * * * *", "5-3 * * * *", "5-5/0 * * * *", "1,,2 * * * *"],
    "a valid hour field": ["* 24 * * *", "0 ٣ * * *", "0 L * * *"],
    "a valid day-of-month field": ["* * 0 * *", "* * 32 2 *", "* * */0 * *", "* * */ * *", "* * *,99 * *"],
    "a valid month field": ["* * * 13 *", "* * * 0 *", "* * * foo *"],
    "a valid day-of-week field": ["* * * * 8", "* * * * fri-mon", "* * * * mon#6", "* * * * *-5"],
    NEVER: ["0 0 30 2 *", "0 0 31 4,6,9,11 ?", "0 0 0 30-31 feb *"],
    NAMES: ["@reboot", "@daily 5", "@"],
    EVERY_WHAT: ["@every", "@every1h", "@every 5", "@every 1d", "@every -1h", "@every 1h 30m", "@every h"],
    EVERY_RANGE: ["@every 0s", "@every 0.9ms", "@every 99999999999999h"],
    ZONE: ["TZ=Nowhere 0 9 * * *", "TZ= 0 9 * * *", "CRON_TZ=America @daily"],
    "cron: expected at most 256 characters, got ": ["0," * 128 + "0 * * * *"],
    "cron: expected a cron expression as text, got {!r}": [None, 5, ["* * * * *"]],
}


@pytest.mark.parametrize(("message", "text"), [(message, text) for message in REFUSED for text in REFUSED[message]])
def test_refused_expressions(message: str, text: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Cron.parse(text)
    assert message.format(text) in str(caught.value)
    assert caught.value.field == "cron"


BAD_ZONES = ["", "Nowhere", "America", "utc", "../UTC", "/etc/localtime", "localtime", "right/UTC", "a\0b", "x" * 300]


@pytest.mark.parametrize("zone", [*BAD_ZONES, 5, None, []])
@pytest.mark.parametrize("text", ["0 9 * * *", "TZ=UTC 0 9 * * *"])
def test_refused_zones(text: str, zone: str) -> None:
    with pytest.raises(InvalidValue, match=ZONE.replace("cron:", "zone:")) as caught:
        Cron.parse(text, zone)
    assert caught.value.field == "timezone"


@given(st.text(max_size=30) | st.text("0123456789*/,-?L#@W nmo", max_size=20))
@settings(max_examples=300, deadline=None)
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        cron = Cron.parse(text)
    except InvalidValue:
        return
    assert cron.next(0) is not None


def test_a_cron_is_a_frozen_value_parsed_once() -> None:
    cron = Cron.parse("0 9 * * *", "Europe/Berlin")
    assert cron is Cron.parse("0 9 * * *", "Europe/Berlin")
    assert cron != Cron.parse("0 9 * * *", "Europe/Paris")
    with pytest.raises(FrozenInstanceError):
        cron.text = "0 10 * * *"  # type: ignore[misc]


# ---------------------------------------------------------------- the ends of time, and milliseconds


def test_an_occurrence_is_after_the_given_time_to_the_millisecond() -> None:
    nine = at("2026-01-01T09:00")
    cron = Cron.parse("0 9 * * *")
    assert cron.next(nine - 1) == nine
    assert cron.next(nine) == cron.next(nine + 1) == cron.next(nine + 999) == at("2026-01-02T09:00")


def test_before_1970() -> None:
    assert Cron.parse("@daily").next(-1) == 0
    assert Cron.parse("@every 1h").next(-1) == 0
    assert Cron.parse("@yearly").next(at("1900-06-01")) == at("1901-01-01")
    assert slots("@hourly", -(10**30), 1, "America/New_York") < slots("@yearly", -(10**30), 1, "America/New_York")


def test_the_last_occurrence_before_the_year_10000() -> None:
    assert slots("59 23 31 12 *", at("9998-12-31T23:59"), 1) == [at("9999-12-31T23:59")]


def test_leap_days_over_a_century_that_has_none() -> None:
    assert slots("0 0 29 2 *", at("2095-01-01"), 2) == [at("2096-02-29"), at("2104-02-29")]
    assert slots("0 0 * 2 mon#5", at("2072-02-01"), 2) == [at("2072-02-29"), at("2112-02-29")]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Pacific/Kiritimati"])
@pytest.mark.parametrize("text", ["* * * * * *", "0 * * * *", "0 0 1 1 *", "59 23 31 12 *", "0 0 29 2 *", "@every 7h"])
def test_there_are_no_occurrences_after_the_year_9999(text: str, zone: str) -> None:
    cron = Cron.parse(text, zone)
    assert cron.next(LAST_MS) is None
    assert cron.next(10**30) is None
    assert cron.next(at("9995-06-01")) is not None
    last = cron.next(LAST_MS - 60_000)
    assert last is None or LAST_MS - 60_000 < last <= LAST_MS


# ---------------------------------------------------------------- when the clock changes

# Every hour that is named comes once: a skipped slot right after the gap, a repeated one the first time.
CHANGES = [
    ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["03:00+02:00", "02:30+02:00"]),
    ("15 30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["03:00+02:00", "02:30:15+02:00"]),
    ("*/15 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["03:00+02:00", "02:00+02:00"]),
    ("0 */2 * * *", "Europe/Berlin", "2026-03-29T00:00", ["03:00+02:00", "04:00+02:00"]),
    ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["02:30+02:00", "02:30+01:00"]),
    ("*/30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["02:00+02:00", "02:30+02:00", "02:00+01:00"]),
    ("30 2 * * *", "America/New_York", "2026-03-07T12:00", ["03:00-04:00", "02:30-04:00"]),
    ("30 1 * * *", "America/New_York", "2026-10-31T12:00", ["01:30-04:00", "01:30-05:00"]),
    ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", ["02:30+11:00", "02:15+11:00"]),
    ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00", ["01:45+11:00", "01:45+10:30"]),
    ("0 0 * * *", "America/Havana", "2026-03-07T12:00", ["01:00-04:00", "00:00-04:00"]),
    ("30 0 * * *", "America/Havana", "2026-10-31T12:00", ["00:30-04:00", "00:30-05:00"]),
    ("0 9 30 12 *", "Pacific/Apia", "2011-12-01T00:00", ["00:00+14:00", "09:00+14:00"]),  # a day that never was
    # Every hour: elapsed time, through the repeated hour and without extra slots after the gap.
    ("@hourly", "Europe/Berlin", "2026-03-29T00:30", ["01:00+01:00", "03:00+02:00", "04:00+02:00"]),
    ("7 * * * *", "Europe/Berlin", "2026-03-29T01:30", ["03:07+02:00", "04:07+02:00"]),
    ("0 0-23 * * *", "Europe/Berlin", "2026-10-25T01:30", ["02:00+02:00", "02:00+01:00", "03:00+01:00"]),
    ("5 10 */1 * * *", "Europe/Berlin", "2026-10-25T01:30", ["02:10:05+02:00", "02:10:05+01:00", "03:10:05+01:00"]),
    ("45 * * * *", "Australia/Lord_Howe", "2026-10-04T01:50", ["02:45+11:00", "03:45+11:00"]),
    ("45 * * * *", "Australia/Lord_Howe", "2026-04-05T00:50", ["01:45+11:00", "01:45+10:30", "02:45+10:30"]),
    ("20 * 8 3 *", "America/Havana", "2026-03-07T12:00", ["01:20-04:00", "02:20-04:00"]),
]


@pytest.mark.parametrize(("text", "zone", "after", "expected"), CHANGES)
def test_occurrences_around_a_change_of_the_clock(text: str, zone: str, after: str, expected: list[str]) -> None:
    found = slots(text, at(after, zone), len(expected), zone)
    shown = [datetime.fromtimestamp(slot / 1000, ZoneInfo(zone)) for slot in found]
    assert [f"{wall:%H:%M:%S}".removesuffix(":00") + wall.isoformat()[-6:] for wall in shown] == expected


@pytest.mark.parametrize("second", range(0, 3600, 450))
def test_a_start_inside_the_repeated_hour_never_goes_back(second: int) -> None:
    start = at("2026-10-25T02:00", "Europe/Berlin", fold=1) + second * 1000
    assert slots("*/15 1-3 * * *", start, 1, "Europe/Berlin") == [at("2026-10-25T03:00", "Europe/Berlin")]
    assert slots("* * 2 * * *", start, 1, "Europe/Berlin") == [at("2026-10-26T02:00", "Europe/Berlin")]


# ---------------------------------------------------------------- against brute force


@dataclass(frozen=True)
class Field:
    text: str
    values: frozenset[int]
    star: bool


@st.composite
def fields(draw: st.DrawFn, least: int, most: int, whole: int) -> Field:
    """One to three terms; `most` is the largest value that may be written, `whole` the last that a star means."""

    def term() -> tuple[str, range]:
        low, step = draw(st.integers(least, most)), draw(st.integers(1, most + 3))
        high = draw(st.integers(low, most))
        kinds = [
            ("*", range(least, whole + 1)),
            (f"*/{step}", range(least, whole + 1, step)),
            (f"{low}", range(low, low + 1)),
            (f"{low}/{step}", range(low, most + 1, step)),
            (f"{low}-{high}", range(low, high + 1)),
            (f"{low}-{high}/{step}", range(low, high + 1, step)),
        ]
        return draw(st.sampled_from(kinds))

    terms = [term() for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3])))]
    values = frozenset(value for _, meant in terms for value in meant)
    return Field(",".join(text for text, _ in terms), values, any(text in ("*", "*/1") for text, _ in terms))


SECONDS, HOURS = fields(0, 59, 59), fields(0, 23, 23)
MONTH_DAYS, MONTHS, WEEKDAYS = fields(1, 31, 31), fields(1, 12, 12), fields(0, 7, 6)


@dataclass(frozen=True)
class Expression:
    second: Field
    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field

    def text(self) -> str:
        parts: list[Field] = list(vars(self).values())
        return " ".join(part.text for part in (parts[1:] if self.second.text == "0" else parts))

    def has_date(self, day: date) -> bool:
        in_day = day.day in self.day.values
        in_weekday = day.isoweekday() % 7 in {value % 7 for value in self.weekday.values}
        in_days = in_day and in_weekday if self.day.star or self.weekday.star else in_day or in_weekday
        return day.month in self.month.values and in_days

    def has_minute(self, wall: datetime) -> bool:
        return self.has_date(wall) and wall.hour in self.hour.values and wall.minute in self.minute.values


ON_THE_MINUTE = st.just(Field("0", frozenset({0}), False))
EXPRESSIONS = st.builds(Expression, ON_THE_MINUTE | SECONDS, SECONDS, HOURS, MONTH_DAYS, MONTHS, WEEKDAYS)


def walk(expression: Expression, after: datetime) -> Iterator[datetime]:
    """Every match after `after`, found by trying every second of every minute of every day."""
    now = after.replace(microsecond=0) + SECOND
    while True:
        if not expression.has_date(now):
            now = now.replace(hour=0, minute=0, second=0) + DAY
        elif not expression.has_minute(now):
            now = now.replace(second=0) + MINUTE
        else:
            if now.second in expression.second.values:
                yield now
            now += SECOND


def runs_ever(expression: Expression) -> bool:
    return any(expression.has_date(date(2024, 1, 1) + day * DAY) for day in range(366))


@pytest.mark.slow
@given(EXPRESSIONS, st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)), st.integers(1, 4))
@settings(max_examples=250, deadline=None)
def test_random_expressions_against_brute_force(expression: Expression, start: datetime, count: int) -> None:
    if not runs_ever(expression):
        with pytest.raises(InvalidValue, match="a day that its months have"):
            Cron.parse(expression.text())
        return
    after = start.replace(tzinfo=UTC)
    matches = walk(expression, after)
    assert slots(expression.text(), ms(after), count) == [ms(next(matches)) for _ in range(count)]


# A noon of UTC, the zone's clock changing in the following hours: gaps and repeats of an hour, of half an hour, of two
# and more, at, before and over midnight, and a whole day that was left out.
WINDOWS = {
    "Europe/Berlin": ["2026-03-28", "2026-10-24"],
    "America/New_York": ["2026-03-07", "2026-10-31"],
    "Australia/Lord_Howe": ["2026-10-03", "2026-04-04"],
    "America/Havana": ["2026-03-07", "2026-10-31"],
    "America/Sao_Paulo": ["2018-02-17", "2018-11-03"],
    "America/St_Johns": ["2010-03-13", "2010-11-06"],
    "Antarctica/Troll": ["2026-03-28", "2026-10-24"],
    "Antarctica/Casey": ["2020-10-03"],
    "Asia/Pyongyang": ["2018-05-04"],
    "Pacific/Apia": ["2011-12-29"],
}


@cache
def minutes_of(zone: str, day: str) -> list[tuple[datetime, datetime]]:
    """A day and a half of minutes from that noon: the instant, and what the wall clock shows then."""
    noon = datetime.fromisoformat(day).replace(hour=12, tzinfo=UTC)
    instants = [noon + minute * MINUTE for minute in range(36 * 60)]
    return [(instant, instant.astimezone(ZoneInfo(zone)).replace(tzinfo=None)) for instant in instants]


def expected_slots(expression: Expression, table: list[tuple[datetime, datetime]]) -> list[int]:
    if len(expression.hour.values) == 24:
        return [ms(instant) for instant, wall in table if expression.has_minute(wall)]
    found, shown = set(), table[0][1]
    for instant, wall in table:
        # Only what the clock has not shown before: this minute, and the minutes of a gap that it leaps over.
        while shown <= wall:
            if expression.has_minute(shown):
                found.add(ms(instant))
            shown += MINUTE
    return sorted(found)


def slots_within(cron: Cron, first: int, last: int) -> Iterator[int]:
    slot = cron.next(first - 1)
    while slot is not None and slot <= last:
        yield slot
        slot = cron.next(slot)


EVERY = Field("*", frozenset(range(32)), True)
EVERY_HOUR = Field("*", frozenset(range(24)), True)
DAILY, WEEKLY = st.just(EVERY) | MONTH_DAYS, st.just(EVERY) | WEEKDAYS
FREQUENT = st.builds(Expression, ON_THE_MINUTE, SECONDS, st.just(EVERY_HOUR) | HOURS, DAILY, st.just(EVERY), WEEKLY)


@pytest.mark.parametrize(("zone", "day"), [(zone, day) for zone in WINDOWS for day in WINDOWS[zone]])
@given(expression=FREQUENT)
@settings(max_examples=10, deadline=None)
def test_random_expressions_against_the_wall_clock(zone: str, day: str, expression: Expression) -> None:
    table = minutes_of(zone, day)
    found = slots_within(Cron.parse(expression.text(), zone), ms(table[0][0]), ms(table[-1][0]))
    assert list(found) == expected_slots(expression, table)


@pytest.mark.slow
@given(EXPRESSIONS.filter(runs_ever), st.sampled_from(list(WINDOWS)), st.data())
@settings(max_examples=150, deadline=None)
def test_next_is_later_and_monotone(expression: Expression, zone: str, data: st.DataObject) -> None:
    cron = Cron.parse(expression.text(), zone)
    instants = sorted(data.draw(st.lists(st.integers(0, at("2100-01-01")), min_size=2, max_size=4)))
    found = [(after, cron.next(after)) for after in instants]
    for (after, slot), (later, later_slot) in pairwise(found):
        assert slot is not None
        assert later_slot is not None
        assert slot > after
        assert later_slot == slot if later < slot else later_slot > later
