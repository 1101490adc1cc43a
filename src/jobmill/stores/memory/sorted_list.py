"""A list in order that stays fast when it is long."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound=tuple[Any, ...])

#: A chunk with more values than this is divided.
CHUNK = 1_000
_FIRST = itemgetter(0)

#: Bounds before and after every value.
START: tuple[Any, ...] = ()
END: tuple[Any, ...] = (float("inf"),)


class SortedList(Generic[T]):
    """Tuples in order, in chunks: to add or remove one moves at most a chunk, however long the list is.

    A bound is the beginning of a tuple. It includes its start and excludes its end.
    """

    __slots__ = ("_chunks",)

    def __init__(self, values: Sequence[T] = ()) -> None:
        self._chunks: list[list[T]] = [sorted(values)] if values else []

    def __bool__(self) -> bool:
        """Whether it has a value."""
        return bool(self._chunks)

    def add(self, value: T) -> None:
        """Add a value, usually at the end."""
        chunks = self._chunks
        if not chunks or (value > chunks[-1][-1] and len(chunks[-1]) >= CHUNK):
            chunks.append([value])
        elif value > chunks[-1][-1]:
            chunks[-1].append(value)
        else:
            index = self._chunk_of(value)
            chunk = chunks[index]
            insort(chunk, value)
            if len(chunk) > CHUNK:
                chunks.insert(index + 1, chunk[CHUNK // 2 :])
                del chunk[CHUNK // 2 :]

    def remove(self, value: T) -> None:
        """Remove a value that it has."""
        index = self._chunk_of(value)
        chunk = self._chunks[index]
        del chunk[bisect_left(chunk, value)]
        if not chunk:
            del self._chunks[index]

    def first(self, n: int) -> list[T]:
        """The first `n` values."""
        found: list[T] = []
        for chunk in self._chunks:
            found += chunk[: n - len(found)]
            if len(found) >= n:
                break
        return found

    def count(self, low: tuple[Any, ...] = START, high: tuple[Any, ...] = END) -> int:
        """How many values are within the bounds."""
        return max(0, self._rank(high) - self._rank(low))

    def between(
        self, low: tuple[Any, ...] = START, high: tuple[Any, ...] = END, *, descending: bool = False
    ) -> Iterator[T]:
        """The values within the bounds, in order."""
        first, last = self._chunk_of(low), self._chunk_of(high)
        indexes = range(first, min(last + 1, len(self._chunks)))
        for index in reversed(indexes) if descending else indexes:
            chunk = self._chunks[index]
            start = bisect_left(chunk, low) if index == first else 0
            stop = bisect_left(chunk, high) if index == last else len(chunk)
            part = chunk[start:stop]
            yield from reversed(part) if descending else part

    def _rank(self, bound: tuple[Any, ...]) -> int:
        """How many values are before a bound."""
        if not self._chunks:
            return 0
        index = self._chunk_of(bound)
        return sum(map(len, self._chunks[:index])) + bisect_left(self._chunks[index], bound)

    def _chunk_of(self, value: tuple[Any, ...]) -> int:
        """The chunk that has a value, or would have it."""
        return max(0, bisect_right(self._chunks, value, key=_FIRST) - 1)
