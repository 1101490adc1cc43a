"""The bounds that every store can hold: what is taken, what is refused, and in which words."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmill.core import limits
from jobmill.core.job import STATES, Keep
from jobmill.errors import InvalidValue

PAIR = "😀"  # two UTF-16 units

TAKEN: list[tuple[Callable[[Any], Any], Any]] = [
    (limits.check_name, "send_email"),
    (limits.check_name, "Mail:send/now-2"),
    (limits.check_name, "grüße-日本"),
    (limits.check_name, "n" * 255),
    (limits.check_name, PAIR * 127 + "n"),
    (limits.check_queue, "q" * 255),
    (limits.check_queue, "mail.high"),
    (limits.check_id, "job 1"),
    (limits.check_id, "i" * 255),
    (limits.check_id, "1a"),
    (limits.check_id, "-1"),
    (limits.check_id, "1.5"),
    (limits.check_id, "١٢٣"),
    (limits.check_unique_key, "k" * 1024),
    (limits.check_unique_key, PAIR * 512),
    (limits.check_unique_key, "welcome: ada lovelace"),
    (limits.check_tenant, "acme & co"),
    (limits.check_priority, 0),
    (limits.check_priority, 2_097_151),
    (limits.check_state, "waiting"),
    (limits.check_progress, 0),
    (limits.check_progress, 33.3),
    (limits.check_progress, 100),
]


@pytest.mark.parametrize(("check", "value"), TAKEN)
def test_taken_as_it_is(check: Callable[[Any], Any], value: Any) -> None:
    assert check(value) == value


NAME = "name: expected a text of 1 to 255 characters without white space or control characters, got "
QUEUE = NAME.replace("name:", "queue:", 1)
ID = "id: expected a text of 1 to 255 characters without control characters, got "
KEY = "unique_key: expected a text of 1 to 1024 characters without control characters, got "

REFUSED: list[tuple[Callable[[Any], Any], Any, str]] = [
    (limits.check_name, "", NAME + "''"),
    (limits.check_name, None, NAME + "None"),
    (limits.check_name, 5, NAME + "5"),
    (limits.check_name, b"send", NAME + "b'send'"),
    (limits.check_name, "send mail", NAME + "'send mail'"),
    (limits.check_name, "send\u00a0mail", NAME),
    (limits.check_name, "send\u2028mail", NAME),
    (limits.check_name, "send\ufeff", NAME),
    (limits.check_name, "send\n", NAME + r"'send\n'"),
    (limits.check_name, "\x00", NAME),
    (limits.check_name, "a\x7f", NAME),
    (limits.check_name, "a\x85", NAME),
    (limits.check_name, "n" * 256, NAME),
    (limits.check_name, PAIR * 128, NAME),
    (limits.check_name, "\ud83d", "name: expected a text without lone surrogates, got "),
    (limits.check_queue, "a:b", "queue: expected a name without \":\", got 'a:b'"),
    (limits.check_queue, "a b", QUEUE + "'a b'"),
    (limits.check_queue, "", QUEUE + "''"),
    (limits.check_id, "a:b", "id: expected an id without \":\", got 'a:b'"),
    (limits.check_id, "123", "id: expected an id that is not all digits, got '123'; BullMQ numbers"),
    (limits.check_id, "", ID + "''"),
    (limits.check_id, "  ", ID + "'  '"),
    (limits.check_id, "a\tb", ID + r"'a\tb'"),
    (limits.check_id, 123, ID + "123"),
    (limits.check_id, "i" * 256, ID),
    (limits.check_id, "\udc00", "id: expected a text without lone surrogates"),
    (limits.check_unique_key, "", KEY + "''"),
    (limits.check_unique_key, "k" * 1025, KEY),
    (limits.check_unique_key, PAIR * 513, KEY),
    (limits.check_unique_key, "k\x00", KEY),
    (limits.check_unique_key, 7, KEY + "7"),
    (limits.check_tenant, "t" * 256, "tenant: expected a text of 1 to 255"),
    (limits.check_tenant, "\x1b", "tenant: expected a text of 1 to 255"),
    (limits.check_priority, -1, "priority: expected a whole number from 0 to 2097151, got -1"),
    (limits.check_priority, 2_097_152, "priority: expected a whole number from 0 to 2097151, got 2097152"),
    (limits.check_priority, 1.0, "priority: expected a whole number from 0 to 2097151, got 1.0"),
    (limits.check_priority, True, "priority: expected a whole number from 0 to 2097151, got True"),
    (limits.check_priority, "1", "priority: expected a whole number from 0 to 2097151, got '1'"),
    (limits.check_state, "done", "states: expected one of waiting, running, succeeded, failed, cancelled, got 'done'"),
    (limits.check_state, None, "states: expected one of "),
    (limits.check_state, ["waiting"], "states: expected one of "),
    (limits.check_progress, -0.1, "progress: expected a number from 0 to 100, got -0.1"),
    (limits.check_progress, 100.1, "progress: expected a number from 0 to 100, got 100.1"),
    (limits.check_progress, float("nan"), "progress: expected a number from 0 to 100, got nan"),
    (limits.check_progress, True, "progress: expected a number from 0 to 100, got True"),
    (limits.check_progress, "50", "progress: expected a number from 0 to 100, got '50'"),
]


@pytest.mark.parametrize(("check", "value", "message"), REFUSED)
def test_refused_with_field_expected_and_given(check: Callable[[Any], Any], value: Any, message: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        check(value)
    assert str(caught.value).startswith(message)
    assert caught.value.given is value
    assert caught.value.field == message.partition(":")[0]


def test_a_whole_number_without_an_upper_bound() -> None:
    assert limits.check_int(10**30, "slots", 1) == 10**30
    with pytest.raises(InvalidValue, match="slots: expected a whole number of at least 1, got 0"):
        limits.check_int(0, "slots", 1)


@given(st.text(min_size=1, max_size=300))
def test_a_name_that_is_taken_can_be_held_by_every_store(text: str) -> None:
    try:
        limits.check_name(text)
    except InvalidValue:
        return
    assert len(text.encode("utf-16-le")) <= 2 * 255
    assert not any(char.isspace() or ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in text)


@given(st.sampled_from(STATES))
def test_every_state_is_known(state: str) -> None:
    assert limits.check_state(state) == state


# ---------------------------------------------------------------------------------------------------- keep

KEPT: list[tuple[Any, Keep, bool]] = [
    (True, Keep(), False),
    (False, Keep(last=0), True),
    (0, Keep(last=0), True),
    (1, Keep(last=1), False),
    (10_000, Keep(last=10_000), False),
    ("7d", Keep(age_ms=7 * 86_400_000), False),
    ("0s", Keep(age_ms=0), True),
    (timedelta(hours=1), Keep(age_ms=3_600_000), False),
    (Keep(last=3), Keep(last=3), False),
    (Keep(age_ms=3), Keep(age_ms=3), False),
]


@pytest.mark.parametrize(("value", "expected", "at_once"), KEPT)
def test_how_long_a_final_job_stays(value: Any, expected: Keep, at_once: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = limits.keep(value, "keep_failed")
    assert kept == expected
    assert kept.at_once is at_once


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1, "keep_failed: expected True, False, how many to keep (0 or more), or an age, got -1"),
        (1.5, "keep_failed: expected True, False, how many to keep (0 or more), or an age such as"),
        (None, "keep_failed: expected True, False"),
        ("soon", "keep_failed: expected a duration such as"),
        ("-1s", "keep_failed: expected a duration such as"),
        (timedelta(seconds=-1), "keep_failed: expected a duration of at least 0s"),
        ([], "keep_failed: expected True, False"),
        (Keep(last=-1), "keep_failed: expected a whole number of at least 0, got -1"),
        (Keep(age_ms=-1), "keep_failed: expected a whole number of at least 0, got -1"),
    ],
)
def test_a_retention_that_means_nothing_is_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        limits.keep(value, "keep_failed")
    assert str(caught.value).startswith(message)
    assert caught.value.field == "keep_failed"


def test_keeping_very_many_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="keep_failed=10001: keeping the last 10001 jobs .* an age is cheaper"):
        assert limits.keep(10_001, "keep_failed") == Keep(last=10_001)


# ---------------------------------------------------------------------------------------------------- storable


@given(st.text(st.characters(exclude_categories=[])))
def test_any_text_can_be_made_storable(text: str) -> None:
    made = limits.storable(text)
    assert "\x00" not in made
    assert limits.storable(made) == made
    assert len(made.encode()) >= len(made)


def test_what_is_storable_stays() -> None:
    assert limits.storable("grüße 😀\n") == "grüße 😀\n"
    assert limits.storable("a\x00b\ud83d") == "a\ufffdb?"


@pytest.mark.parametrize("text", ["x" * 65_536, "é" * 32_768, "short"])
def test_a_log_line_of_64_kib_is_kept(text: str) -> None:
    assert limits.log_line(text) == text


@pytest.mark.parametrize("text", ["x" * 65_537, "é" * 32_769, "x" + "🎉" * 40_000])
def test_a_longer_log_line_is_cut(text: str) -> None:
    line = limits.log_line(text)
    assert 65_536 - 4 < len(line.encode()) <= 65_536
    assert line.endswith("…")
    assert text.startswith(line[:-1])
