"""The peer on Redis that is oldest: Celery, with its pool of threads in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench import threads
from bench.child import ready
from bench.figures import Ran
from bench.holding import forever_here, tell
from bench.peers import apart
from bench.peers.about import About
from bench.pickups import Pickups
from bench.redis.draining import looking

ABOUT = About(
    name="celery",
    package="celery",
    settings="--pool=threads with concurrency as there are slots, --pool=solo for 1 slot (of the pools in one process "
    "gevent took more CPU), --without-gossip --without-mingle --without-heartbeat, task_ignore_result and no result "
    "backend, logging at WARNING, other defaults, also for the prefetch multiplier (64 was no faster than 4); it has "
    "no bulk call, and its callers are threads with as many connections",
    guarantee="lost: a task is acknowledged before it runs, unless acks_late is set",
    tried="nobody ran it within 460 s, and it was no longer among the unacknowledged ones",
    docs="https://docs.celeryq.dev/en/stable/userguide/optimizing.html",
)

QUEUE = "celery"
LIVE = (("llen", QUEUE), ("hlen", "unacked"))


def missing() -> str | None:
    """Why it cannot be measured."""
    return apart.missing("celery")


def _app(url: str, connections: int = 10) -> Any:
    apart.use("celery")
    from celery import Celery

    app = Celery("bench", broker=url, set_as_current=False)
    app.conf.update(
        task_ignore_result=True,
        broker_pool_limit=connections,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,  # the parent reads them
        broker_connection_retry_on_startup=True,
    )
    return app


def _work(app: Any, slots: int, then: Callable[[], None] | None = None) -> None:
    """In the main thread; `then` is called when it consumes."""
    from celery.signals import worker_ready

    if then is not None:
        worker_ready.connect(lambda **_: then(), weak=False)
    worker = app.Worker(
        pool="threads" if slots > 1 else "solo",
        concurrency=slots,
        loglevel="WARNING",
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    worker.start()


def _nothing(number: int = 0) -> None:
    """What a client needs not know of the handler."""


def fill(url: str, jobs: int) -> None:
    """So many waiting tasks."""
    threads.fill(_app(url).task(name="noop")(_nothing).delay, jobs)


def drain(url: str, jobs: int, slots: int) -> Ran:
    """One worker runs so many no-op tasks."""
    app = _app(url)
    clock = threads.Draining(looking(url, LIVE), jobs)
    app.task(name="noop")(clock.run)
    return threads.until(clock.settled, lambda: _work(app, slots))


def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """Each caller enqueues one task, waits for the answer, and enqueues the next."""
    noop = _app(url, connections=callers).task(name="noop")(_nothing)
    return threads.one_by_one(noop.delay, callers, jobs, seconds)


def pickup_work(url: str, jobs: int, seconds: float, slots: int) -> list[int]:
    """The worker's side: says that it is ready, and when it started each task."""
    app, starts = _app(url), threads.Starts(jobs)
    app.task(name="pick")(starts.start)
    return threads.until(lambda: starts.wait(seconds), lambda: _work(app, slots, ready))


def pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    return threads.one_after_the_other(_app(url).task(name="pick")(_nothing).delay, jobs, seed)


def hold(url: str) -> None:
    """One task for `work`."""
    _app(url).task(name="hold")(_nothing).delay()


def work(url: str, slots: int, path: str) -> None:
    """A worker until it is killed."""
    app = _app(url)

    def held() -> None:
        tell(path)
        forever_here()

    app.task(name="hold")(held)
    _work(app, slots, ready)
