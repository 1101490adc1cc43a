"""Lanes: who gets a slot, decided without a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from jobmill.core.changes import Cancel, Hold, Patch, Release, Reschedule, Subject, decide
from jobmill.core.due import NEVER_MS, Held, after, at, in_lane, lane_fields
from jobmill.core.lanes import LaneLimits, LanePosition, LaneWindow, Moves, changed_lane, keeps_slot, moves, room
from jobmill.core.queue_settings import LaneChange, LaneRule, LaneSettings, Pause, RateLimit
from jobmill.core.values import Due, Ended, Lease, Runs, Settlement

NOW = 1_000_000


def positions(*priorities: int, first: int = 0) -> list[LanePosition]:
    """Jobs in the order of a lane."""
    return sorted((priority, NOW, first + number, f"{first + number}") for number, priority in enumerate(priorities))


def last_of(admitted: Sequence[LanePosition]) -> Callable[[int], list[LanePosition]]:
    return lambda count: list(reversed(admitted))[:count]


def decided(
    limits: LaneLimits,
    ready: Sequence[LanePosition],
    admitted: Sequence[LanePosition] = (),
    running: int = 0,
    window: LaneWindow | None = None,
) -> Moves:
    return moves(limits, ready, len(admitted), running, last_of(admitted), window or LaneWindow(), NOW)


def settlement(outcome: Ended, due: Due | None = None, *, recurs: bool = False) -> Settlement:
    lease = Lease("id", "token", "queue", "name", NOW)
    runs = Runs(runs=1, failed_runs=0, last_error=None, revision=0, started_ms=0) if recurs else None
    given = {"state": "waiting", "attempt": 1, "errors": 0, "crashes": 0, "due": due, "runs": runs}
    return Settlement(lease=lease, outcome=outcome, **given)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------- slots

LIMITS = st.builds(
    LaneLimits,
    running=st.none() | st.integers(1, 6),
    rate=st.none() | st.builds(RateLimit, st.integers(1, 4), st.just(1_000)),
    paused=st.booleans(),
    strict=st.booleans(),
)
PRIORITIES = st.lists(st.integers(0, 3), max_size=8)
WINDOWS = st.builds(LaneWindow, st.sampled_from([0, NOW - 1, NOW, NOW + 500]), st.integers(0, 5))


@given(LIMITS, PRIORITIES, PRIORITIES, st.integers(0, 6), WINDOWS)
def test_what_always_holds(
    limits: LaneLimits, ready: list[int], admitted: list[int], running: int, window: LaneWindow
) -> None:
    waiting, has_slot = positions(*ready), positions(*admitted, first=100)
    result = decided(limits, waiting, has_slot, running, window)
    after_it = len(has_slot) + len(result.admit) - len(result.push_back)
    assert list(result.admit) == waiting[: len(result.admit)], "the first ready jobs get the slots"
    assert list(result.push_back) == has_slot[::-1][: len(result.push_back)], "the last admitted jobs lose theirs"
    if result.admit and result.push_back:
        urgent = result.admit[-len(result.push_back) :]
        assert all(gets[0] < loses[0] for gets, loses in zip(urgent, result.push_back, strict=True))
    if limits.paused:
        assert (list(result.admit), len(result.push_back)) == ([], len(has_slot))
    elif limits.running is not None:
        assert after_it + running <= limits.running or not result.admit, "no slot is given above the limit"
        assert after_it + running <= limits.running or after_it == 0, "all that can be taken back is taken back"
    if limits.rate is not None and len(result.admit) > len(result.push_back):
        used = window.used if window.ends_ms > NOW else len(has_slot)
        assert used + len(result.admit) - len(result.push_back) <= limits.rate.count
        assert result.window.used == used + len(result.admit) - len(result.push_back)
    left = waiting[len(result.admit) :]
    kept = sorted([*has_slot, *result.admit])
    kept = [one for one in kept if one not in result.push_back]
    if limits.strict:
        assert not (result.push_back and result.admit), "nothing overtakes a job that waits for its next attempt"
    elif left and kept and not limits.paused and not (result.push_back and not result.admit):
        assert left[0][0] >= kept[-1][0], "no job waits that is more urgent than one that has not begun"
    # The decision is stable: a second look changes nothing.
    again = moves(limits, left, len(kept), running, last_of(kept), result.window, NOW)
    if not result.push_back or result.admit:
        assert (list(again.admit), list(again.push_back)) == ([], [])


def test_a_lane_without_limits() -> None:
    assert decided(LaneLimits(), positions(0, 0, 0)).admit == positions(0, 0, 0)


def test_a_job_that_runs_keeps_its_slot() -> None:
    assert room(LaneLimits(running=1), admitted=2, running=3) == -2
    assert room(LaneLimits(running=1, paused=True), admitted=0, running=3) == 0
    assert list(decided(LaneLimits(running=1), positions(0), [], 3).admit) == []


def test_a_rate_says_when_to_look_again() -> None:
    rate = LaneLimits(rate=RateLimit(2, 1_000))
    first = decided(rate, positions(0, 0, 0))
    assert (len(first.admit), first.window, first.again_ms) == (2, LaneWindow(NOW + 1_000, 2), NOW + 1_000)
    assert decided(rate, positions(0, 0)).again_ms is None, "all have got their slots"
    full = decided(LaneLimits(running=1, rate=RateLimit(2, 1_000)), positions(0, 0, 0), [], 1)
    assert full.again_ms is None, "the next settlement looks again"
    filled = decided(LaneLimits(running=1, rate=RateLimit(2, 1_000)), positions(0, 0, 0))
    assert (len(filled.admit), filled.again_ms) == (1, None), "the rate would allow one more"


def test_a_new_window_begins_with_what_has_not_begun() -> None:
    rate = LaneLimits(rate=RateLimit(2, 1_000))
    result = decided(rate, positions(0), positions(0, 0, first=100), window=LaneWindow(NOW, 2))
    assert (list(result.admit), result.window, result.again_ms) == ([], LaneWindow(NOW + 1_000, 2), NOW + 1_000)


def test_a_full_lane_begins_no_window() -> None:
    limits = LaneLimits(running=1, rate=RateLimit(2, 1_000))
    over = LaneWindow(NOW - 1, 2)
    assert decided(limits, positions(0), [], 1, over).window == over
    assert decided(limits, positions(0), [], 0, over).window == LaneWindow(NOW + 1_000, 1)


# ---------------------------------------------------------------------------------------------------- settings


def test_a_lane_has_the_rule_of_its_queue_where_it_has_none() -> None:
    rule = LaneRule(running=2, rate=RateLimit(3, 1_000), strict=True)
    assert LaneLimits.of(None, None) == LaneLimits()
    assert LaneLimits.of(rule, None) == LaneLimits(running=2, rate=RateLimit(3, 1_000), strict=True)
    own = LaneSettings(running=5, strict=False, pause=Pause())
    assert LaneLimits.of(rule, own) == LaneLimits(running=5, rate=RateLimit(3, 1_000), paused=True)


def test_what_a_change_leaves_unset_stays() -> None:
    own = LaneSettings(running=5, pause=Pause(note="n"))
    assert changed_lane(own, LaneChange()) == own
    assert changed_lane(own, LaneChange(running=None, pause=UNSET)) == LaneSettings(pause=Pause(note="n"))


# ---------------------------------------------------------------------------------------------------- jobs


@pytest.mark.parametrize(
    ("done", "keeps", "keeps_if_strict"),
    [
        (settlement("errored", after(5)), False, True),
        (settlement("snoozed", after(5)), False, True),
        (settlement("released"), True, True),
        (settlement("released", after(5)), False, True),
        (settlement("suspended", after(5)), False, False),
        (settlement("succeeded", at(NOW + 5), recurs=True), False, False),
        (settlement("errored", at(NOW + 5), recurs=True), False, False),
    ],
)
def test_which_jobs_keep_their_slots(done: Settlement, keeps: bool, keeps_if_strict: bool) -> None:
    assert keeps_slot(done, strict=False) is keeps
    assert keeps_slot(done, strict=True) is keeps_if_strict


@pytest.mark.parametrize(
    ("due", "joined_ms"), [(after(0), NOW), (at(5), NOW), (after(70), NOW + 70), (at(NOW + 9), NOW + 9)]
)
def test_a_job_joins_its_lane(due: Due, joined_ms: int) -> None:
    assert lane_fields(None, due, NOW) == {"held": Held(by=("lane",), due=at(joined_ms)), "due_ms": NEVER_MS}


def test_a_job_that_others_hold_keeps_its_due_time() -> None:
    person = Held(by=("person",), due=at(5))
    fields = lane_fields(person, after(70), NOW)
    assert fields["held"] == Held(by=("lane", "person"), due=after(70))
    assert not in_lane(fields["held"])


def lane_job(**about: object) -> Subject:
    fields = {"id": "id", "name": "name", "queue": "queue", "state": "waiting", "due_ms": NOW, "lane": "a"} | about
    return Subject(**fields)  # type: ignore[arg-type]


def test_changes_of_a_job_with_a_slot() -> None:
    held = decide(Hold(), lane_job(), NOW + 5)
    assert isinstance(held, Patch)
    assert held.fields["held"] == Held(by=("lane", "person"), due=at(NOW))
    moved = decide(Reschedule(after(70)), lane_job(), NOW)
    assert isinstance(moved, Patch)
    assert moved.fields["held"] == Held(by=("lane",), due=at(NOW + 70))
    cancelled = decide(Cancel(), lane_job(state="running"), NOW)
    assert isinstance(cancelled, Patch)
    assert "held" not in cancelled.fields


def test_a_release_lets_a_job_join_the_end_of_its_lane() -> None:
    held = Held(by=("lane", "person"), due=at(5), who="ada", note="n")
    patch = decide(Release(), lane_job(due_ms=NEVER_MS, held=held), NOW)
    assert isinstance(patch, Patch)
    assert patch.fields == {"held": Held(by=("lane",), due=at(NOW)), "due_ms": NEVER_MS, "updated_ms": NOW}


def test_nobody_else_holds_or_releases_by_lane() -> None:
    held = Held(by=("lane",), due=at(5))
    assert "only a lane" in str(decide(Release("lane"), lane_job(due_ms=NEVER_MS, held=held), NOW))
    assert "only a lane" in str(decide(Hold(by="lane"), lane_job(), NOW))
