"""The claim cursor: when claims begin at the start again."""

from __future__ import annotations

from typing import Any

from jobmill.stores.common.claim_cursor import ClaimCursor, Position, Start


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


Claimed = tuple[str, str, float, Position]
FIRST: Claimed = ("q", "a", 0, (10, 1))


def start(cursor: ClaimCursor, *names: str) -> Start:
    return cursor.start(("q",), names or ("a",))


def positions(cursor: ClaimCursor, *names: str) -> list[Claimed]:
    """The positions at which a claim would begin now."""
    known = start(cursor, *names).positions
    return [(*key, priority, at) for key, by_priority in known.items() for priority, at in by_priority.items()]


def learn(cursor: ClaimCursor, begun: Start, *claimed: Claimed, seen: str | None = None, **about: Any) -> None:
    cursor.learn(begun, claimed, seen=seen, **{"pages": 1, "full": True, **about})


def learned(clock: Clock, *claimed: Claimed) -> ClaimCursor:
    cursor = ClaimCursor(clock)
    learn(cursor, start(cursor), *claimed)
    return cursor


def test_a_claim_begins_at_the_last_job_of_each_priority() -> None:
    cursor = learned(Clock(), FIRST, ("q", "a", 4, (20, 2)), ("q", "a", 0, (9, 9)))
    assert positions(cursor, "a", "b") == [FIRST, ("q", "a", 4, (20, 2))]


def test_under_load_claims_return_to_the_start_every_second() -> None:
    clock = Clock()
    cursor = learned(clock, FIRST)
    clock.now += 0.9
    assert positions(cursor) != []
    clock.now += 0.2
    assert positions(cursor) == []


def test_an_expensive_return_is_repeated_less_often_but_every_five_seconds() -> None:
    clock = Clock()
    cursor = ClaimCursor(clock)
    begun = start(cursor)
    assert begun.is_return
    clock.now += 2
    learn(cursor, begun, FIRST)
    clock.now += 2.9
    assert positions(cursor) != []
    clock.now += 0.2
    assert positions(cursor) == []


def test_after_a_claim_that_was_not_full_the_next_one_begins_at_the_start() -> None:
    cursor = learned(Clock(), FIRST)
    begun = start(cursor)
    assert cursor.look_again_ms(begun) is None
    learn(cursor, begun, full=False)
    assert cursor.look_again_ms(begun) == 0
    assert positions(cursor) == []


def test_a_long_scan_takes_a_fifth_of_the_time_and_nobody_sleeps_before_it() -> None:
    clock = Clock()
    cursor = ClaimCursor(clock)
    begun = start(cursor)
    clock.now += 0.1
    learn(cursor, begun, FIRST, full=False, pages=1_000)
    assert cursor.look_again_ms(begun) is None
    clock.now += 0.1
    begun = start(cursor)
    assert begun.has_positions
    assert cursor.look_again_ms(begun) == 300
    clock.now += 0.31
    assert positions(cursor) == []


def test_a_rewind_forgets_all_positions_but_those_of_its_own_answer() -> None:
    cursor = learned(Clock(), FIRST)
    before, late, later = start(cursor), start(cursor), start(cursor)
    learn(cursor, before, ("q", "b", 0, (5, 5)), seen="2")
    assert positions(cursor, "a", "b") == [("q", "b", 0, (5, 5))]
    # Sent before the rewind was known, and so from positions that may be too far ahead.
    learn(cursor, late, ("q", "a", 0, (99, 9)))
    # Rewound as well: what it has seen may be more than what the first one has seen, whose position counts.
    learn(cursor, later, ("q", "a", 0, (99, 9)), seen="3")
    assert positions(cursor, "a", "b") == [("q", "b", 0, (5, 5))]
    assert start(cursor).seen == "2"


def test_what_was_seen_belongs_to_the_positions_that_begin_with_it() -> None:
    clock = Clock()
    cursor = ClaimCursor(clock)
    learn(cursor, start(cursor), FIRST, seen="1")
    learn(cursor, start(cursor), ("q", "a", 0, (20, 2)))
    assert start(cursor).seen == "1"
    clock.now += 2
    assert start(cursor).seen is None


def test_no_position_is_known_after_jobs_were_skipped() -> None:
    cursor = learned(Clock(), FIRST)
    learn(cursor, start(cursor), ("q", "a", 0, (11, 2)), skipped=True)
    assert positions(cursor) == []
