"""The peer on Redis that most people know: RQ, with a SimpleWorker, which runs jobs in its own process."""

from __future__ import annotations

import functools
from typing import Any

from bench import threads
from bench.child import ready
from bench.figures import Ran
from bench.holding import forever_here, tell
from bench.peers.about import About, not_installed
from bench.pickups import Pickups
from bench.redis.draining import looking

ABOUT = About(
    name="rq",
    package="rq",
    settings="a SimpleWorker (its own Worker forks for each job), which has one slot and no more in one process; bulk "
    "by enqueue_many; logging at WARNING, other defaults: results and what is done are kept for 500 s; its callers are "
    "threads",
    guarantee="lost: it stays in a registry of started jobs, from where a later worker moves it to the failed ones",
    tried="nobody ran it within 460 s, and then it was among the failed jobs",
    docs="https://github.com/rq/rq/blob/master/docs/benchmark.md",
)

MOST_SLOTS = 1
QUEUE = "default"
AT_ONCE = 1_000
LIVE = (("llen", f"rq:queue:{QUEUE}"), ("zcard", f"rq:wip:{QUEUE}"))


class Here:
    """What the handlers tell in this process: RQ finds them by their names, so that nothing can be handed to them."""

    clock: threads.Draining
    starts: threads.Starts
    path: str


def missing() -> str | None:
    """Why it cannot be measured."""
    return not_installed("rq")


def noop() -> None:
    """The handler of a drain."""
    Here.clock.run()


def pick(number: int) -> None:
    """The handler of a pickup."""
    Here.starts.start(number)


def held() -> None:
    """The handler of a worker that is going to be killed."""
    tell(Here.path)
    forever_here()


def _queue(url: str) -> Any:
    from redis import Redis
    from rq import Queue

    return Queue(QUEUE, connection=Redis.from_url(url, max_connections=1_000))


def _work(url: str) -> None:
    from rq import SimpleWorker

    queue = _queue(url)
    worker: Any = SimpleWorker([queue], connection=queue.connection)
    worker.work(logging_level="WARNING")


def _enqueue_many(queue: Any, size: int) -> None:
    queue.enqueue_many([queue.prepare_data(noop) for _ in range(size)])


def fill(url: str, jobs: int) -> None:
    """So many waiting jobs."""
    queue = _queue(url)
    for first in range(0, jobs, AT_ONCE):
        _enqueue_many(queue, min(AT_ONCE, jobs - first))


def drain(url: str, jobs: int, slots: int) -> Ran:
    """One worker runs so many no-op jobs, one after the other."""
    assert slots == MOST_SLOTS
    Here.clock = threads.Draining(looking(url, LIVE), jobs)
    return threads.until(Here.clock.settled, lambda: _work(url))


def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """Each caller enqueues one job, waits for the answer, and enqueues the next."""
    return threads.one_by_one(functools.partial(_queue(url).enqueue, noop), callers, jobs, seconds)


def bulk(url: str, size: int, jobs: int, seconds: float) -> Ran:
    """One caller hands so many jobs in with each call."""
    queue = _queue(url)
    return threads.bulk(lambda: _enqueue_many(queue, size), size, jobs, seconds)


def pickup_work(url: str, jobs: int, seconds: float, slots: int) -> list[int]:
    """The worker's side: says that it is ready, and when it started each job."""
    Here.starts = threads.Starts(jobs)
    return threads.until(lambda: _ready_and_wait(seconds), lambda: _work(url))


def _ready_and_wait(seconds: float) -> list[int]:
    ready()
    return Here.starts.wait(seconds)


def pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    queue = _queue(url)
    return threads.one_after_the_other(lambda number: queue.enqueue(pick, number), jobs, seed)


def hold(url: str) -> None:
    """One job for `work`."""
    _queue(url).enqueue(held)


def work(url: str, slots: int, path: str) -> None:
    """A worker until it is killed."""
    Here.path = path
    ready()
    _work(url)
