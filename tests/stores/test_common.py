"""What several stores share: the bell, the server clock, chunks, URLs in messages, the claim cursor."""

from __future__ import annotations

import asyncio
import threading

import pytest

from jobmill.errors import Fail
from jobmill.stores.common.bell import Bell
from jobmill.stores.common.chunks import chunks
from jobmill.stores.common.claim_cursor import MAX_RETURN_SECONDS, ClaimCursor
from jobmill.stores.common.error_message import message_of
from jobmill.stores.common.server_clock import ServerClock
from jobmill.stores.common.url import without_credentials
from jobmill.worker.outcomes import described, printed
from tests.helpers import until

# ---------------------------------------------------------------------------------------------------- bell


async def test_a_ring_wakes_those_who_wait_for_its_queue_only() -> None:
    bell = Bell()
    mail = asyncio.create_task(bell.wait(["mail", "other"], 10))
    logs = asyncio.create_task(bell.wait(["logs"], 10))
    await until(lambda: bell.sleepers == 2)
    bell.ring(["mail"])
    assert await mail
    assert bell.sleepers == 1
    bell.ring()
    assert await logs


async def test_a_ring_before_the_wait_is_not_missed() -> None:
    bell = Bell()
    seen = bell.count(["mail"])
    bell.ring(["mail"])
    assert await bell.wait(["mail"], 10, seen)
    assert not await bell.wait(["mail"], 0.001, bell.count(["mail"]))


async def test_a_ring_of_another_queue_does_not_end_a_wait() -> None:
    bell = Bell()
    seen = bell.count(["mail"])
    bell.ring(["logs"])
    assert not await bell.wait(["mail"], 0.001, seen)


async def test_another_thread_may_ring_and_a_cancelled_wait_leaves_nothing_behind() -> None:
    bell = Bell()
    begun: list[str] = []
    waiting = asyncio.create_task(bell.wait(["mail"], 10, on_sleep=lambda: begun.append("asleep")))
    await until(lambda: bell.sleepers == 1)
    assert begun == ["asleep"]
    threading.Thread(target=bell.ring).start()
    assert await waiting
    cancelled = asyncio.create_task(bell.wait(["mail"], 10))
    await until(lambda: bell.sleepers == 1)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert bell.sleepers == 0


# ---------------------------------------------------------------------------------------------------- server clock


class Monotonic:
    """A clock in seconds that a test moves."""

    def __init__(self) -> None:
        self.seconds = 50.0

    def __call__(self) -> float:
        return self.seconds


def test_a_server_clock_learns_the_offset_and_goes_with_the_monotonic_clock() -> None:
    monotonic = Monotonic()
    clock = ServerClock(monotonic=monotonic)
    clock.learn(1_000_000, clock.start())
    assert clock.now() == 1_000_000
    monotonic.seconds += 2
    assert clock.now() == 1_002_000


def test_a_slow_answer_narrows_the_offset_only_as_far_as_it_tells() -> None:
    monotonic = Monotonic()
    clock = ServerClock(monotonic=monotonic)
    clock.learn(1_000_000, clock.start())
    started = clock.start()
    monotonic.seconds += 4
    clock.learn(1_003_000, started)  # read at some moment of these four seconds: the known offset fits
    assert clock.now() == 1_004_000
    started = clock.start()
    monotonic.seconds += 1
    clock.learn(1_010_000, started)  # the server's clock is at least five seconds ahead of what we knew
    assert clock.now() == 1_010_000


def test_setting_the_clock_of_this_machine_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monotonic = Monotonic()
    clock = ServerClock(monotonic=monotonic)
    clock.learn(1_000_000, clock.start())
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert clock.now() == 1_000_000


def test_a_clock_that_was_given_is_the_time() -> None:
    clock = ServerClock(lambda: 42)
    clock.learn(1_000_000, clock.start())
    assert (clock.now(), clock.given_ms(), clock.is_given) == (42, 42, True)
    assert ServerClock().given_ms() is None


