"""What a handler may ask and tell."""

from __future__ import annotations

from typing import Any

import pytest

import jobmill
from jobmill import InvalidValue
from jobmill.core.job import LogEntry, Progress
from tests.values import context


def test_a_context_tells_what_the_handler_says() -> None:
    told: list[Progress | LogEntry] = []
    ctx = context(told, errors=2, claims=7)
    assert (ctx.attempt, ctx.fence, ctx.job.id, ctx.cancelled) == (3, 7, "job-1", False)
    ctx.progress(50)
    ctx.progress(99.5, "nearly")
    ctx.log("a line")
    ctx.log({"a": 1})
    assert told == [Progress(50), Progress(99.5, "nearly"), LogEntry("a line"), LogEntry("{'a': 1}")]


def test_what_no_store_could_hold_is_told_as_text_that_it_can() -> None:
    told: list[Progress | LogEntry] = []
    ctx = context(told)
    message: Any = 5
    ctx.progress(1, message)
    ctx.progress(1, "a\x00\ud83d")
    ctx.log("b\x00\udc00")
    assert told == [Progress(1, "5"), Progress(1, "a\ufffd?"), LogEntry("b\ufffd?")]


@pytest.mark.parametrize("value", [-1, 101, float("nan"), "50", None])
def test_progress_outside_of_0_to_100_is_refused(value: Any) -> None:
    told: list[Progress | LogEntry] = []
    with pytest.raises(InvalidValue, match="progress: expected a number from 0 to 100, got "):
        context(told).progress(value)
    assert told == []


def test_snoozing_ends_the_run() -> None:
    with pytest.raises(jobmill.Snooze) as caught:
        context().snooze("5m")
    assert caught.value.delay == "5m"
