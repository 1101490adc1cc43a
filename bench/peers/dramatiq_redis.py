"""The peer on Redis and threads that acknowledges: dramatiq, one process of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    name="dramatiq",
    package="dramatiq",
    settings="RedisBroker with its default middleware, one process (as `--processes 1`) with as many threads as there "
    "are slots, which prefetches twice as many messages, other defaults; it has no bulk call, and its callers are "
    "threads",
    guarantee="kept: another worker takes up those of a worker that has been without a heartbeat for 60 s; it looks at "
    "one command in a thousand, which is seldom where nothing else is to do",
    tried="it was run again after 434 s, in a queue that was empty otherwise",
    docs="https://dramatiq.io/guide.html",
)

QUEUE = "default"
LIVE = (("hlen", f"dramatiq:{QUEUE}.msgs"),)
#: It does not say when its worker has fetched for the first time.
FETCHES_AFTER_S = 1.0


def missing() -> str | None:
    """Why it cannot be measured."""
    return not_installed("dramatiq")


def _actor(url: str, name: str, function: Callable[..., None]) -> Any:
    """An actor with a broker of its own; redis-py allows 100 connections where nothing is said."""
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker
    from redis import Redis

    make: Any = RedisBroker
    broker = make(client=Redis.from_url(url, max_connections=1_000))
    dramatiq.set_broker(broker)
    return dramatiq.actor(actor_name=name, broker=broker)(function)


@contextmanager
def _working(actor: Any, slots: int) -> Iterator[None]:
    from dramatiq import Worker

    worker = Worker(actor.broker, worker_threads=slots)
    worker.start()
    try:
        yield
    finally:
        worker.stop()


def _nothing(number: int = 0) -> None:
    """What a client needs not know of the handler."""


def fill(url: str, jobs: int) -> None:
    """So many waiting messages."""
    threads.fill(_actor(url, "noop", _nothing).send, jobs)


def drain(url: str, jobs: int, slots: int) -> Ran:
    """One worker runs so many no-op messages."""
    clock = threads.Draining(looking(url, LIVE), jobs)
    with _working(_actor(url, "noop", clock.run), slots):
        return clock.settled()


def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """Each caller enqueues one message, waits for the answer, and enqueues the next."""
    return threads.one_by_one(_actor(url, "noop", _nothing).send, callers, jobs, seconds)


def pickup_work(url: str, jobs: int, seconds: float, slots: int) -> list[int]:
    """The worker's side: says that it is ready, and when it started each message."""
    starts = threads.Starts(jobs)
    with _working(_actor(url, "pick", starts.start), slots):
        starts.wait(FETCHES_AFTER_S)
        ready()
        return starts.wait(seconds)


def pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    return threads.one_after_the_other(_actor(url, "pick", _nothing).send, jobs, seed)


def hold(url: str) -> None:
    """One message for `work`."""
    _actor(url, "hold", _nothing).send()


def work(url: str, slots: int, path: str) -> None:
    """A worker until it is killed."""

    def held() -> None:
        tell(path)
        forever_here()

    with _working(_actor(url, "hold", held), slots):
        ready()
        forever_here()
