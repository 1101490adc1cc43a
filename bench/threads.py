"""In the child, for peers whose handlers and callers are threads: the clock of a drain, callers, starts, pickups."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from bench.child import BEGUN, SETTLED, halt
from bench.draining import LOOK_S, PATIENCE_S
from bench.figures import Ran
from bench.pickups import Pickups, gaps
from bench.stopwatch import Stopwatch, metering

T = TypeVar("T")


class Draining:
    """As `bench.draining`: every handler calls `run`; `is_left` asks the server whether any job is still live."""

    def __init__(self, is_left: Callable[[], bool], jobs: int) -> None:
        self._is_left = is_left
        self._jobs = jobs
        self._ran = 0
        self._watch: Stopwatch | None = None
        self._all_ran = threading.Event()
        self._lock = threading.Lock()
        is_left()  # so that it is connected

    def run(self) -> None:
        """One more handler runs. While the parent looks at the server, the others wait."""
        with self._lock:
            self._ran += 1
            if self._ran == 1:
                halt(BEGUN)
                self._watch = Stopwatch()
        if self._ran == self._jobs:
            self._all_ran.set()

    def settled(self) -> Ran:
        """What it took until all had run, and until the server said that none was left."""
        until = time.monotonic() + PATIENCE_S
        is_over = self._all_ran.wait(PATIENCE_S)
        while is_over and self._is_left() and (is_over := time.monotonic() < until):
            time.sleep(LOOK_S)
        if not is_over:
            raise TimeoutError(f"{self._ran} of {self._jobs} jobs ran within {PATIENCE_S} s")
        assert self._watch is not None
        ran = self._watch.ran(self._jobs)
        halt(SETTLED)
        return ran


class Starts:
    """When each job of a worker started, by its number."""

    def __init__(self, jobs: int) -> None:
        self.at = [0] * jobs
        self._left = jobs
        self._lock = threading.Lock()
        self._all = threading.Event()

    def start(self, number: int) -> None:
        """This one starts now."""
        self.at[number] = time.time_ns()
        with self._lock:
            self._left -= 1
        if not self._left:
            self._all.set()

    def wait(self, seconds: float) -> list[int]:
        """Until all have started, or the time is over."""
        self._all.wait(seconds)
        return self.at


def one_by_one(enqueue: Callable[[], object], callers: int, jobs: int, seconds: float) -> Ran:
    """So many callers, each in a thread, enqueue one job a call, until all are enqueued or the time is over."""
    begun = 0
    lock = threading.Lock()

    def call(watch: Stopwatch) -> None:
        nonlocal begun
        while watch.seconds < seconds:
            with lock:
                if begun >= jobs:
                    return
                begun += 1
            enqueue()

    enqueue()  # so that it is connected
    with ThreadPoolExecutor(callers) as pool, metering() as watch:
        for one in [pool.submit(call, watch) for _ in range(callers)]:
            one.result()
        return watch.ran(begun)


def bulk(enqueue: Callable[[], object], size: int, jobs: int, seconds: float) -> Ran:
    """One caller enqueues so many jobs with each call."""
    done = 0
    enqueue()  # so that it is connected
    with metering() as watch:
        while done < jobs and watch.seconds < seconds:
            enqueue()
            done += size
        return watch.ran(done)


def one_after_the_other(enqueue: Callable[[int], object], jobs: int, seed: int) -> Pickups:
    """Enqueue jobs by number, with gaps; says when each enqueue was called, and when it returned."""
    told = Pickups()
    for number, gap in enumerate(gaps(random.Random(seed), jobs)):
        time.sleep(gap)
        told.called.append(time.time_ns())
        enqueue(number)
        told.returned.append(time.time_ns())
    return told


def fill(enqueue: Callable[[], object], jobs: int) -> None:
    """So many calls, from a few threads: a peer without a bulk call is filled sooner."""
    with ThreadPoolExecutor(4) as pool:
        for one in [pool.submit(enqueue) for _ in range(jobs)]:
            one.result()


def until(answer: Callable[[], T], work: Callable[[], object]) -> T:
    """Work in the main thread, where a worker handles signals, until the answer is there; then it is told to stop."""
    future: Future[T] = Future()

    def wait() -> None:
        try:
            future.set_result(answer())
        except BaseException as error:
            future.set_exception(error)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
    with contextlib.suppress(SystemExit):  # how some workers stop
        work()
    return future.result()
