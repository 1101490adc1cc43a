"""Durations and instants: tables of what is read and refused, and round trips."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmill.core.durations import MAX_MS, instant_ms, shown_ms, to_datetime, to_ms
from jobmill.errors import InvalidValue

DAY = 86_400_000
LAST_INSTANT = 253_402_300_799_999

READ = [
    (0, 0),
    (30, 30_000),
    (0.5, 500),
    (0.0, 0),
    (-0.0, 0),
    (1.0004, 1_000),
    (1.0006, 1_001),
    (0.0025, 3),  # half up, not to even
    (0.0001, 1),
    (5e-324, 1),
    (timedelta(minutes=10), 600_000),
    (timedelta(microseconds=1), 1),
    (timedelta(microseconds=2_500), 3),
    (timedelta(0), 0),
    ("30s", 30_000),
    ("10m", 600_000),
    ("1h30m", 5_400_000),
    ("250ms", 250),
    ("1m250ms", 60_250),
    ("1s1ms", 1_001),
    ("7d", 7 * DAY),
    ("2w", 14 * DAY),
    ("1w2d3h4m5s6ms", 9 * DAY + 3 * 3_600_000 + 4 * 60_000 + 5_006),
    ("90m", 5_400_000),
    ("0s", 0),
    (MAX_MS // 1_000, MAX_MS),
]

NOT_DURATIONS = [
    "",
    " ",
    "30",
    "s",
    "30 s",
    " 30s",
    "30s ",
    "30s\n",
    "30S",
    "1.5h",
    "-1s",
    "+1s",
    "30m1h",
    "1s1s",
    "1y",
    "PT30S",
    "٣s",
    "1" * 5_000 + "s",
    True,
    None,
    b"30s",
    [30],
    {},
    float("nan"),
    float("inf"),
    float("-inf"),
    datetime(2024, 1, 1, tzinfo=UTC),
]

TOO_LONG = [8_000 * 366 * 86_400, 10**400, 1e308, timedelta.max, "999999999999999w", MAX_MS // 1_000 + 1]

NEGATIVE = [-1, -0.0001, -1e308, -(10**400), timedelta(microseconds=-1), timedelta.min]

SHOWN = [
    (0, "0s"),
    (1, "1ms"),
    (250, "250ms"),
    (1_000, "1s"),
    (1_500, "1s500ms"),
    (5_400_000, "1h30m"),
    (DAY, "1d"),
    (14 * DAY, "14d"),
    (-5_400_000, "-1h30m"),
]


@pytest.mark.parametrize(("value", "ms"), READ)
def test_durations_are_read(value: int | float | str | timedelta, ms: int) -> None:
    assert to_ms(value, "delay") == ms


@pytest.mark.parametrize("value", NOT_DURATIONS)
def test_what_is_no_duration_is_refused_with_examples(value: object) -> None:
    with pytest.raises(InvalidValue, match=r"^delay: expected a duration such as 30") as caught:
        to_ms(value, "delay")  # type: ignore[arg-type]
    assert caught.value.field == "delay"
    assert caught.value.given is value


@pytest.mark.parametrize("value", TOO_LONG)
def test_absurdly_long_durations_are_refused(value: int | float | str | timedelta) -> None:
    with pytest.raises(InvalidValue, match="delay: expected a duration of at most 2883500d"):
        to_ms(value, "delay")


@pytest.mark.parametrize("value", NEGATIVE)
def test_negative_durations_are_refused(value: int | float | timedelta) -> None:
    with pytest.raises(InvalidValue, match="delay: expected a duration of at least 0s"):
        to_ms(value, "delay")


def test_the_least_duration_is_a_matter_of_the_caller() -> None:
    assert to_ms(0.0001, "timeout", least=1) == 1
    with pytest.raises(InvalidValue, match=r"timeout: expected a duration above 0, got 0$"):
        to_ms(0, "timeout", least=1)
    assert to_ms("5s", "lease", least=5_000) == 5_000
    with pytest.raises(InvalidValue, match=r"lease: expected a duration of at least 5s, got '4s'$"):
        to_ms("4s", "lease", least=5_000)


@pytest.mark.parametrize(("ms", "text"), SHOWN)
def test_durations_are_shown(ms: int, text: str) -> None:
    assert shown_ms(ms) == text


@given(st.integers(0, MAX_MS))
def test_every_form_of_a_duration_gives_the_same_milliseconds(ms: int) -> None:
    assert to_ms(shown_ms(ms), "delay") == ms
    assert to_ms(timedelta(milliseconds=ms), "delay") == ms
    assert to_ms(ms / 1_000, "delay") == ms


@given(st.integers(1, 200 * 365 * DAY * 1_000))
def test_microseconds_are_rounded_half_up(microseconds: int) -> None:
    assert to_ms(timedelta(microseconds=microseconds), "delay") == max((microseconds + 500) // 1_000, 1)


@given(st.text() | st.from_regex(r"[0-9]{0,3}[wdhms]{0,2}[0-9]{0,3}[dhms]{0,2}"))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        ms = to_ms(text, "delay")
    except InvalidValue:
        return
    assert to_ms(shown_ms(ms), "delay") == ms


@given(st.floats())
def test_any_float_is_read_or_refused(seconds: float) -> None:
    try:
        ms = to_ms(seconds, "delay")
    except InvalidValue:
        return
    assert abs(ms - seconds * 1_000) <= 1
    assert (ms > 0) == (seconds > 0)


INSTANTS = [
    (datetime(1970, 1, 1, tzinfo=UTC), 0),
    (datetime(1970, 1, 1, 0, 0, 0, 999, tzinfo=UTC), 0),
    (datetime(1970, 1, 1, 0, 0, 0, 1_999, tzinfo=UTC), 1),
    (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0),
    (datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin")), 1_719_828_000_000),
    (datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")), 1_729_989_000_000),
    (datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")), 1_729_992_600_000),
    (datetime.max.replace(tzinfo=UTC), LAST_INSTANT),
]


@pytest.mark.parametrize(("value", "ms"), INSTANTS)
def test_instants_are_read(value: datetime, ms: int) -> None:
    assert instant_ms(value, "at") == ms


class Zoneless(tzinfo):
    """A tzinfo that knows no offset: a datetime with it is still naive."""

    def utcoffset(self, moment: datetime | None, /) -> None:
        return None

    def dst(self, moment: datetime | None, /) -> None:
        return None

    def tzname(self, moment: datetime | None, /) -> None:
        return None


@pytest.mark.parametrize("value", [datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=Zoneless())])
def test_a_naive_datetime_is_refused_with_advice(value: datetime) -> None:
    with pytest.raises(InvalidValue, match=r"at: expected an aware datetime, got .*; add a time zone"):
        instant_ms(value, "at")


@pytest.mark.parametrize(
    "value",
    [
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=23))),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
    ],
)
def test_instants_out_of_range_are_refused(value: datetime) -> None:
    with pytest.raises(InvalidValue, match="at: expected a datetime in the years 1970 to 9999"):
        instant_ms(value, "at")


@pytest.mark.parametrize("value", [0, 1.5, "2024-01-01", date(2024, 1, 1), None, timedelta(1)])
def test_what_is_no_datetime_is_refused(value: object) -> None:
    with pytest.raises(InvalidValue, match="at: expected an aware datetime, got"):
        instant_ms(value, "at")  # type: ignore[arg-type]


@given(st.integers(0, LAST_INSTANT))
def test_milliseconds_survive_the_way_through_datetime(ms: int) -> None:
    moment = to_datetime(ms)
    assert moment.utcoffset() == timedelta(0)
    assert instant_ms(moment, "at") == ms


@given(st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.timezones()))
def test_an_instant_is_rounded_down_by_less_than_a_millisecond(value: datetime) -> None:
    lost = value - to_datetime(instant_ms(value, "at"))
    assert timedelta(0) <= lost < timedelta(milliseconds=1)


@pytest.mark.parametrize("ms", [LAST_INSTANT + 1, 10**30, -(10**30)])
def test_milliseconds_out_of_range_are_refused(ms: int) -> None:
    with pytest.raises(InvalidValue, match="time: expected milliseconds since 1970"):
        to_datetime(ms)
