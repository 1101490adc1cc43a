"""dramatiq on Redis: threads that acknowledge."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from bench.queues import About, Handler, ThreadQueue, started


class Dramatiq(ThreadQueue):
    """One process of it."""

    about = About(
        name="dramatiq",
        settings="RedisBroker with its default middleware, one process (as `--processes 1`) with as many threads as "
        "there are slots, which prefetches twice as many messages, other defaults; it has no bulk call, and its "
        "callers are threads",
        guarantee="kept: another worker takes up the jobs of a worker that has been without a heartbeat for 60 s; it "
        "looks for them with one command in a thousand, which is seldom where nothing else is to do",
        tried="it was run again after 434 s, in a queue that was empty otherwise",
        docs="https://dramatiq.io/guide.html",
    )
    package = "dramatiq"
    left = (("hlen", "dramatiq:default.msgs"),)
    has_bulk = False
    ready_after_s = 1.0
    rate = (260, 3_000)

    def _actor(self, handler: Handler) -> Any:
        import dramatiq
        from dramatiq.brokers.redis import RedisBroker
        from redis import Redis

        def job(number: int = 0) -> None:
            handler(number)

        make: Any = RedisBroker
        broker = make(client=Redis.from_url(self.url, max_connections=1_000))  # redis-py allows 100 by default
        dramatiq.set_broker(broker)
        return dramatiq.actor(actor_name="job", broker=broker)(job)

    def connect(self, callers: int = 1) -> None:
        """With a pool that every thread may use."""
        self._job = self._actor(lambda _: None)

    def enqueue(self, number: int = 0) -> None:
        self._job.send(number)

    def working(self, handler: Handler, slots: int) -> AbstractContextManager[None]:
        """Threads of this process."""
        from dramatiq import Worker

        worker = Worker(self._actor(handler).broker, worker_threads=slots)
        return started(worker.start, worker.stop)