# ---------------------------------------------------------------------------------------------------- chunks, URLs


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([1, 1, 1], [[1, 1, 1]]),
        ([1, 1, 1, 1], [[1, 1, 1], [1]]),
        ([6, 6, 1], [[6], [6, 1]]),
        ([20, 1, 20], [[20], [1], [20]]),
    ],
)
def test_chunks_are_limited_by_count_and_by_bytes(sizes: list[int], expected: list[list[int]]) -> None:
    assert [list(chunk) for chunk in chunks(sizes, 3, 10, lambda size: size)] == expected


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("postgresql://ada:secret@h/db?password=secret", "postgresql://ada@h/db"),
        ("mongodb://ada:s@cret@h/db", "mongodb://ada@h/db"),
        ("postgresql://ada:se?cret@h/db", "postgresql://…"),
        ("postgresql:ada:secret@h/db", "postgresql:…"),
    ],
)
def test_a_message_shows_neither_password_nor_options(url: str, shown: str) -> None:
    assert without_credentials(url) == shown


# ---------------------------------------------------------------------------------------------------- claim cursor


def test_a_full_claim_continues_where_the_last_one_ended_and_returns_after_a_second() -> None:
    monotonic = Monotonic()
    cursor = ClaimCursor(monotonic)
    start = cursor.start(["mail"], ["send"])
    cursor.learn(start, [("mail", "send", 0, (5, 1)), ("mail", "send", 0, (4, 9))], full=True)
    start = cursor.start(["mail"], ["send"])
    assert (start.is_return, start.positions["mail", "send"]) == (False, {0: (5, 1)})
    monotonic.seconds += 1
    start = cursor.start(["mail"], ["send"])
    assert (start.is_return, start.has_positions) == (True, False)


def test_a_claim_that_was_not_full_is_followed_by_one_from_the_start() -> None:
    cursor = ClaimCursor(Monotonic())
    cursor.learn(cursor.start(["mail"], ["send"]), [("mail", "send", 0, (5, 1))], full=False)
    assert not cursor.start(["mail"], ["send"]).has_positions


def test_a_rewind_by_the_server_forgets_all_positions_but_those_of_the_same_claim() -> None:
    cursor = ClaimCursor(Monotonic())
    cursor.learn(cursor.start(["mail"], ["send"]), [("mail", "send", 0, (5, 1))], full=True, seen="1")
    cursor.learn(cursor.start(["mail"], ["send"]), [("mail", "send", 3, (8, 1))], full=True, seen="2")
    assert cursor.start(["mail"], ["send"]).positions["mail", "send"] == {3: (8, 1)}


def test_a_claim_that_was_sent_before_a_rewind_teaches_nothing() -> None:
    cursor = ClaimCursor(Monotonic())
    cursor.learn(cursor.start(["mail"], ["send"]), [("mail", "send", 0, (1, 1))], full=True)
    start = cursor.start(["mail"], ["send"])
    cursor.rewind()
    cursor.learn(start, [("mail", "send", 0, (5, 1))], full=True)
    assert not cursor.start(["mail"], ["send"]).has_positions


def test_after_a_long_scan_claims_return_less_often_and_say_when_to_look_again() -> None:
    monotonic = Monotonic()
    cursor = ClaimCursor(monotonic)
    start = cursor.start(["mail"], ["send"])
    monotonic.seconds += 0.5
    cursor.learn(start, [("mail", "send", 0, (5, 1))], full=True, pages=10_000)
    monotonic.seconds += 1
    start = cursor.start(["mail"], ["send"])
    assert not start.is_return
    cursor.learn(start, [], full=False)
    look_again_ms = cursor.look_again_ms(start)
    assert look_again_ms is not None
    assert 0 < look_again_ms <= 1000 * MAX_RETURN_SECONDS


# ---------------------------------------------------------------------------------------------------- errors


class Odd(Exception):
    """Of a module."""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("no luck"), "no luck"),
        (Odd("no: luck"), "no: luck"),
        (Odd("two\nlines: here"), "two\nlines: here"),
        (KeyError("x"), "'x'"),
        (Fail("Timeout: of the server"), "Timeout: of the server"),
        (Fail("no luck"), "no luck"),
        (ValueError(), "ValueError"),
        (ValueError("x" * 5_000), "x" * 3_988),
    ],
)
def test_the_message_of_an_error_has_no_type(error: Exception, message: str) -> None:
    with pytest.raises(type(error)) as raised:
        raise error
    assert message_of(described(raised.value), printed(raised.value)) == message


def test_an_error_without_a_traceback_is_a_message() -> None:
    assert message_of("to: expected text", None) == "to: expected text"
    assert message_of("to: expected text", "Traceback of another error") == "to: expected text"
