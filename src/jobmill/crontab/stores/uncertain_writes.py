"""Uncertain writes: endings whose write raised an error, but may have been done. Then a retry matches no document."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from jobmill.core.durations import to_datetime


class UncertainWrites:
    """A set of uncertain writes, by hashable id and fence."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._keys: set[tuple[Any, datetime]] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def has_fence(self, fence: datetime) -> bool:
        """Whether an ending with this fence may be retried."""
        return any(one == fence for _, one in self._keys)

    @contextlib.contextmanager
    def remember_on_error(self, keys: Iterable[tuple[Any, datetime | None]]) -> Iterator[None]:
        """Remember these writes if the body raises."""
        try:
            yield
        except Exception:
            now = to_datetime(self._clock())  # an ending is not retried after its lock has ended
            both = (*self._keys, *keys)
            self._keys = {(id, fence) for id, fence in both if fence is not None and fence > now}
            raise

    def resolve(self, keys: Iterable[tuple[Any, datetime]]) -> None:
        """The result of these writes is known."""
        self._keys.difference_update(keys)
