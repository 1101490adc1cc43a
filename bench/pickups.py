"""The times of single enqueues and of the starts of their jobs, and the gaps between them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Iterator
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


class Starts:
    """When each job of a worker started, by its number."""

    def __init__(self, jobs: int) -> None:
        self.at = [0] * jobs
        self._left = jobs
        self._all = asyncio.Event()

    def start(self, number: int) -> None:
        """This one starts now."""
        self.at[number] = time.time_ns()
        self._left -= 1
        if not self._left:
            self._all.set()

    async def wait(self, seconds: float) -> None:
        """Until all have started, or the time is over."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all.wait(), seconds)


def gaps(random: Random, count: int) -> Iterator[float]:
    """How long to wait before each enqueue."""
    return (random.uniform(SHORTEST_GAP, LONGEST_GAP) for _ in range(count))


async def one_after_the_other(enqueue: Callable[[int], Awaitable[object]], jobs: int, seed: int) -> Pickups:
    """Enqueue jobs by number, with gaps; says when each enqueue was called, and when it returned."""
    told = Pickups()
    for number, gap in enumerate(gaps(random.Random(seed), jobs)):
        await asyncio.sleep(gap)
        told.called.append(time.time_ns())
        await enqueue(number)
        told.returned.append(time.time_ns())
    return told
