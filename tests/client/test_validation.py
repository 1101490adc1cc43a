"""What is refused before any write, in words that name the field, what was expected and what came."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

import jobmill
from jobmill import Client, InvalidValue
from jobmill.core.payload import MAX_BYTES, MAX_DEPTH
from jobmill.stores.memory import MemoryStore
from jobmill.testing import ManualClock

NAIVE = datetime(2030, 1, 1)
WEST = timezone(timedelta(hours=-1))
LATER = datetime(2030, 1, 1, tzinfo=UTC)
CLOCK_AT = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
EVERY: dict[str, Any] = {"every": "1h", "key": "k"}
CRON: dict[str, Any] = {"cron": "0 9 * * mon", "key": "k"}


@pytest.fixture
def jobs() -> Client:
    client = jobmill.connect(store=MemoryStore(clock=ManualClock()))

    @client.handler()
    async def send(payload: Any = None) -> None: ...

    return client


# options, the field that is blamed, what was expected, and what is shown as given
OPTIONS: list[tuple[dict[str, Any], str, str, str]] = [
    # ids, names and keys that not every store could hold
    ({"id": "a:b"}, "id", 'an id without ":"', "'a:b'"),
    ({"id": "123"}, "id", "an id that is not all digits", "'123'"),
    ({"id": ""}, "id", "a text of 1 to 255 characters without control characters", "''"),
    ({"id": "i" * 256}, "id", "a text of 1 to 255 characters", "'iiii"),
    ({"id": 5}, "id", "a text of 1 to 255 characters", "5"),
    ({"queue": "a:b"}, "queue", 'a name without ":"', "'a:b'"),
    ({"queue": "a b"}, "queue", "a text of 1 to 255 characters without white space or control", "'a b'"),
    ({"queue": "\ud83d"}, "queue", "a text without lone surrogates", r"'\ud83d'"),
    ({"unique_key": "k" * 1025}, "unique_key", "a text of 1 to 1024 characters", "'kkkk"),
    ({"unique_key": "a\x00"}, "unique_key", "without control characters", r"'a\x00'"),
    ({"tenant": ""}, "tenant", "a text of 1 to 255 characters", "''"),
    ({"tenant": 7}, "tenant", "a text of 1 to 255 characters", "7"),
    ({"priority": -1}, "priority", "a whole number from 0 to 2097151", "-1"),
    ({"priority": 2_097_152}, "priority", "a whole number from 0 to 2097151", "2097152"),
    ({"priority": 1.5}, "priority", "a whole number from 0 to 2097151", "1.5"),
    # when
    ({"delay": -1}, "delay", "a duration of at least 0s", "-1"),
    ({"delay": timedelta(seconds=-1)}, "delay", "a duration of at least 0s", "datetime.timedelta(days=-1"),
    ({"delay": "-1s"}, "delay", "a duration such as 30", "'-1s'"),
    ({"delay": "soon"}, "delay", "a duration such as 30", "'soon'"),
    ({"delay": float("nan")}, "delay", "a duration such as 30", "nan"),
    ({"delay": True}, "delay", "a duration such as 30", "True"),
    ({"delay": 1e15}, "delay", "a duration of at most ", "1000000000000000.0"),
    ({"due_at": NAIVE}, "due_at", "an aware datetime", "datetime.datetime(2030, 1, 1, 0, 0)"),
    ({"due_at": date(2030, 1, 1)}, "due_at", "an aware datetime", "datetime.date(2030, 1, 1)"),
    ({"due_at": "2030-01-01T00:00:00Z"}, "due_at", "an aware datetime", "'2030-01-01T00:00:00Z'"),
    ({"due_at": 1_900_000_000}, "due_at", "an aware datetime", "1900000000"),
    ({"due_at": datetime(1969, 12, 31, tzinfo=UTC)}, "due_at", "in the years 1970 to 9999", "datetime.datetime(1969"),
    ({"due_at": datetime.max.replace(tzinfo=WEST)}, "due_at", "in the years 1970 to 9999", "datetime.datetime(9999"),
    ({"due_at": LATER, "delay": 5}, "due_at", "either delay or due_at, not both", "datetime.datetime(2030"),
    ({"due_at": LATER, "delay": 0}, "due_at", "either delay or due_at, not both", "datetime.datetime(2030"),
    # attempts
    ({"max_attempts": 0}, "max_attempts", "a whole number from 1 to", "0"),
    ({"max_attempts": -3}, "max_attempts", "a whole number from 1 to", "-3"),
    ({"max_attempts": 2.0}, "max_attempts", "a whole number from 1 to", "2.0"),
    ({"max_attempts": 2**31}, "max_attempts", "a whole number from 1 to", "2147483648"),
    ({"max_crashes": 0}, "max_crashes", "a whole number from 1 to", "0"),
    ({"timeout": 0}, "timeout", "a duration above 0", "0"),
    ({"timeout": "never"}, "timeout", "a duration such as 30", "'never'"),
    ({"backoff": {"type": "linear", "delay": 1}}, "backoff.type", '"fixed" or "exponential"', "'linear'"),
    ({"backoff": {"type": "fixed", "delay": 0}}, "backoff.delay", "whole milliseconds above 0", "0"),
    ({"backoff": {"type": "fixed", "wait": 5}}, "backoff", "the keys type, delay, cap and jitter", "'wait'"),
    ({"backoff": 0}, "backoff.delay", "a duration above 0", "0"),
    ({"backoff": -1}, "backoff.delay", "a duration above 0", "-1"),
    ({"backoff": "linear"}, "backoff.delay", "a duration such as 30", "'linear'"),
    ({"backoff": [1]}, "backoff", "a Backoff, a dict or a duration", "[1]"),
    # retention
    ({"keep_succeeded": -1}, "keep_succeeded", "how many to keep (0 or more)", "-1"),
    ({"keep_failed": -1}, "keep_failed", "how many to keep (0 or more)", "-1"),
    ({"keep_failed": 1.5}, "keep_failed", "how many to keep (0 or more)", "1.5"),
    ({"keep_failed": "long"}, "keep_failed", "a duration such as 30", "'long'"),
    ({"colour": "red"}, "colour", "one of the options ", "'colour'"),
    ({"countdown": 3}, "countdown", "one of the options ", "'countdown'; here it is delay"),
    ({"deley": 3}, "deley", "one of the options ", "'deley'; here it is delay"),
    ({"wihtin": None}, "wihtin", "one of the options ", "'wihtin'; here it is within"),
    ({"max_attemps": 3}, "max_attemps", "max_attempts", "'max_attemps'"),
]

ONE_JOB: list[tuple[dict[str, Any], str, str, str]] = [
    ({"backoff": len}, "backoff", "a Backoff, a dict or a duration", "<built-in function len>"),
    ({"isolate": True}, "isolate", "one of the options ", "'isolate'"),
    # dedupe, which is a unique key
    ({"dedupe": 1}, "dedupe", "True or False", "1"),
    ({"dedupe": True, "unique_key": "k"}, "dedupe", "either dedupe or unique_key, not both", "True"),
    (CRON | {"dedupe": True}, "dedupe", "either dedupe or cron, not both", "True"),
    (EVERY | {"dedupe": True}, "dedupe", "either dedupe or every, not both", "True"),
    # recurrence
    (CRON | EVERY, "cron", "either cron or every, not both", "'0 9 * * mon'"),
    (CRON | {"cron": "nonsense"}, "cron", "five fields", "'nonsense'"),
    (CRON | {"cron": ""}, "cron", "five fields", "''"),
    (CRON | {"cron": "61 * * * *"}, "cron", "a valid minute field", "'61 * * * *'"),
    (CRON | {"cron": "0 0 30 2 *"}, "cron", "a day that its months have", "'0 0 30 2 *'"),
    (CRON | {"cron": "@fortnightly"}, "cron", "one of @hourly", "'@fortnightly'"),
    (CRON | {"cron": "*" * 257}, "cron", "at most 256 characters", "'****"),
    (CRON | {"cron": 5}, "cron", "a cron expression as text", "5"),
    (CRON | {"timezone": "Mars/Olympus"}, "timezone", "the IANA name of a time zone", "'Mars/Olympus'"),
    (CRON | {"timezone": ""}, "timezone", "the IANA name of a time zone", "''"),
    (CRON | {"until": NAIVE}, "until", "an aware datetime", "datetime.datetime(2030, 1, 1, 0, 0)"),
    (CRON | {"until": "2030"}, "until", "an aware datetime", "'2030'"),
    (CRON | {"key": ""}, "key", "a text of 1 to 1024 characters", "''"),
    (CRON | {"key": "k" * 1025}, "key", "a text of 1 to 1024 characters", "'kkkk"),
    (CRON | {"key": None}, "key", "a key that identifies the recurring job", "None"),
    (CRON | {"unique_key": "other"}, "unique_key", "none beside a recurrence", "'other'"),
    (EVERY | {"every": 0}, "every", "a duration above 0", "0"),
    (EVERY | {"every": "-1h"}, "every", "a duration such as 30", "'-1h'"),
    (EVERY | {"every": "often"}, "every", "a duration such as 30", "'often'"),
    ({"timezone": "Europe/Berlin"}, "timezone", "timezone only together with cron or every", "'Europe/Berlin'"),
    ({"until": LATER}, "until", "until only together with cron or every", "datetime.datetime(2030"),
    ({"key": "k"}, "key", "key only together with cron or every", "'k'"),
]


def refusal(error: InvalidValue, field: str, expected: str, given: str) -> None:
    """Check the words of a refusal."""
    assert error.field == field
    assert expected in error.expected
    assert str(error).startswith(f"{field}: expected {error.expected}, got ")
    assert given in str(error)
    assert str(error).count("\n") == 0
    assert isinstance(error, jobmill.JobmillError)
    assert isinstance(error, ValueError)


@pytest.mark.parametrize(("options", "field", "expected", "given"), OPTIONS + ONE_JOB)
async def test_options_of_a_job(jobs: Client, options: Any, field: str, expected: str, given: str) -> None:
    doors: list[Callable[[], Awaitable[Any]]] = [
        lambda: jobs.handler_named("send").options(**options).enqueue(),
        lambda: jobs.enqueue("send", {}, **options),
        lambda: jobs.enqueue("unknown", [1], **options),
    ]
    for door in doors:
        with pytest.raises(InvalidValue) as caught:
            await door()
        refusal(caught.value, field, expected, given)
    assert await jobs.count() == []


HANDLER: list[tuple[dict[str, Any], str, str, str]] = [
    ({"name": ""}, "name", "a text of 1 to 255 characters", "''"),
    ({"name": "a b"}, "name", "without white space or control characters", "'a b'"),
    ({"name": 5}, "name", "a text of 1 to 255 characters", "5"),
    ({"isolate": "no"}, "isolate", 'True, False, "pool" or "spawn"', "'no'"),
    ({"isolate": "fork"}, "isolate", 'True, False, "pool" or "spawn"', "'fork'"),
    ({"isolate": 1}, "isolate", 'True, False, "pool" or "spawn"', "1"),
    ({"concurrency": 0}, "concurrency", "a whole number of at least 1", "0"),
    ({"queue": None}, "queue", "a text of 1 to 255 characters", "None"),
    ({"id": "x"}, "id", "one of the options ", "'id'"),
    ({"delay": 5}, "delay", "one of the options ", "'delay'"),
    ({"due_at": "now"}, "due_at", "one of the options ", "'due_at'"),
    ({"cron": "nonsense"}, "cron", "five fields", "'nonsense'"),
    ({"timezone": "UTC"}, "timezone", "only together with cron or every", "'UTC'"),
]
OF_HANDLERS_TOO = {"queue", "priority", "max_attempts", "max_crashes", "timeout", "backoff"} | {
    *("keep_succeeded", "keep_failed", "colour", "max_attemps")
}


@pytest.mark.parametrize(
    ("options", "field", "expected", "given"),
    [row for row in OPTIONS if row[0].keys() <= OF_HANDLERS_TOO] + HANDLER,
)
def test_options_of_a_handler(jobs: Client, options: Any, field: str, expected: str, given: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        jobs.handler(**{"name": "other"} | options)(lambda: None)
    refusal(caught.value, field, expected, given)
    assert list(jobs.handlers) == ["send"]


@pytest.mark.parametrize("options", [{"keep_succeeded": 10_001}, {"keep_failed": 99_999}])
async def test_keeping_very_many_is_warned_of_once_and_done(jobs: Client, options: Any) -> None:
    ((field, value),) = options.items()
    with pytest.warns(UserWarning, match=f"{field}={value}: keeping the last {value} jobs") as warned:
        await jobs.enqueue("send", **options)
    assert len(warned) == 1
    with pytest.warns(UserWarning, match=f"{field}={value}") as warned:
        jobs.handler(name="other", **options)(lambda: None)
    assert len(warned) == 1
    (job,) = (await jobs.find()).jobs
    kept = getattr(job.options, field)
    assert kept.last == value


async def test_names_of_jobs_for_handlers_that_are_not_known_here(jobs: Client) -> None:
    for name in ("", "a b", "n" * 256, "\ud83d", None):
        with pytest.raises(InvalidValue, match="name: expected a text"):
            await jobs.enqueue(name, {})  # type: ignore[arg-type]
    assert await jobs.count() == []


async def test_an_end_before_the_first_run(jobs: Client) -> None:
    before = CLOCK_AT - timedelta(seconds=1)
    for options in (
        {"every": "1h", "until": before},
        {"cron": "@daily", "until": CLOCK_AT + timedelta(minutes=1)},
        {"every": "1h", "until": CLOCK_AT + timedelta(hours=2), "delay": "3h"},
        {"every": "1h", "until": CLOCK_AT, "due_at": CLOCK_AT + timedelta(seconds=1)},
    ):
        with pytest.raises(
            InvalidValue, match="until: expected an end that is not before the first run, got '2023-11-1"
        ):
            await jobs.enqueue("send", key="k", **options)  # type: ignore[arg-type]
    assert await jobs.count() == []
    await jobs.enqueue("send", key="k", every="1h", until=CLOCK_AT)


# ---------------------------------------------------------------------------------------------------- payloads


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def cycle() -> Any:
    one: list[Any] = []
    one.append(one)
    return one


PAYLOADS: list[tuple[Any, str, str, str]] = [
    (float("nan"), ".x", "a finite number", "nan"),
    (float("-inf"), ".x", "a finite number", "-inf"),
    (b"bytes", ".x", "None, bool, int, float, str, list, tuple or dict", "b'bytes'"),
    ({1, 2}, ".x", "None, bool, int, float, str, list, tuple or dict", "{1, 2}"),
    (frozenset([1]), ".x", "None, bool, int, float, str, list, tuple or dict", "frozenset({1})"),
    (object, ".x", "None, bool", "<class 'object'>"),
    (1j, ".x", "None, bool", "1j"),
    (2**64, ".x", "an integer from -2**63 to 2**64-1", "18446744073709551616"),
    ("half \ud83d", ".x", "text without lone surrogates", r"'half \ud83d'"),
    ({"\udc00": 1}, ".x", "keys without lone surrogates", r"'\udc00'"),
    ({1: 2}, ".x", "only str as keys", "1"),
    ({None: 2}, ".x", "only str as keys", "None"),
    ([1, {"y": [b"z"]}], ".x[1].y[0]", "None, bool", "b'z'"),
    (cycle(), ".x[0][0]", f"at most {MAX_DEPTH} levels of nesting and no cycle", "101"),
    (nested(MAX_DEPTH), ".x[0][0]", f"at most {MAX_DEPTH} levels of nesting and no cycle", "101"),
]


@pytest.mark.parametrize(("value", "place", "expected", "given"), PAYLOADS, ids=lambda value: repr(value)[:30])
async def test_a_payload_that_is_not_json(jobs: Client, value: Any, place: str, expected: str, given: str) -> None:
    send: Any = jobs.handlers["send"]
    doors: list[Callable[[], Awaitable[Any]]] = [
        lambda: jobs.enqueue("unknown", {"x": value}),
        lambda: jobs.enqueue("send", {"payload": {"x": value}}),
        lambda: send.enqueue(payload={"x": value}),
        lambda: jobs.enqueue_many([send.draft(), send.draft({"x": value})]),
    ]
    for door in doors:
        with pytest.raises(InvalidValue) as caught:
            await door()
        error = caught.value
        assert error.field.startswith("payload")
        assert place.removesuffix("[0][0]") in error.field
        assert expected in error.expected
        assert given in str(error)
    assert await jobs.count() == []


async def test_what_is_just_deep_and_wide_enough(jobs: Client) -> None:
    value = {"deep": nested(MAX_DEPTH - 1), "numbers": [2**64 - 1, -(2**63), 1e308], "text": "grüße 😀 \x00"}
    enqueued = await jobs.enqueue("unknown", value)
    assert (await enqueued.job()).payload == value


@pytest.mark.parametrize("payload", [{1: 2}, {"nope": 1}, {b"x": 1}])
async def test_a_payload_whose_keys_are_no_arguments(jobs: Client, payload: Any) -> None:
    with pytest.raises(InvalidValue, match="payload: expected arguments as in"):
        await jobs.enqueue("send", payload)
    assert await jobs.count() == []


# ---------------------------------------------------------------------------------------------------- size

ADVICE = "; store the data elsewhere and pass a reference to it"


async def test_a_payload_that_is_too_large(jobs: Client) -> None:
    text = "x" * round(12.3 * 1024 * 1024)
    for door in (jobs.enqueue("unknown", text), jobs.enqueue("send", {"payload": text})):
        with pytest.raises(jobmill.PayloadTooLarge) as caught:
            await door
        assert str(caught.value) == f"Job payload size 12.3 MB exceeds limit of 10.0 MB{ADVICE}"
        assert caught.value.field == "payload"
        assert caught.value.size > caught.value.limit == MAX_BYTES
    assert await jobs.count() == []


async def test_bytes_of_utf8_count_not_characters(jobs: Client) -> None:
    with pytest.raises(jobmill.PayloadTooLarge, match=re.escape("Job payload size 12.0 MB exceeds limit of 10.0 MB")):
        await jobs.enqueue("unknown", "ü" * (6 * 1024 * 1024))


async def test_the_limit_is_of_payload_and_options_together(jobs: Client) -> None:
    just = "x" * (MAX_BYTES - 2)  # and its quotes
    await jobs.enqueue("unknown", just)
    with pytest.raises(jobmill.PayloadTooLarge):
        await jobs.enqueue("unknown", just + "x")
    with pytest.raises(jobmill.PayloadTooLarge):
        await jobs.enqueue("unknown", just, unique_key="k")
    fits = "x" * (MAX_BYTES - 2_000)
    await jobs.enqueue("unknown", fits, unique_key="k" * 1_000)
    with pytest.raises(jobmill.PayloadTooLarge):
        await jobs.enqueue("unknown", fits, key="l" * 1_000, cron="@daily", tenant="t" * 255)
    assert sum(one.count for one in await jobs.count()) == 2


async def test_one_job_that_is_too_large_refuses_its_whole_call(jobs: Client) -> None:
    send: Any = jobs.handlers["send"]
    with pytest.raises(jobmill.PayloadTooLarge):
        await jobs.enqueue_many([send.draft(), send.draft("x" * MAX_BYTES)])
    assert await jobs.count() == []


# ---------------------------------------------------------------------------------------------------- filters and acts

FILTERS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"states": "done"}, "states", "one of waiting, running, succeeded, failed, cancelled", "'done'"),
    ({"states": ["waiting", "done"]}, "states", "one of waiting", "'done'"),
    ({"states": 5}, "states", "one of waiting", "5"),
    ({"states": [None]}, "states", "one of waiting", "None"),
    ({"state": "waiting"}, "state", "one of the filters queue, name, states", "'state'"),
    ({"queue": 5}, "queue", "a text", "5"),
    ({"name": ["a"]}, "name", "a text", "['a']"),
    ({"tenant": "\ud83d"}, "tenant", "a text", r"'\ud83d'"),
    ({"unique_key": b"k"}, "unique_key", "a text", "b'k'"),
    ({"created_after": NAIVE}, "created_after", "an aware datetime", "datetime.datetime(2030, 1, 1, 0, 0)"),
    ({"due_before": "now"}, "due_before", "an aware datetime", "'now'"),
    ({"finished_before": datetime(1950, 1, 1, tzinfo=UTC)}, "finished_before", "in the years 1970", "1950"),
]


@pytest.mark.parametrize(("filters", "field", "expected", "given"), FILTERS)
async def test_filters(jobs: Client, filters: Any, field: str, expected: str, given: str) -> None:
    enqueued = await jobs.enqueue("send")
    doors: list[Callable[[], Awaitable[Any]]] = [
        lambda: jobs.find(**filters),
        lambda: anext(jobs.find_all(**filters)),
        lambda: jobs.count(**filters),
        lambda: jobs.cancel(**filters),
        lambda: jobs.remove(**filters),
        lambda: jobs.requeue(**filters, spread=5),
        lambda: jobs.reschedule(**filters, delay=5),
        lambda: jobs.reprioritize(**filters, priority=5),
    ]
    for door in doors:
        with pytest.raises(InvalidValue) as caught:
            await door()
        refusal(caught.value, field, expected, given)
    job = await enqueued.job()
    assert (job.state, job.updated_ms) == ("waiting", job.created_ms)


CALLS: list[tuple[str, Callable[[Client], Awaitable[Any]], str, str, str]] = [
    ("find limit", lambda jobs: jobs.find(limit=0), "limit", "a whole number from 1 to 10000", "0"),
    ("find cursor", lambda jobs: jobs.find(cursor="x"), "cursor", "a cursor that a page of this store gave", "'x'"),
    ("logs limit", lambda jobs: jobs.logs("x", limit=0), "limit", "a whole number of at least 1", "0"),
    ("tick limit", lambda jobs: jobs.tick(0), "limit", "a whole number from 1 to 10000", "0"),
    ("timeout", lambda jobs: jobs.result("x", timeout=-1), "timeout", "a duration of at least 0s", "-1"),
    ("spread", lambda jobs: jobs.requeue("x", spread=-1), "spread", "a duration of at least 0s", "-1"),
    ("priority", lambda jobs: jobs.reprioritize("x", priority=-1), "priority", "a whole number from 0", "-1"),
    ("delay", lambda jobs: jobs.reschedule("x", delay=-1), "delay", "a duration of at least 0s", "-1"),
    ("due_at", lambda jobs: jobs.reschedule("x", due_at=NAIVE), "due_at", "an aware datetime", "datetime"),
    ("no time", lambda jobs: jobs.reschedule("x"), "due_at", "delay or due_at", "None"),
    ("both", lambda jobs: jobs.reschedule("x", due_at=LATER, delay=1), "due_at", "either delay or due_at", "datetime"),
    ("events", lambda jobs: anext(jobs.events("a:b")), "queue", 'a name without ":"', "'a:b'"),
    ("every", lambda jobs: anext(jobs.events("q", every=0)), "every", "a duration above 0", "0"),
    ("rate", lambda jobs: jobs.queue("q").rate_limit(0), "count", "a whole number from 1 to", "0"),
    ("rate per", lambda jobs: jobs.queue("q").rate_limit(1, per=0), "per", "a duration above 0", "0"),
    ("running", lambda jobs: jobs.queue("q").running_limit(0), "running_limit", "a whole number from 1 to", "0"),
    ("feed", lambda jobs: jobs.queue("q").feed(events_max_len=0), "events_max_len", "a whole number from 1", "0"),
]


@pytest.mark.parametrize(("call", "field", "expected", "given"), [row[1:] for row in CALLS], ids=[r[0] for r in CALLS])
async def test_other_calls(
    jobs: Client, call: Callable[[Client], Awaitable[Any]], field: str, expected: str, given: str
) -> None:
    with pytest.raises(InvalidValue) as caught:
        await call(jobs)
    refusal(caught.value, field, expected, given)
    assert await jobs.store.settings() == {}


def test_a_queue_has_a_name(jobs: Client) -> None:
    with pytest.raises(InvalidValue, match="queue: expected a name without"):
        jobs.queue("a:b")


async def test_events_of_ones_own(jobs: Client) -> None:
    job = await (await jobs.enqueue("send")).job()
    with pytest.raises(InvalidValue, match="type: expected a text of 1 to 255"):
        await jobs.publish("a b", job)
    with pytest.raises(InvalidValue, match="data.x: expected a finite number, got nan"):
        await jobs.publish("mailed", job, x=float("nan"))


def test_a_given_value_is_shown_on_one_short_line() -> None:
    class Nasty:
        def __repr__(self) -> str:
            raise RuntimeError

    assert str(InvalidValue("x", "y", "z" * 10_000)).endswith("zzz…")
    assert len(str(InvalidValue("x", "y", "z" * 10_000))) < 150
    assert str(InvalidValue("x", "y", Nasty())) == "x: expected y, got <Nasty>"
    assert str(InvalidValue("x", "y", 1, "try z")) == "x: expected y, got 1; try z"
