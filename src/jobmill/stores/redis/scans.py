"""When to look for running jobs whose lease has ended: every 5 s, and when a lease that we know of may have."""

from __future__ import annotations

SCAN_MS = 5_000


class Scans:
    """What one process knows. Each looks by itself: no key in Redis says who has looked, so no crash can stop it."""

    def __init__(self) -> None:
        # By queue and the names that were asked for: what one claim had to leave may be another's.
        self._next: dict[tuple[str, frozenset[str]], int] = {}
        # When the first lease ends that this process knows of.
        self._ends: dict[str, int] = {}

    def is_due(self, queue: str, names: frozenset[str], now_ms: int) -> bool:
        """Whether to look now."""
        return self._next.get((queue, names), 0) <= now_ms or self._ends.get(queue, now_ms + 1) <= now_ms

    def done(self, queue: str, names: frozenset[str], now_ms: int, next_end_ms: int, left: bool) -> None:
        """It was looked; `left`: there was more than could be taken."""
        if next_end_ms < 0:
            self._ends.pop(queue, None)
        else:
            self._ends[queue] = next_end_ms
        if len(self._next) > 1_000:
            self._next.clear()
        self._next[queue, names] = 0 if left else now_ms + SCAN_MS

    def leased(self, queue: str, until_ms: int, happened: bool) -> None:
        """A lease of ours ends then."""
        if happened:
            self._ends[queue] = min(until_ms, self._ends.get(queue, until_ms))
