"""The clock of the store: that of this machine, or the one that was passed in."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from jobmill.core.durations import shown_ms

log = logging.getLogger("jobmill.sqlite")

# Shorter steps back happen when a clock is corrected, and nobody notices them.
MIN_STEP_MS = 5_000


def system_ms() -> int:
    """The time of this machine in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class ForwardClock:
    """Never goes back within this process. If the clock that it reads is set back, it stands still, and warns once."""

    def __init__(self, path: Path, read: Callable[[], int] = system_ms) -> None:
        self._path = path
        self._read = read
        self._last = 0
        self._has_warned = False

    def __call__(self) -> int:
        """The time in milliseconds."""
        now_ms = self._read()
        if now_ms < self._last:
            self.warn_if_behind(self._last)
        else:
            self._last, self._has_warned = now_ms, False
        return self._last

    def warn_if_behind(self, known_ms: int) -> None:
        """Warn if the clock is behind a time that was the present time before."""
        behind_ms = known_ms - self._read()
        if behind_ms >= MIN_STEP_MS and not self._has_warned:
            self._has_warned = True
            log.warning(
                "the clock of this machine was set back: it is %s behind the times in %s; "
                "until it has caught up, due jobs may wait and leases do not end; set the clock right",
                shown_ms(behind_ms),
                self._path,
            )
