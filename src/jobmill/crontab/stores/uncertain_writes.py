"""Uncertain writes: their call raised an error, but they may have been done. Then a retry matches no document."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from jobmill.core.durations import to_datetime
from jobmill.crontab.stores.base import Write


class UncertainWrites:
    """A set of uncertain writes, by id and fence."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._keys: set[tuple[str, datetime | None]] = set()

    def __contains__(self, write: Write) -> bool:
        return _key(write) in self._keys

    def has_fence(self, fence: datetime) -> bool:
        """Whether an ending with this fence may be retried."""
        return any(one == fence for _, one in self._keys)

    @contextlib.contextmanager
    def remember_on_error(self, writes: Iterable[Write]) -> Iterator[None]:
        """Remember these writes if the body raises. Otherwise forget them, because their result is known."""
        keys = set(map(_key, writes))
        try:
            yield
        except Exception:
            now = to_datetime(self._clock())  # an ending is not retried after its lock has ended
            self._keys = {(id, fence) for id, fence in self._keys | keys if fence is not None and fence > now}
            raise
        self._keys -= keys


def _key(write: Write) -> tuple[str, datetime | None]:
    return repr(write.id), write.locked_until  # not every id is hashable
