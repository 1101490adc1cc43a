"""The retry rule, and Harmonyk's words for states."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from jobmill import InvalidValue, harmonyk
from jobmill.core.job import STATES, JobOptions
from jobmill.core.lifecycle import Errored, policy, settle
from tests.values import NOW, claimed, job


def test_the_delays() -> None:
    told = {-1: 1, 0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 16, 6: 32, 7: 60, 8: 60, 1_000_000: 60}
    assert {attempts: harmonyk.backoff_delay_ms(attempts) for attempts in told} == {
        attempts: seconds * 1_000 for attempts, seconds in told.items()
    }


@pytest.mark.parametrize("attempts", [0, 4, 5, 6])
def test_what_can_be_retried(attempts: int) -> None:
    for status in ("queued", "failed"):
        assert harmonyk.can_retry(status, attempts) == (attempts < 5)
        assert harmonyk.can_retry(status, attempts, max_attempts=6) == (attempts < 6)
    assert not harmonyk.can_retry("success", attempts)
    assert not harmonyk.can_retry("running", attempts)
    assert harmonyk.DEFAULT_MAX_ATTEMPTS == 5


@pytest.mark.parametrize("status", ["succeeded", "Failed", None])
def test_a_status_that_is_none_is_refused(status: Any) -> None:
    with pytest.raises(InvalidValue, match="^status: expected one of queued, running, success, failed, got "):
        harmonyk.can_retry(status, 0)


def test_our_policy_comes_to_what_the_rule_says() -> None:
    """Check, increment, back off: delays of 1, 2, 4, 8 and 16 s, six runs in all."""
    attempts, delays = 0, []
    while harmonyk.can_retry("failed", attempts):
        attempts += 1
        delays.append(harmonyk.backoff_delay_ms(attempts))
    assert delays == [1_000, 2_000, 4_000, 8_000, 16_000]

    rules = policy(JobOptions(preset="harmonyk"))
    decided = [settle(claimed(errors=n), Errored(error="x"), rules, NOW, random=0.99) for n in range(6)]
    assert [one.due.after_ms for one in decided if one.due] == delays
    assert [one.state for one in decided] == ["waiting"] * 5 + ["failed"]
    assert decided[-1].errors == rules.max_attempts == 6


def test_every_state_has_a_status() -> None:
    told = {state: harmonyk.status(job(state=state)) for state in STATES}
    assert told == {
        "waiting": "queued",
        "running": "running",
        "succeeded": "success",
        "failed": "failed",
        "cancelled": "failed",
    }
    assert set(told.values()) == set(get_args(harmonyk.Status))


def test_the_last_error() -> None:
    assert harmonyk.last_error(job()) is None
    assert harmonyk.last_error(job(error="boom")) == "boom"
    assert harmonyk.last_error(job(state="cancelled", error="boom")) == "cancelled"
