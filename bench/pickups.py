"""The times of single enqueues and of the starts of their jobs, and the gaps between them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from msgspec import Struct, field

#: Long enough for a worker to fall asleep again, in seconds.
SHORTEST_GAP, LONGEST_GAP = 0.01, 0.05


class Pickups(Struct):
    """Nanoseconds since 1970, of one job after the other; all processes of a machine have the same clock."""

    called: list[int] = field(default_factory=list)
    returned: list[int] = field(default_factory=list)
    started: list[int] = field(default_factory=list)

    def latencies_ms(self, since: list[int]) -> list[float]:
        """From each of these instants to the start of its job; one that starts before its caller goes on is below 0."""
        if 0 in self.started or len(self.started) != len(since):
            raise ValueError(f"only {sum(map(bool, self.started))} of {len(since)} jobs were started in time")
        return [(start - instant) / 1e6 for start, instant in zip(self.started, since, strict=True)]


def gaps(random: Random, count: int) -> Iterator[float]:
    """How long to wait before each enqueue."""
    return (random.uniform(SHORTEST_GAP, LONGEST_GAP) for _ in range(count))
