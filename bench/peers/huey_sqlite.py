"""The peer on SQLite: huey's SqliteHuey with thread workers, by its docs what to take for one process."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench import threads
from bench.busy import Beside, Spell
from bench.child import ready
from bench.figures import Ran
from bench.holding import forever_here, tell
from bench.peers.about import About, not_installed
from bench.pickups import Pickups
from bench.stopwatch import Stopwatch

ABOUT = About(
    name="huey",
    package="huey",
    settings="SqliteHuey in WAL mode with fsync=True (synchronous=FULL), nothing stored for None, consumer with thread "
    "workers (several numbers of them, the best one counts), no periodic tasks, logging at WARNING, other defaults",
    guarantee="lost: a task is deleted before it runs",
    tried="nobody ran it within 90 s, and no row was left in any of its tables",
    docs="https://huey.readthedocs.io/en/latest/consumer.html",
)


def missing() -> str | None:
    """Why it cannot be measured."""
    return not_installed("huey")


def _huey(url: str, fsync: bool = True) -> Any:
    """On the file of this path, which is all that there is to a URL here."""
    from huey import SqliteHuey

    return SqliteHuey("bench", filename=url, fsync=fsync)


@contextmanager
def _working(huey: Any, slots: int) -> Iterator[None]:
    consumer = huey.create_consumer(workers=slots, worker_type="thread", periodic=False)
    consumer.start()
    try:
        yield
    finally:
        consumer.stop(graceful=True)


def fill(url: str, jobs: int, busy: bool = False) -> None:
    """So many waiting tasks, in one transaction, as its own `enqueue` writes them; it has no way to enqueue many."""
    huey = _huey(url, fsync=False)
    noop = huey.task(name="noop")(lambda: None)
    first = [huey.task(name="busy")(lambda: None).s()] if busy else []
    with huey.storage.db(commit=True) as cursor:
        for task in itertools.chain(first, (noop.s() for _ in range(jobs))):
            cursor.execute(
                "insert into task (queue, data, priority) values (?, ?, ?)",
                (huey.storage.name, huey.serialize_task(task), 0),
            )
    huey.storage.close()


def drain(url: str, jobs: int, slots: int) -> Ran:
    """One consumer runs so many no-op tasks, all that there are."""
    huey = _huey(url)
    clock = threads.Draining(lambda: bool(huey.pending_count()), jobs)
    huey.task(name="noop")(lambda: clock.run())
    with _working(huey, slots):
        return clock.settled()


def drain_some(url: str, jobs: int, slots: int, seconds: float) -> Ran:
    """One consumer runs so many no-op tasks of more; the clock stops in the last one."""
    huey = _huey(url)
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
    with _working(huey, slots):
        enough.wait(seconds)
        return watch.ran(min(ran, jobs))


def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """Each caller enqueues one task, waits for the answer, and enqueues the next."""
    return threads.one_by_one(_huey(url).task(name="noop")(lambda: None), callers, jobs, seconds)


def pickup_work(url: str, jobs: int, seconds: float, slots: int) -> list[int]:
    """The worker's side: says that it is ready, and when it started each task."""
    huey, starts = _huey(url), threads.Starts(jobs)
    huey.task(name="pick")(lambda number: starts.start(number))
    with _working(huey, slots):
        ready()
        return starts.wait(seconds)


def pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    return threads.one_after_the_other(_huey(url).task(name="pick")(lambda number: None), jobs, seed)


def hold(url: str) -> None:
    """One task for `work`."""
    _huey(url).task(name="hold")(lambda: None)()


def work(url: str, slots: int, path: str) -> None:
    """A consumer until it is killed."""
    huey = _huey(url)

    def held() -> None:
        tell(path)
        forever_here()

    huey.task(name="hold")(held)
    with _working(huey, slots):
        ready()
        forever_here()


def beside(url: str, slots: int, busy_s: float) -> Beside:
    """How many tasks a second were run while a busy one ran."""
    huey = _huey(url)
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

    with _working(huey, slots):
        over.wait(busy_s + 30)
    return spell.told()
