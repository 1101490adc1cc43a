"""The peer on SQLite: huey's SqliteHuey with thread workers, by its docs what to take for one process."""

from __future__ import annotations

import itertools
import random
import threading
import time
from typing import Any

from bench.busy import Beside, Spell
from bench.child import ready
from bench.figures import Ran
from bench.peers.about import About
from bench.pickups import Pickups, gaps
from bench.stopwatch import Stopwatch

ABOUT = About(
    name="huey",
    package="huey",
    settings="SqliteHuey in WAL mode with fsync=True (synchronous=FULL), nothing stored for None, consumer with thread "
    "workers (several numbers of them, the best one counts), no periodic tasks, logging at WARNING, other defaults",
    guarantee="lost: a task is deleted before it runs",
)


def _huey(path: str, fsync: bool = True) -> Any:
    from huey import SqliteHuey

    return SqliteHuey("bench", filename=path, fsync=fsync)


class _Consumer:
    """huey's consumer, in this process; leaving the block stops it."""

    def __init__(self, huey: Any, workers: int) -> None:
        self._consumer = huey.create_consumer(workers=workers, worker_type="thread", periodic=False)

    def __enter__(self) -> None:
        self._consumer.start()

    def __exit__(self, *_: object) -> None:
        self._consumer.stop(graceful=True)


def fill(path: str, jobs: int, busy: bool = False) -> None:
    """So many waiting tasks, in one transaction, as its own `enqueue` writes them; it has no way to enqueue many."""
    huey = _huey(path, fsync=False)
    noop = huey.task(name="noop")(lambda: None)
    first = [huey.task(name="busy")(lambda: None).s()] if busy else []
    with huey.storage.db(commit=True) as cursor:
        for task in itertools.chain(first, (noop.s() for _ in range(jobs))):
            cursor.execute(
                "insert into task (queue, data, priority) values (?, ?, ?)",
                (huey.storage.name, huey.serialize_task(task), 0),
            )
    huey.storage.close()


def drain(path: str, workers: int, jobs: int, seconds: float) -> Ran:
    """One consumer runs so many no-op tasks; the clock stops in the last one."""
    huey = _huey(path)
    count = itertools.count(1)
    enough = threading.Event()
    ran = 0

    @huey.task(name="noop")  # type: ignore[untyped-decorator]
    def noop() -> None:
        nonlocal ran
        ran = next(count)
        if ran == jobs:
            enough.set()

    watch = Stopwatch()
    with _Consumer(huey, workers):
        enough.wait(seconds)
        return watch.ran(min(ran, jobs))


def enqueue(path: str, jobs: int, seconds: float) -> Ran:
    """One after the other."""
    huey = _huey(path)
    noop = huey.task(name="noop")(lambda: None)
    watch = Stopwatch()
    done = 0
    while done < jobs and watch.seconds < seconds:
        noop()
        done += 1
    return watch.ran(done)


def pickup_work(path: str, workers: int, jobs: int, seconds: float) -> list[int]:
    """The consumer's side: says that it is ready, and when it started each task."""
    huey = _huey(path)
    started = [0] * jobs
    count = itertools.count(1)
    all_started = threading.Event()

    @huey.task(name="pick")  # type: ignore[untyped-decorator]
    def pick(number: int) -> None:
        started[number] = time.time_ns()
        if next(count) == jobs:
            all_started.set()

    with _Consumer(huey, workers):
        ready()
        all_started.wait(seconds)
    return started


def pickup_enqueue(path: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    huey = _huey(path)
    pick = huey.task(name="pick")(lambda number: None)
    told = Pickups()
    for number, gap in enumerate(gaps(random.Random(seed), jobs)):
        time.sleep(gap)
        told.called.append(time.time_ns())
        pick(number)
        told.returned.append(time.time_ns())
    return told


def beside(path: str, workers: int, busy_s: float) -> Beside:
    """How many tasks a second were run while a busy one ran."""
    huey = _huey(path)
    count = itertools.count(1)
    ran = 0
    spell = Spell(busy_s, count=lambda: ran)
    over = threading.Event()

    @huey.task(name="noop")  # type: ignore[untyped-decorator]
    def noop() -> None:
        nonlocal ran
        ran = next(count)

    @huey.task(name="busy")  # type: ignore[untyped-decorator]
    def busy() -> None:
        spell.run()
        over.set()

    with _Consumer(huey, workers):
        over.wait(busy_s + 30)
    return spell.told()
