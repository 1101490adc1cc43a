"""The peer on Redis and threads, with the least around a task: huey's RedisHuey."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench import threads
from bench.child import ready
from bench.figures import Ran
from bench.holding import forever_here, tell
from bench.peers.about import About, not_installed
from bench.pickups import Pickups
from bench.redis.draining import looking

ABOUT = About(
    name="huey",
    package="huey",
    settings="RedisHuey (a list, read with BRPOP), nothing stored for None, a consumer with as many thread workers as "
    "there are slots, no periodic tasks, logging at WARNING, other defaults; it has no bulk call, and its callers are "
    "threads",
    guarantee="lost: a task is popped before it runs",
    tried="nobody ran it within 460 s, and no key was left",
    docs="https://huey.readthedocs.io/",
)

NAME = "bench"
LIVE = (("llen", f"huey.redis.{NAME}"),)
#: redis-py allows 100 where nothing is said, and each thread worker takes one: at 200 some tasks were never run.
CONNECTIONS = 1_000


def missing() -> str | None:
    """Why it cannot be measured."""
    return not_installed("huey")


def _huey(url: str) -> Any:
    from huey import RedisHuey
    from redis import ConnectionPool

    return RedisHuey(NAME, connection_pool=ConnectionPool.from_url(url, max_connections=CONNECTIONS))


@contextmanager
def _working(huey: Any, slots: int) -> Iterator[None]:
    consumer = huey.create_consumer(workers=slots, worker_type="thread", periodic=False)
    consumer.start()
    try:
        yield
    finally:
        consumer.stop(graceful=True)


def fill(url: str, jobs: int) -> None:
    """So many waiting tasks."""
    threads.fill(_huey(url).task(name="noop")(lambda: None), jobs)


def drain(url: str, jobs: int, slots: int) -> Ran:
    """One consumer runs so many no-op tasks; nothing is acknowledged, so that the clock stops in the last one."""
    huey = _huey(url)
    clock = threads.Draining(looking(url, LIVE), jobs)
    huey.task(name="noop")(lambda: clock.run())
    with _working(huey, slots):
        return clock.settled()


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
    pick = _huey(url).task(name="pick")(lambda number: None)
    return threads.one_after_the_other(pick, jobs, seed)


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
