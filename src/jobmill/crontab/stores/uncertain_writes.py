"""Endings whose write was not answered: it may have been done all the same, and the next one then matches nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from jobmill.core.durations import to_datetime


class Doubts:
    """By id, as something that a set can hold, and fence."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._keys: set[tuple[Any, datetime]] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def has_fence(self, fence: datetime) -> bool:
        """Whether an ending under this lock may come once more."""
        return any(one == fence for _, one in self._keys)

    @contextlib.contextmanager
    def unless_answered(self, keys: Iterable[tuple[Any, datetime | None]]) -> Iterator[None]:
        """Remember these when what is done within fails."""
        try:
            yield
        except Exception:
            now = to_datetime(self._clock())  # nobody comes back to a lock that has ended
            both = (*self._keys, *keys)
            self._keys = {(id, fence) for id, fence in both if fence is not None and fence > now}
            raise

    def settle(self, keys: Iterable[tuple[Any, datetime]]) -> None:
        """It is known what became of these."""
        self._keys.difference_update(keys)
