from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobmill.core.durations import LAST_MS
from jobmill.core.recurrence import (
    Recurrence,
    first_occurrence,
    is_occurrence,
    next_occurrence,
    next_occurrence_or_now,
    recurrence,
)
from jobmill.errors import InvalidValue

HOUR = 3_600_000


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


# ---------------------------------------------------------------- the value


def test_a_recurrence_holds_what_it_was_given() -> None:
    made = recurrence(key="mail", cron="0 9 * * mon", timezone="Europe/Berlin", until_ms=at("2030-01-01"))
    assert made == Recurrence(
        key="mail", cron="0 9 * * mon", every_ms=None, timezone="Europe/Berlin", until_ms=at("2030-01-01"), revision=0
    )


def test_it_crosses_json_without_its_defaults() -> None:
    made = recurrence(key="tick", every_ms=HOUR)
    text = msgspec.json.encode(made)
    assert text == b'{"key":"tick","every_ms":3600000}'
    assert msgspec.json.decode(text, type=Recurrence) == made


def test_it_is_frozen() -> None:
    with pytest.raises(AttributeError):
        recurrence(key="tick", every_ms=HOUR).every_ms = 1  # type: ignore[misc]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("cron", {"cron": "@daily", "every_ms": HOUR}, "cron: expected either cron or every_ms, not both, got '@daily'"),
    ("cron", {}, "cron: expected cron or every_ms, got None"),
    ("cron", {"cron": "nonsense"}, "cron: expected five fields"),
    ("cron", {"cron": ""}, "cron: expected five fields"),
    ("cron", {"cron": "0 0 30 2 *"}, "cron: expected a day that its months have"),
    ("cron", {"cron": 5}, "cron: expected a cron expression as text, got 5"),
    ("every_ms", {"every_ms": 0}, f"every_ms: expected whole milliseconds from 1 to {LAST_MS}, got 0"),
    ("every_ms", {"every_ms": -1}, "got -1"),
    ("every_ms", {"every_ms": LAST_MS + 1}, "expected whole milliseconds"),
    ("every_ms", {"every_ms": 1.5}, "got 1.5"),
    ("every_ms", {"every_ms": True}, "got True"),
    ("every_ms", {"every_ms": "1h"}, "got '1h'"),
    ("timezone", {"cron": "@daily", "timezone": "Nowhere"}, "timezone: expected the IANA name of a time zone"),
    ("timezone", {"every_ms": HOUR, "timezone": "Nowhere"}, "timezone: expected the IANA name of a time zone"),
    ("timezone", {"cron": "TZ=UTC @daily", "timezone": None}, "timezone: expected the IANA name of a time zone"),
    ("until_ms", {"until_ms": -1}, "until_ms: expected milliseconds since 1970, up to the year 9999, got -1"),
    ("until_ms", {"until_ms": LAST_MS + 1}, "until_ms: expected milliseconds since 1970"),
    ("until_ms", {"until_ms": 1e12}, "got 1000000000000.0"),
    ("until_ms", {"until_ms": True}, "got True"),
    ("until_ms", {"until_ms": "2030"}, "got '2030'"),
    ("key", {"key": ""}, "key: expected a text of 1 to 1024 UTF-16 units, got ''"),
    ("key", {"key": "k" * 1025}, "key: expected a text of 1 to 1024 UTF-16 units"),
    ("key", {"key": "😀" * 513}, "key: expected a text of 1 to 1024 UTF-16 units"),
    ("key", {"key": "half a pair \ud83d"}, "key: expected a text of 1 to 1024 UTF-16 units"),
    ("key", {"key": None}, "key: expected a text of 1 to 1024 UTF-16 units, got None"),
    ("key", {"key": b"bytes"}, "got b'bytes'"),
]


@pytest.mark.parametrize(("field", "given_", "message"), REFUSED)
def test_refused(field: str, given_: dict[str, Any], message: str) -> None:
    rest = {} if field in ("cron", "every_ms", "timezone") else {"every_ms": HOUR}
    with pytest.raises(InvalidValue) as caught:
        recurrence(**{"key": "k", **rest, **given_})
    assert caught.value.field == field
    assert message in str(caught.value)


@pytest.mark.parametrize("key", ["k", "k" * 1024, "😀" * 512, "key with: anything"])
def test_allowed_keys(key: str) -> None:
    assert recurrence(key=key, every_ms=1).key == key


@pytest.mark.parametrize("until_ms", [0, LAST_MS])
def test_allowed_ends(until_ms: int) -> None:
    assert recurrence(key="k", every_ms=LAST_MS, until_ms=until_ms).until_ms == until_ms


# Read from a store, where another system may have written it.
STORED = [
    ({}, "cron"),
    ({"cron": "@daily", "every_ms": 1}, "cron"),
    ({"cron": "bad"}, "cron"),
    ({"every_ms": 0}, "every_ms"),
    ({"cron": "@daily", "timezone": "Nowhere"}, "timezone"),
]


