"""Chunks: a long list in parts that one call may carry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def chunks(
    items: Sequence[T],
    max_count: int,
    max_bytes: int | None = None,
    size: Callable[[T], int] | None = None,
) -> Iterator[Sequence[T]]:
    """Consecutive parts with at most `max_count` items and at most `max_bytes`; a larger item is a part of its own."""
    first = total = 0
    for index, item in enumerate(items):
        length = 0 if size is None else size(item)
        is_full = index - first >= max_count or (max_bytes is not None and total + length > max_bytes)
        if index > first and is_full:
            yield items[first:index]
            first, total = index, 0
        total += length
    if first < len(items):
        yield items[first:]
