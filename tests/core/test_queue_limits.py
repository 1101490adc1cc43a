"""How many jobs of a queue may be claimed now."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from jobmill.core.queue_limits import QueueLimits, changed_settings
from jobmill.core.values import QueueChange, QueueSettings, RateLimit


def limits(*, ends: int = 0, used: int = 0, **settings: object) -> QueueLimits:
    return QueueLimits(settings=QueueSettings(**settings), window_ends_ms=ends, window_used=used)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("queue", "running", "room"),
    [
        (limits(), 5, None),
        (limits(paused=True), 0, 0),
        (limits(running_limit=3), 1, 2),
        (limits(running_limit=3), 4, 0),
        (limits(rate_limit=RateLimit(10, 1_000), ends=200, used=4), 0, 6),
        (limits(rate_limit=RateLimit(10, 1_000), ends=200, used=12), 0, 0),
        (limits(rate_limit=RateLimit(10, 1_000), ends=100, used=12), 0, 10),
        (limits(rate_limit=RateLimit(10, 1_000), ends=200, used=4, running_limit=3), 1, 2),
        (limits(rate_limit=RateLimit(10, 1_000), ends=200, used=9, running_limit=3), 1, 1),
        (limits(rate_limit=RateLimit(10, 1_000), paused=True), 0, 0),
    ],
)
def test_room_is_the_smallest_of_pause_running_limit_and_rate_limit(
    queue: QueueLimits, running: int, room: int | None
) -> None:
    assert queue.room(running, now_ms=100) == room


def test_claims_fill_a_window_and_the_first_claim_after_it_opens_the_next() -> None:
    queue = limits(rate_limit=RateLimit(10, 1_000))
    first = queue.after_claims(3, now_ms=100)
    assert (first.window_ends_ms, first.window_used) == (1_100, 3)
    second = first.after_claims(4, now_ms=1_099)
    assert (second.window_ends_ms, second.window_used) == (1_100, 7)
    third = second.after_claims(1, now_ms=1_100)
    assert (third.window_ends_ms, third.window_used) == (2_100, 1)


def test_without_a_rate_limit_or_without_claims_no_window_opens() -> None:
    assert limits(running_limit=1).after_claims(5, now_ms=100) == limits(running_limit=1)
    queue = limits(rate_limit=RateLimit(10, 1_000))
    assert queue.after_claims(0, now_ms=100) == queue


def test_claims_are_counted_where_a_limit_is_set() -> None:
    assert not limits(paused=True).counts_claims
    assert limits(running_limit=1).counts_claims
    assert limits(rate_limit=RateLimit(1, 1)).counts_claims


def test_a_change_of_settings_keeps_what_is_unset() -> None:
    settings = QueueSettings(paused=True, running_limit=3)
    assert changed_settings(settings, QueueChange(running_limit=None, feed=True)) == QueueSettings(
        paused=True, running_limit=None, feed=True
    )
    assert changed_settings(settings, QueueChange(paused=UNSET)) == settings
