"""In the child: clocks, what they come to, and whether a database holds a live job."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct, field

from bench.child import BEGUN, SETTLED, halt

#: The longest that a drain may take; the slowest peer needs half a minute.
PATIENCE_S = 120.0
#: Between two looks at the database, once the last handler has run.
LOOK_S = 0.001
#: Several processes that share their jobs: between two looks at the number of handlers that have run here, and how long
#: it stays the same until a process looks at the database. Four that looked every millisecond while handlers ran took a
#: fifth of all CPU time of a drain on MongoDB.
GLANCE_S, QUIET_S = 0.01, 0.5


class Ran(Struct, frozen=True, kw_only=True):
    """What one run came to: number of jobs, wall time, and CPU of its process, all threads."""

    jobs: int
    seconds: float
    cpu_seconds: float


class Pickups(Struct):
    """Nanoseconds since 1970, of one job after the other; all processes of a machine have the same clock."""

    called: list[int] = field(default_factory=list)
    returned: list[int] = field(default_factory=list)


class Crowd(Struct, frozen=True, kw_only=True):
    """Jobs of one queue: how many wait, run, and are final."""

    queue: str
    waiting: int = 0
    running: int = 0
    final: int = 0


class Looked(Struct, frozen=True, kw_only=True):
    """How many milliseconds each call of an operation took, and each bare query of the driver; and the child's CPU."""

    took: dict[str, list[float]]
    bare: list[float]
    cpu_seconds: float


class Stopwatch:
    """Starts when it is made."""

    def __init__(self) -> None:
        self._cpu, self._began = time.process_time(), time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self._began

    def ran(self, jobs: int) -> Ran:
        """What these jobs took until now."""
        return Ran(jobs=jobs, seconds=self.seconds, cpu_seconds=time.process_time() - self._cpu)


@contextmanager
def metering() -> Iterator[Stopwatch]:
    """A stopwatch; the parent reads what the server has spent before and after the block."""
    halt(BEGUN)
    yield Stopwatch()
    halt(SETTLED)


class Draining:
    """The clock of a drain: from the first handler until the database holds no live job.

    Every handler calls `run`. Without `is_left` the clock stops in the last handler: for runs that leave jobs waiting.
    Without a number of jobs, several processes share them, and the clock stops in the last handler of each.
    """

    def __init__(self, is_left: Callable[[], bool] | None, jobs: int) -> None:
        self._is_left = is_left
        self._jobs = jobs
        self._ran = 0
        self._lock = threading.Lock()
        self._all_ran = threading.Event()
        self._watch: Stopwatch | None = None
        self._last: Ran | None = None
        if is_left is not None:
            is_left()  # opens the connection

    def run(self, _: int = 0) -> None:
        """One more handler runs. While the parent reads the server's counters, the others wait."""
        with self._lock:
            self._ran += 1
            if self._watch is None:
                halt(BEGUN)
                self._watch = Stopwatch()
            if self._ran == self._jobs:
                self._last = self._watch.ran(self._jobs)
                self._all_ran.set()

    def settled(self) -> Ran:
        """Wait until all have run, and until the database holds none; what that took."""
        until = time.monotonic() + PATIENCE_S
        in_time = self._all_ran.wait(PATIENCE_S) if self._jobs else True
        while in_time and self._is_left is not None and self._is_left():
            time.sleep(LOOK_S) if self._jobs else self._wait_for_quiet(until)
            in_time = time.monotonic() < until
        if not in_time or self._watch is None:
            raise TimeoutError(f"{self._ran} of {self._jobs} jobs ran within {PATIENCE_S:.0f} s")
        stops_in_handler = self._is_left is None or not self._jobs
        ran = self._last if stops_in_handler and self._last is not None else self._watch.ran(self._jobs)
        halt(SETTLED)
        return ran

    def _wait_for_quiet(self, until: float) -> None:
        """Wait until this process has run no handler for a while; note when the last one ran."""
        quiet_from = time.monotonic()
        while (now := time.monotonic()) < min(until, quiet_from + QUIET_S):
            if self._watch is not None and (self._last is None or self._ran > self._last.jobs):
                quiet_from, self._last = now, self._watch.ran(self._ran)
            time.sleep(GLANCE_S)


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


def looking(url: str, left: Any) -> Callable[[], bool] | None:
    """A function that tells whether the database at the URL holds a live job.

    `left` is a query for PostgreSQL and SQLite; commands that return lengths for Redis; for MongoDB a collection, and
    filters by the index that serves them.
    """
    if left is None:
        return None
    if url.startswith("postgresql:"):
        return _on_postgres(url, left)
    if url.startswith("redis:"):
        count = _on_redis(url, left)
        return lambda: count() > 0
    return _on_mongo(url, left) if url.startswith("mongodb:") else _on_sqlite(url, left)


def _on_postgres(url: str, left: str) -> Callable[[], bool]:
    import psycopg

    connection = psycopg.connect(url, autocommit=True)
    return lambda: bool(connection.execute(left).fetchone()[0])  # type: ignore[index]


def emptied(url: str, left: Any, jobs: int) -> Ran:
    """Wait until Redis holds none of these jobs. The clock starts when a fifth is done: then all processes run."""
    count = _on_redis(url, left)
    until = time.monotonic() + PATIENCE_S
    watch, begun_with = Stopwatch(), 0
    while (live := count()) > 0:
        if not begun_with and live <= jobs * 0.8:
            watch, begun_with = Stopwatch(), live
        if time.monotonic() > until:
            raise TimeoutError(f"{live} of {jobs} jobs were left after {PATIENCE_S:.0f} s")
        time.sleep(LOOK_S)
    return watch.ran(begun_with)


def _on_redis(url: str, left: tuple[tuple[str, ...], ...]) -> Callable[[], int]:
    from redis import Redis

    connection: Any = Redis.from_url(url.partition("?")[0])

    def count() -> int:
        pipeline = connection.pipeline(transaction=True)
        for command in left:
            pipeline.execute_command(*command)
        return sum(answer["pending"] if isinstance(answer, dict) else answer for answer in pipeline.execute())

    return count


def _on_mongo(url: str, left: tuple[str, dict[str, dict[str, Any]]]) -> Callable[[], bool]:
    from pymongo import MongoClient

    collection, filters = left
    client: MongoClient[dict[str, Any]] = MongoClient(url.partition("?")[0] + "?directConnection=true")
    found = client.get_default_database()[collection]
    return lambda: any(found.find_one(query, {"_id": 1}, hint=index or None) for index, query in filters.items())


def _on_sqlite(url: str, left: str) -> Callable[[], bool]:
    path = url.removeprefix("sqlite:///").partition("?")[0]
    connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    return lambda: bool(connection.execute(left).fetchone()[0])
