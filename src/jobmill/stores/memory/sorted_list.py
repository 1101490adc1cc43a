"""A list in order that stays fast when it is long."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Generic, TypeVar

from msgspec import Struct, field

T = TypeVar("T", bound=tuple[Any, ...])

#: A chunk has at most this number of values.
CHUNK = 1_000
_FIRST = itemgetter(0)

#: Bounds before and after every value.
START: tuple[Any, ...] = ()
END: tuple[Any, ...] = (float("inf"),)


class SortedList(Struct, Generic[T]):
    """Tuples in order, in chunks: to add or remove one moves at most a chunk, however long the list is.

    A bound is the beginning of a tuple. Bounds include their start and exclude their end.
    """

    #: Only the first chunk may be empty, and only if there is no other.
    chunks: list[list[T]] = field(default_factory=lambda: [[]])

    def add(self, value: T) -> None:
        """Add a value, usually at the end."""
        last = self.chunks[-1]
        if (not last or last[-1] < value) and len(last) < CHUNK:
            last.append(value)
        else:
            self._insert(value)

    def _insert(self, value: T) -> None:
        index = self._chunk_of(value)
        chunk = self.chunks[index]
        insort(chunk, value)
        if len(chunk) > CHUNK:
            # What is added at the end leaves full chunks behind it.
            middle = CHUNK if chunk[-1] is value else CHUNK // 2
            self.chunks[index : index + 1] = chunk[:middle], chunk[middle:]

    def remove(self, value: T) -> None:
        """Remove a value that it has."""
        chunk = self.chunks[bisect_right(self.chunks, value, 1, key=_FIRST) - 1]
        del chunk[bisect_left(chunk, value)]
        if not chunk:
            self.chunks = [one for one in self.chunks if one] or [[]]

    def first(self, n: int) -> list[T]:
        """The first `n` values."""
        return list(islice(chain.from_iterable(self.chunks), n))

    def count(self, low: tuple[Any, ...] = START, high: tuple[Any, ...] = END) -> int:
        """How many values are within the bounds."""
        return max(0, self._rank(high) - self._rank(low))

    def between(
        self, low: tuple[Any, ...] = START, high: tuple[Any, ...] = END, *, descending: bool = False
    ) -> Iterator[T]:
        """The values within the bounds, in order."""
        first, last = self._chunk_of(low), self._chunk_of(high)
        indexes = range(first, last + 1)
        for index in reversed(indexes) if descending else indexes:
            chunk = self.chunks[index]
            start = bisect_left(chunk, low) if index == first else 0
            stop = bisect_left(chunk, high) if index == last else len(chunk)
            part = chunk[start:stop]
            yield from reversed(part) if descending else part

    def _rank(self, bound: tuple[Any, ...]) -> int:
        """How many values are before a bound."""
        index = self._chunk_of(bound)
        return sum(map(len, self.chunks[:index])) + bisect_left(self.chunks[index], bound)

    def _chunk_of(self, value: tuple[Any, ...]) -> int:
        """The chunk that has a value, or would have it."""
        return bisect_right(self.chunks, value, 1, key=_FIRST) - 1
