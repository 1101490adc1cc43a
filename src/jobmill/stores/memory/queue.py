"""What the memory store knows of one queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec import structs

from jobmill.core.events import Event
from jobmill.core.values import QueueSettings


class QueueRecord:
    """What is set for a queue, its feed, and the window of its rate limit."""

    def __init__(self) -> None:
        self.settings = QueueSettings()
        self.feed: deque[Event] = deque()
        self.window_ends_ms = 0
        self.window_used = 0

    def room(self, running: int, now_ms: int) -> int | None:
        """How many jobs may be claimed now; None: any number."""
        if self.settings.paused:
            return 0
        room = None
        if self.settings.running_limit is not None:
            room = max(0, self.settings.running_limit - running)
        if (rate := self.settings.rate_limit) is not None:
            left = rate.count if now_ms >= self.window_ends_ms else max(0, rate.count - self.window_used)
            room = left if room is None else min(room, left)
        return room

    def use(self, claims: int, now_ms: int) -> None:
        """Count claims against the rate limit; the first one after a window opens the next."""
        if self.settings.rate_limit is None or not claims:
            return
        if now_ms >= self.window_ends_ms:
            self.window_ends_ms = now_ms + self.settings.rate_limit.per_ms
            self.window_used = 0
        self.window_used += claims

    def tell(self, events: Sequence[Event], first_id: int) -> None:
        """Add to the feed, where it is on, and keep its last events."""
        if self.settings.feed:
            self.feed.extend(structs.replace(event, id=str(first_id + n)) for n, event in enumerate(events))
            while len(self.feed) > self.settings.events_max_len:
                self.feed.popleft()
