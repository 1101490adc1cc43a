"""When to look for running jobs whose lease has ended: every 5 s, and when a lease that we know of has."""

from __future__ import annotations

# Less than the 5 s after which an idle worker looks: else every second of its looks would come a moment too early.
SCAN_MS = 4_000


class Scans:
    """What one process knows. Each looks by itself: no key in Redis says who has looked, so no crash can stop it."""

    def __init__(self) -> None:
        # When it was last looked, by queue and the names asked for: what one claim must leave may be another's.
        self._last: dict[tuple[str, frozenset[str]], int] = {}
        # By queue: when the first of the leases ends that are known, and the last time that one did.
        self._first_end: dict[str, int] = {}
        self._ended: dict[str, int] = {}

    def is_due(self, queue: str, names: frozenset[str], now_ms: int) -> bool:
        """Whether to look now."""
        end = self._first_end.get(queue)
        if end is not None and end <= now_ms:
            # Whoever looks next learns of the lease that ends after it.
            self._ended[queue] = self._first_end.pop(queue)
        last = self._last.get((queue, names))
        return last is None or last + SCAN_MS <= now_ms or self._ended.get(queue, last) > last

    def done(self, queue: str, names: frozenset[str], now_ms: int, next_end_ms: int, left: bool) -> None:
        """It was looked; `left`: there was more than could be taken."""
        self.leased(queue, next_end_ms, next_end_ms >= 0)
        if len(self._last) > 1_000:
            self._last.clear()
        if left:
            self._last.pop((queue, names), None)
        else:
            self._last[queue, names] = now_ms

    def leased(self, queue: str, until_ms: int, happened: bool) -> None:
        """A lease ends then."""
        if happened:
            self._first_end[queue] = min(until_ms, self._first_end.get(queue, until_ms))
