"""Time and CPU of this process, from one moment on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.child import BEGUN, SETTLED, halt
from bench.figures import Ran


class Stopwatch:
    """Starts when it is made."""

    def __init__(self) -> None:
        self._cpu = time.process_time()
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return time.perf_counter() - self._began

    def ran(self, jobs: int) -> Ran:
        """What so many jobs took until now."""
        seconds = self.seconds
        return Ran(jobs=jobs, seconds=seconds, cpu_seconds=time.process_time() - self._cpu)


@contextmanager
def metering() -> Iterator[Stopwatch]:
    """A stopwatch for a block whose beginning and end the parent may wait for, to look at a server."""
    halt(BEGUN)
    yield Stopwatch()
    halt(SETTLED)
