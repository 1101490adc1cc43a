"""Limits for names, queues, ids, keys and numbers. Every store can store values within these limits."""

from __future__ import annotations

import re
import warnings
from datetime import timedelta

from jobmill.core.durations import to_ms
from jobmill.core.job import STATES, Keep, State
from jobmill.errors import InvalidValue

MAX_NAME = 255
MAX_KEY = 1_024
MAX_PRIORITY = 2_097_151
#: For a job that is retried without an end: nothing shows it as a limit.
MAX_ATTEMPTS = 2**31 - 1
KEEP_LAST_WARNED = 10_000
MAX_LINE_BYTES = 64 * 1024
MAX_HEADERS_BYTES = 4 * 1024

# White space as in JavaScript's \s, and all control characters: Monque refuses both.
_BLANK_OR_CONTROL = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_name(name: object, field: str = "name") -> str:
    """The name of a handler."""
    return _text(name, field, MAX_NAME, _BLANK_OR_CONTROL, "white space or control characters")


def check_queue(queue: object) -> str:
    """The name of a queue: without ":", which separates the parts of a Redis key."""
    text = check_name(queue, "queue")
    if ":" in text:
        raise InvalidValue("queue", 'a name without ":"', queue)
    return text


def check_id(id: object) -> str:
    """An id that the caller chose."""
    text = _text(id, "id", MAX_NAME, _CONTROL, "control characters")
    if ":" in text:
        raise InvalidValue("id", 'an id without ":"', id)
    if text.isascii() and text.isdigit():
        raise InvalidValue(
            "id", "an id that is not all digits", id, "BullMQ numbers its own jobs: put a word before the digits"
        )
    return text


def check_known_id(id: object, field: str = "id", expected: str = "the id of a job") -> str:
    """An id to find a job by: any text that a store could have returned."""
    if not isinstance(id, str) or storable(id) != id:
        raise InvalidValue(field, expected, id)
    return id


def check_unique_key(key: object, field: str = "unique_key") -> str:
    """A key that at most one live job of its queue and name has."""
    return _text(key, field, MAX_KEY, _CONTROL, "control characters")


def check_tenant(tenant: object, field: str = "tenant") -> str:
    """The tenant that a job belongs to."""
    return _text(tenant, field, MAX_NAME, _CONTROL, "control characters")


def check_lane(lane: object, field: str = "lane") -> str:
    """The lane of a job: a key, such as that of a customer."""
    if lane is not None and not isinstance(lane, str):
        raise InvalidValue(field, _expected(MAX_NAME, "control characters"), lane, "str() makes a text of an id")
    return _text(lane, field, MAX_NAME, _CONTROL, "control characters")


def check_note(note: object, field: str = "note") -> str:
    """What a person writes about an act, or the person's name."""
    return _text(note, field, MAX_KEY, _CONTROL, "control characters")


def check_headers(headers: object, field: str = "headers") -> dict[str, str]:
    """Texts by name, of at most 4 KiB together."""
    expected = f"a dict of texts by name, at most {MAX_HEADERS_BYTES} bytes together"
    if not isinstance(headers, dict):
        raise InvalidValue(field, expected, headers)
    for name, value in headers.items():
        if (
            not isinstance(name, str)
            or not isinstance(value, str)
            or not name
            or storable(name + value) != name + value
        ):
            raise InvalidValue(f"{field}[{name!r}]", "a name and a text of UTF-8 without NUL", value)
    size = sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())
    if size > MAX_HEADERS_BYTES:
        raise InvalidValue(field, expected, f"{size} bytes")
    return dict(headers)


def check_priority(priority: object) -> int:
    """A priority: 0 runs first, larger numbers wait longer."""
    return check_int(priority, "priority", 0, MAX_PRIORITY)


def check_int(value: object, field: str, least: int, most: int | None = None) -> int:
    """A whole number within its bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidValue(field, f"a whole number {bounds}", value)
    return value


def check_bool(value: object, field: str) -> bool:
    """True or False; other values that count as true are refused."""
    if not isinstance(value, bool):
        raise InvalidValue(field, "True or False", value)
    return value


def check_state(state: object) -> State:
    """One of the five states."""
    for known in STATES:
        if state == known:
            return known
    raise InvalidValue("states", "one of " + ", ".join(STATES), state)


def check_progress(value: object) -> float:
    """Progress in percent."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        raise InvalidValue("progress", "a number from 0 to 100", value)
    return value


def keep(value: bool | int | str | timedelta | Keep, field: str) -> Keep:
    """How long final jobs are kept.

    True: for ever. False or 0: not at all. A number n: the last n jobs. A duration ("7d", a timedelta): up to that age.
    """
    if isinstance(value, Keep):
        for part in (value.last, value.age_ms):
            if part is not None:
                check_int(part, field, 0)
        return value
    if isinstance(value, bool):
        return Keep() if value else Keep(last=0)
    if isinstance(value, int):
        if value < 0:
            raise InvalidValue(field, "True, False, how many to keep (0 or more), or an age", value)
        if value > KEEP_LAST_WARNED:
            warnings.warn(
                f"{field}={value}: keeping the last {value} jobs makes each purge count them; an age is cheaper",
                stacklevel=2,
            )
        return Keep(last=value)
    if isinstance(value, str | timedelta):
        return Keep(age_ms=to_ms(value, field))
    raise InvalidValue(field, 'True, False, how many to keep (0 or more), or an age such as "7d"', value)


def storable(text: str) -> str:
    """Replace what a store cannot hold in a text that was not validated (an error, a log line): UTF-8, without NUL."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


def log_line(text: str) -> str:
    """A line of a job's log, cut to 64 KiB of UTF-8."""
    line = storable(text)
    if len(line) * 4 <= MAX_LINE_BYTES or len(encoded := line.encode()) <= MAX_LINE_BYTES:
        return line
    return encoded[: MAX_LINE_BYTES - len("…".encode())].decode(errors="ignore") + "…"


def _expected(most: int, never_text: str) -> str:
    return f"a text of 1 to {most} characters without {never_text}"


def _text(value: object, field: str, most: int, never: re.Pattern[str], never_text: str) -> str:
    expected = _expected(most, never_text)
    if not isinstance(value, str) or not value.strip():
        is_blank = isinstance(value, str) and value != ""
        raise InvalidValue(field, expected, value, "it has only white space" if is_blank else "")
    try:
        # JavaScript, which shares some stores, counts UTF-16 units. No store can hold a lone surrogate.
        units = len(value.encode("utf-16-le")) // 2
    except UnicodeEncodeError:
        raise InvalidValue(field, "a text without lone surrogates", value) from None
    if units > most:
        counted = "; characters such as emoji count as two" if units > len(value) else ""
        raise InvalidValue(field, expected, value, f"it has {units:,}{counted}")
    if never.search(value):
        raise InvalidValue(field, expected, value)
    return value


def shown_limit(max_attempts: int | None) -> int | None:
    """The limit of attempts to show; None where it means no limit."""
    return None if max_attempts == MAX_ATTEMPTS else max_attempts