@pytest.mark.parametrize(("stored", "field"), STORED)
def test_a_bad_one_from_a_store_is_refused_when_asked_for_a_slot(stored: dict[str, Any], field: str) -> None:
    bad = Recurrence(key="k", **stored)
    with pytest.raises(InvalidValue) as first:
        first_occurrence(bad, 0)
    with pytest.raises(InvalidValue) as following:
        next_occurrence(bad, 0, 0)
    assert first.value.field == following.value.field == field


# ---------------------------------------------------------------- slots

INTERVALS: list[dict[str, Any]] = [{"every_ms": HOUR}, {"cron": "@every 1h"}, {"cron": "TZ=Asia/Tokyo @every 60m"}]


@pytest.mark.parametrize("rule", INTERVALS)
def test_an_interval_runs_at_once_and_then_on_the_grid_through_that_run(rule: dict[str, Any]) -> None:
    hourly = recurrence(key="k", **rule)
    start = at("2026-01-01T10:17")
    assert first_occurrence(hourly, start) == start
    assert next_occurrence(hourly, start, start) == start + HOUR
    assert next_occurrence(hourly, start, start + 5) == start + HOUR
    assert next_occurrence(hourly, start, start + HOUR - 1) == start + HOUR
    assert next_occurrence(hourly, start, start + HOUR) == start + 2 * HOUR
    assert next_occurrence(hourly, start, start + HOUR * 7 // 2) == start + 4 * HOUR
    assert next_occurrence(hourly, start, start - 9 * HOUR) == start + HOUR


def test_a_cron_runs_at_its_slots() -> None:
    daily = recurrence(key="k", cron="0 9 * * *", timezone="Europe/Berlin")
    assert first_occurrence(daily, at("2026-01-01T08:00") - 1) == at("2026-01-01T08:00")
    assert first_occurrence(daily, at("2026-01-01T08:00")) == at("2026-01-02T08:00")
    assert next_occurrence(daily, at("2026-01-01T08:00"), at("2026-01-01T08:01")) == at("2026-01-02T08:00")


def test_missed_slots_collapse_into_the_run_that_has_just_ended() -> None:
    daily = recurrence(key="k", cron="0 9 * * *")
    assert next_occurrence(daily, at("2026-01-01T09:00"), at("2026-01-05T09:30")) == at("2026-01-06T09:00")
    assert next_occurrence(daily, at("2026-01-01T09:00"), at("2026-01-05T09:00")) == at("2026-01-06T09:00")


def test_a_clock_that_was_set_back_does_not_repeat_a_slot() -> None:
    daily = recurrence(key="k", cron="0 9 * * *")
    assert next_occurrence(daily, at("2026-01-05T09:00"), at("2026-01-01T00:00")) == at("2026-01-06T09:00")


@pytest.mark.parametrize("rule", [{"cron": "0 9 * * *"}, {"every_ms": 24 * HOUR}])
def test_the_end_is_still_a_slot(rule: dict[str, Any]) -> None:
    slot, following = at("2026-01-01T09:00"), at("2026-01-02T09:00")
    assert next_occurrence(recurrence(key="k", until_ms=following, **rule), slot, slot) == following
    assert next_occurrence(recurrence(key="k", until_ms=following - 1, **rule), slot, slot) is None


def test_a_first_run_after_the_end_does_not_happen() -> None:
    for rule in INTERVALS:
        ending = recurrence(key="k", until_ms=1000, **rule)
        assert first_occurrence(ending, 1000) == 1000
        assert first_occurrence(ending, 1001) is None
    daily = recurrence(key="k", cron="@daily", until_ms=at("2026-01-02"))
    assert first_occurrence(daily, at("2026-01-01T12:00")) == at("2026-01-02")
    assert first_occurrence(daily, at("2026-01-02")) is None


def test_nothing_is_due_after_the_year_9999() -> None:
    for endless in [
        recurrence(key="k", every_ms=1),
        recurrence(key="k", cron="@every 1ms"),
        recurrence(key="k", cron="* * * * * *"),
    ]:
        assert next_occurrence(endless, LAST_MS, LAST_MS) is None
        assert next_occurrence(endless, 0, 10**30) is None
        assert first_occurrence(endless, 10**30) is None


CRONS = ["* * * * * *", "*/5 * * * *", "0 9 * * mon-fri", "30 2 * * *", "0 0 29 2 *", "@hourly", "@every 1h30m"]
ZONES = ["UTC", "Europe/Berlin", "America/Havana", "Australia/Lord_Howe"]
RECURRENCES = st.builds(
    lambda every_ms, until_ms: recurrence(key="k", every_ms=every_ms, until_ms=until_ms),
    st.integers(1, 10 * HOUR) | st.integers(1, LAST_MS),
    st.none() | st.integers(0, LAST_MS),
) | st.builds(
    lambda cron, zone, until_ms: recurrence(key="k", cron=cron, timezone=zone, until_ms=until_ms),
    st.sampled_from(CRONS),
    st.sampled_from(ZONES),
    st.none() | st.integers(0, LAST_MS),
)
INSTANTS = st.integers(0, at("2100-01-01")) | st.integers(0, LAST_MS) | st.integers()


@given(RECURRENCES, INSTANTS, INSTANTS, st.integers(0, 10**13))
@settings(max_examples=300, deadline=None)
def test_next_is_after_both_before_the_end_and_monotone(rule: Recurrence, slot: int, now: int, more: int) -> None:
    following = next_occurrence(rule, slot, now)
    last = LAST_MS if rule.until_ms is None else rule.until_ms
    assert following is None or max(slot, now) < following <= last
    later = next_occurrence(rule, slot, now + more)
    assert later is None or (following is not None and later >= following)
    assert following is None or later == following or later is None or later > now + more


@given(RECURRENCES, INSTANTS)
@settings(max_examples=200, deadline=None)
def test_first_is_not_before_now_and_leads_into_the_grid(rule: Recurrence, now: int) -> None:
    first = first_occurrence(rule, now)
    if first is None:
        return
    assert first >= now
    second = next_occurrence(rule, first, first)
    assert second is None or second > first


@given(st.integers(1, 10 * HOUR), INSTANTS, st.integers(0, 10**13))
@settings(max_examples=200, deadline=None)
def test_an_interval_stays_on_its_grid(every_ms: int, slot: int, late: int) -> None:
    following = next_occurrence(recurrence(key="k", every_ms=every_ms), slot, slot + late)
    if following is not None:
        assert (following - slot) % every_ms == 0
        assert following - (slot + late) <= every_ms


# ---------------------------------------------------------------- a delay, and the rule of mongodb-cron


@pytest.mark.parametrize(
    ("delay_ms", "next"),
    [(0, 1), (1, 1), (HOUR - 1, 1), (HOUR, 2), (HOUR + 1, 2), (5 * HOUR // 2, 3)],
)
@pytest.mark.parametrize("rule", [{"cron": "0 * * * *"}, {"every_ms": HOUR}, {"cron": "@every 1h"}])
@pytest.mark.parametrize("following", [next_occurrence, next_occurrence_or_now])
def test_the_next_slot_is_after_the_delay(following: Any, rule: dict[str, Any], delay_ms: int, next: int) -> None:
    start = at("2026-01-01T08:00")
    hourly = recurrence(key="tick", **rule)
    assert following(hourly, start, start + 5, delay_ms=delay_ms) == start + next * HOUR


def test_a_delay_counts_from_the_slot_and_not_from_now() -> None:
    start = at("2026-01-01T08:00")
    hourly = recurrence(key="tick", cron="0 * * * *")
    assert next_occurrence(hourly, start, start + 7 * HOUR, delay_ms=2 * HOUR) == start + 8 * HOUR


def test_slots_that_were_missed_make_one_more_run_now() -> None:
    start, late = at("2026-01-01T08:00"), at("2026-01-01T11:20")
    hourly = recurrence(key="tick", cron="0 * * * *")
    assert next_occurrence_or_now(hourly, start, late) == late
    # And that run, which took no slot of the grid, goes on with it.
    assert next_occurrence_or_now(hourly, late, late + 5) == at("2026-01-01T12:00")
    assert next_occurrence_or_now(hourly, start, start + HOUR) == start + HOUR
    assert next_occurrence_or_now(hourly, start, start - 9 * HOUR) == start + HOUR


def test_that_run_as_well_is_not_past_the_end() -> None:
    start, late = at("2026-01-01T08:00"), at("2026-01-01T11:20")
    for until, next in ((late, late), (late - 1, None)):
        ending = recurrence(key="tick", cron="0 * * * *", until_ms=until)
        assert next_occurrence_or_now(ending, start, late) == next


def test_what_has_no_slot_any_more_has_no_run_either() -> None:
    yearly = recurrence(key="tick", cron="@yearly")
    assert next_occurrence_or_now(yearly, LAST_MS - HOUR, LAST_MS) is None


@pytest.mark.parametrize(
    ("rule", "at_ms", "expected"),
    [
        (Recurrence(key="k", cron="0 9 * * *"), 9 * HOUR, True),
        (Recurrence(key="k", cron="0 9 * * *"), 9 * HOUR + 1, False),
        (Recurrence(key="k", cron="0 9 * * *"), 9 * HOUR - 1, False),
        (Recurrence(key="k", cron="0 9 * * *", timezone="America/New_York"), 14 * HOUR, True),
        (Recurrence(key="k", cron="0 0 29 2 *"), 9 * HOUR, False),
        (Recurrence(key="k", every_ms=HOUR), 17, True),
        (Recurrence(key="k", cron="@every 1h"), 17, True),
    ],
)
def test_whether_an_instant_is_an_occurrence(rule: Recurrence, at_ms: int, expected: bool) -> None:
    assert is_occurrence(rule, at_ms) == expected
