"""When to scan the running jobs of a queue for leases that have ended: every 5 s, and when a known lease ends.

A scan finds the leases of other processes, too, and which of them ends first.
"""

from __future__ import annotations

# Less than the 5 s, or half a lease, after which an idle worker claims: otherwise every second of those claims would
# come too early, and a short lease could end before a scan has seen it.
SCAN_MS = 4_000
SCANS_PER_LEASE = 2.5
MAX_REMEMBERED = 1_000


class LeaseScans:
    """What one process knows. Every process scans: no key in Redis says who did, so no crash can stop the scans."""

    def __init__(self) -> None:
        # The last scan, by queue and the names that were claimed: a job that one claim must leave may be another's.
        self._last: dict[tuple[str, frozenset[str]], int] = {}
        # By queue: the first end of a known lease that is still to come, and the last one that has passed.
        self._first_end: dict[str, int] = {}
        self._ended: dict[str, int] = {}

    def is_due(self, queue: str, names: frozenset[str], lease_ms: int, now_ms: int) -> bool:
        """Whether a claim of jobs with this lease scans now."""
        if self._first_end.get(queue, now_ms + 1) <= now_ms:
            # The scan finds out which lease ends next.
            self._ended[queue] = self._first_end.pop(queue)
        last = self._last.get((queue, names))
        pause_ms = min(SCAN_MS, lease_ms / SCANS_PER_LEASE)
        return last is None or last + pause_ms <= now_ms or self._ended.get(queue, last) > last

    def first_end(self, queue: str) -> int | None:
        """The first end of a lease that is known and still to come."""
        return self._first_end.get(queue)

    def done(self, queue: str, names: frozenset[str], now_ms: int, next_end_ms: int, left: bool) -> None:
        """Note a scan; `left`: it found more jobs than it could take."""
        if self._first_end.get(queue, now_ms + 1) <= now_ms:
            del self._first_end[queue]  # another scan at the same time noted it; this one knows better
        if next_end_ms >= 0:
            self.leased(queue, next_end_ms)
        if len(self._last) > MAX_REMEMBERED:
            self._last.clear()
        if left:
            self._last.pop((queue, names), None)
        else:
            self._last[queue, names] = now_ms

    def leased(self, queue: str, until_ms: int) -> None:
        """Note that a lease ends then."""
        self._first_end[queue] = min(until_ms, self._first_end.get(queue, until_ms))
