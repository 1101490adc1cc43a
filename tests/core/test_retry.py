"""Backoff: the constructors' refusals, the curve, the cap and the jitter."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmill.core.durations import MAX_MS
from jobmill.core.retry import (
    DEFAULT_BACKOFF,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_MAX_CRASHES,
    Backoff,
    backoff,
    delay_ms,
    exponential,
    fixed,
)
from jobmill.errors import InvalidValue

HOUR = 3_600_000

WHOLE_MS = st.integers(1, MAX_MS)
BACKOFFS = st.builds(
    Backoff,
    type=st.sampled_from(["fixed", "exponential"]),
    delay_ms=WHOLE_MS | st.integers(1, 10_000),
    cap_ms=WHOLE_MS | st.integers(1, 10_000),
    jitter=st.floats(0, 1),
)


def test_the_defaults() -> None:
    assert DEFAULT_BACKOFF == exponential() == Backoff(type="exponential", delay_ms=1_000, cap_ms=HOUR, jitter=0.0)
    assert DEFAULT_MAX_ATTEMPTS == 3
    assert DEFAULT_MAX_CRASHES == 3


def test_the_default_curve_doubles_up_to_the_cap() -> None:
    seconds = [delay_ms(DEFAULT_BACKOFF, attempt) // 1_000 for attempt in range(1, 15)]
    assert seconds == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 3_600, 3_600]


def test_a_fixed_backoff_is_the_same_each_time() -> None:
    assert [delay_ms(fixed("5s"), attempt) for attempt in (1, 2, 50)] == [5_000] * 3


def test_a_fixed_delay_is_cut_only_by_a_cap_that_was_asked_for() -> None:
    assert delay_ms(fixed("2h"), 1) == 2 * HOUR
    assert delay_ms(backoff("2h"), 1) == 2 * HOUR
    assert delay_ms(backoff({"type": "fixed", "delay": 2 * HOUR}), 1) == 2 * HOUR
    assert delay_ms(fixed("2h", cap="1h"), 1) == HOUR


@pytest.mark.parametrize("attempt", [10**6, 10**100])
def test_a_huge_attempt_number_waits_for_the_cap(attempt: int) -> None:
    assert delay_ms(DEFAULT_BACKOFF, attempt) == HOUR
    assert delay_ms(Backoff(type="exponential", delay_ms=1, cap_ms=MAX_MS), attempt) == MAX_MS


@pytest.mark.parametrize("attempt", [0, -5])
def test_an_attempt_before_the_first_counts_as_the_first(attempt: int) -> None:
    assert delay_ms(DEFAULT_BACKOFF, attempt) == 1_000


def test_jitter_only_takes_off_and_only_when_asked() -> None:
    assert delay_ms(exponential("1s"), 1, random=0.9) == 1_000
    assert delay_ms(exponential("1s", jitter=0.2), 1, random=0.0) == 1_000
    assert delay_ms(exponential("1s", jitter=0.2), 1, random=0.5) == 900
    assert delay_ms(fixed("1s", jitter=1), 1, random=0.25) == 750
    assert delay_ms(fixed("1ms", jitter=1), 1, random=0.999999) == 1


READ: list[tuple[Any, Backoff]] = [
    (fixed("1s"), Backoff(type="fixed", delay_ms=1_000)),
    (30, Backoff(type="fixed", delay_ms=30_000)),
    (0.5, Backoff(type="fixed", delay_ms=500)),
    ("10m", Backoff(type="fixed", delay_ms=600_000)),
    (timedelta(seconds=2), Backoff(type="fixed", delay_ms=2_000)),
    ({"type": "fixed", "delay": 30}, Backoff(type="fixed", delay_ms=30)),
    ({"type": "exponential", "delay": 100}, Backoff(type="exponential", delay_ms=100, cap_ms=HOUR)),
    (
        {"type": "exponential", "delay": 100, "cap": 5_000, "jitter": 0.5},
        Backoff(type="exponential", delay_ms=100, cap_ms=5_000, jitter=0.5),
    ),
]


@pytest.mark.parametrize(("value", "expected"), READ)
def test_backoff_reads_every_form(value: Any, expected: Backoff) -> None:
    assert backoff(value) == expected


REFUSED: list[tuple[Any, str]] = [
    ({"type": "linear", "delay": 1}, 'backoff.type: expected "fixed" or "exponential", got \'linear\''),
    ({"delay": 1}, 'backoff.type: expected "fixed" or "exponential", got None'),
    ({"type": ["fixed"], "delay": 1}, "backoff.type: "),
    ({"type": "fixed"}, "backoff.delay: expected whole milliseconds above 0 and up to 249134400000000, got None"),
    ({"type": "fixed", "delay": 0}, "backoff.delay: "),
    ({"type": "fixed", "delay": -1}, "backoff.delay: "),
    ({"type": "fixed", "delay": True}, "backoff.delay: "),
    ({"type": "fixed", "delay": "1s"}, "backoff.delay: "),
    ({"type": "fixed", "delay": 1.5}, "backoff.delay: "),
    ({"type": "fixed", "delay": MAX_MS + 1}, "backoff.delay: "),
    ({"type": "fixed", "delay": 1, "cap": 0}, "backoff.cap: "),
    ({"type": "fixed", "delay": 1, "cap": None}, "backoff.cap: "),
    ({"type": "fixed", "delay": 1, "jitter": 1.01}, "backoff.jitter: expected a number from 0 to 1, got 1.01"),
    ({"type": "fixed", "delay": 1, "jitter": -0.1}, "backoff.jitter: "),
    ({"type": "fixed", "delay": 1, "jitter": float("nan")}, "backoff.jitter: "),
    ({"type": "fixed", "delay": 1, "jitter": "0.5"}, "backoff.jitter: "),
    ({"type": "fixed", "delay": 1, "jitter": True}, "backoff.jitter: "),
    (
        {"type": "fixed", "delay": 1, "jiter": 0.5},
        "backoff: expected the keys type, delay, cap and jitter, got 'jiter'",
    ),
    (Backoff(type="linear", delay_ms=1), "backoff.type: "),
    (Backoff(type="fixed", delay_ms=0), "backoff.delay: "),
    (Backoff(type="fixed", delay_ms=1, cap_ms=0), "backoff.cap: "),
    (Backoff(type="fixed", delay_ms=1, jitter=2), "backoff.jitter: "),
    (0, "backoff.delay: expected a duration above 0, got 0"),
    (-1, "backoff.delay: "),
    ("soon", "backoff.delay: expected a duration such as 30"),
    (True, "backoff.delay: "),
    (None, "backoff: expected a Backoff, a dict or a duration, got None"),
    ([1], "backoff: "),
]


@pytest.mark.parametrize(("value", "message"), REFUSED)
def test_backoff_refuses_and_names_the_field(value: Any, message: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        backoff(value)
    assert str(caught.value).startswith(message)


def test_the_constructors_refuse_too() -> None:
    with pytest.raises(InvalidValue, match=r"backoff\.delay: expected a duration above 0"):
        exponential(0)
    with pytest.raises(InvalidValue, match=r"backoff\.cap: expected a duration above 0"):
        exponential("1s", cap=0)
    with pytest.raises(InvalidValue, match=r"backoff\.cap: expected a duration above 0"):
        fixed("1s", cap=0)
    with pytest.raises(InvalidValue, match=r"backoff\.jitter: expected a number from 0 to 1, got 2"):
        fixed("1s", jitter=2)


@given(BACKOFFS, st.integers(1, 200), st.floats(0, 1, exclude_max=True))
def test_a_delay_is_whole_positive_and_never_above_the_cap(rule: Backoff, attempt: int, random: float) -> None:
    wait = delay_ms(rule, attempt, random)
    assert type(wait) is int
    assert 1 <= wait <= rule.cap_ms


@given(BACKOFFS, st.integers(1, 100), st.floats(0, 1, exclude_max=True))
def test_a_later_attempt_never_waits_less(rule: Backoff, attempt: int, random: float) -> None:
    assert delay_ms(rule, attempt, random) <= delay_ms(rule, attempt + 1, random)


@given(BACKOFFS, st.integers(1, 100), st.floats(0, 1, exclude_max=True))
def test_jitter_takes_off_no_more_than_its_share(rule: Backoff, attempt: int, random: float) -> None:
    whole = delay_ms(rule, attempt)
    assert whole * (1 - rule.jitter) - 1 <= delay_ms(rule, attempt, random) <= whole


@given(BACKOFFS)
def test_a_backoff_is_its_own_backoff_and_survives_json(rule: Backoff) -> None:
    assert backoff(rule) is rule
    assert msgspec.json.decode(msgspec.json.encode(rule), type=Backoff) == rule


def test_defaults_are_not_written() -> None:
    assert msgspec.json.encode(fixed("1s")) == b'{"type":"fixed","delay_ms":1000}'
