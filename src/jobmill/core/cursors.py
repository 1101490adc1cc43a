"""Cursors: the position of a page of jobs, and of a reader of a feed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from jobmill.errors import InvalidValue

T = TypeVar("T")

#: Where a job is in an order: several numbers, of which the last one is unique.
Position: TypeAlias = tuple[int, ...]

MAX_NUMBER = 2**63 - 1


def split_cursor(cursor: str | None) -> tuple[bool, str | None]:
    """Whether a page continues to newer jobs, and the job after which it begins; None begins at the newest."""
    if cursor is None:
        return False, None
    if cursor[:1] not in ("<", ">") or len(cursor) < 2 or "\x00" in cursor:
        raise InvalidValue("cursor", "a cursor that a page of this store gave", cursor)
    return cursor[0] == ">", cursor[1:]


def leads_back(cursor: str | None) -> bool:
    """Whether this is the cursor of the page before another one."""
    return cursor is not None and cursor.startswith(">")


def read_cursor(cursor: str | None) -> tuple[bool, int | None]:
    """The same where jobs have numbers."""
    newer, position = split_cursor(cursor)
    if cursor is None or position is None:
        return newer, None
    return newer, read_position(position, "cursor", cursor)


def read_ordered_cursor(cursor: str | None) -> tuple[bool, tuple[int, ...] | None]:
    """The same where the position of a job is several numbers, as `shown_position` writes them."""
    back, text = split_cursor(cursor)
    if text is None:
        return back, None
    numbers = text.split(",")
    if not all(re.fullmatch(r"-?[0-9]{1,18}", number, re.ASCII) for number in numbers):
        raise InvalidValue("cursor", "a cursor that a page of this store gave", cursor)
    return back, tuple(map(int, numbers))


def shown_position(position: tuple[int, ...]) -> str:
    """A position of several numbers in a cursor."""
    return ",".join(map(str, position))


def cut_page(
    found: Sequence[T], limit: int, cursor: str | None, key: Callable[[T], object]
) -> tuple[list[T], str | None, str | None]:
    """A page of what was found beyond a cursor, newest first, and the cursors of the pages after and before it.

    A store looks for one more than `limit`, which shows whether the page is the last one in its direction.
    """
    goes_back = cursor is not None and cursor[0] == ">"
    part, more = list(found[:limit]), len(found) > limit
    if not part:
        return part, None, None
    if goes_back:
        part.reverse()
    has_older, has_newer = (True, more) if goes_back else (more, cursor is not None)
    return part, f"<{key(part[-1])}" if has_older else None, f">{key(part[0])}" if has_newer else None


def cut_search(
    found: Sequence[Position], limit: int, cursor: str | None, reached: Position | None, *, descending: bool
) -> tuple[list[Position], str | None, str | None]:
    """The same for positions of several numbers, where a search may have ended early: at the position `reached`.

    `descending` is the order in which they were found.
    """
    part, next, previous = cut_page(found, limit, cursor, shown_position)
    back, start = read_ordered_cursor(cursor)
    if not part and start is not None:
        # The page beside an empty page includes the position of the cursor.
        beside = shown_position((*start[:-1], start[-1] + (-1 if descending else 1)))
        next, previous = (f"<{beside}", None) if back else (None, f">{beside}")
    if reached is not None and len(found) <= limit:
        next, previous = (next, f">{shown_position(reached)}") if back else (f"<{shown_position(reached)}", previous)
    return part, next, previous


def older_than(number: int) -> str:
    """The cursor of the page after the job with this number."""
    return f"<{number}"


def newer_than(number: int) -> str:
    """The cursor of the page before the job with this number."""
    return f">{number}"


def read_position(text: str, field: str, given: str) -> int:
    """A number that this store returned as text."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1
    if not 0 <= number <= MAX_NUMBER:
        raise InvalidValue(field, f"a {field} that this store gave", given)
    return number
