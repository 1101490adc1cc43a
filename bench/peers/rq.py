"""RQ on Redis, with a SimpleWorker, which runs jobs in its own process."""

from __future__ import annotations

from typing import Any, ClassVar

from bench.queues import About, Handler, MainThreadQueue

#: The handler of this process: RQ finds functions by their names.
handlers: list[Handler] = []


def job(number: int = 0) -> None:
    """What jobs name."""
    handlers[-1](number)


class Rq(MainThreadQueue):
    """One slot in one process."""

    about = About(
        name="rq",
        settings="a SimpleWorker (its own Worker forks for each job), which has one slot in one process; bulk by "
        "enqueue_many; logging at WARNING, other defaults: results and finished jobs are kept for 500 s; its callers "
        "are threads",
        guarantee="lost: it stays in a registry of started jobs, from where a later worker moves it to the failed ones",
        tried="nobody ran it within 460 s, and then it was among the failed jobs",
        docs="https://github.com/rq/rq/blob/master/docs/benchmark.md",
    )
    package = "rq"
    left = (("llen", "rq:queue:default"), ("zcard", "rq:wip:default"))
    max_slots: ClassVar[int | None] = 1
    ready_after_s = 1.0
    rate = (300, 300)

    def connect(self, callers: int = 1) -> None:
        """With a pool that every thread may use."""
        from redis import Redis
        from rq import Queue

        self._queue: Any = Queue("default", connection=Redis.from_url(self.url, max_connections=1_000))

    def enqueue(self, number: int = 0) -> None:
        self._queue.enqueue(job, number)

    def enqueue_many(self, size: int) -> None:
        self._queue.enqueue_many([self._queue.prepare_data(job) for _ in range(size)])

    def work(self, handler: Handler, slots: int) -> None:
        from rq import SimpleWorker

        handlers.append(handler)
        self.connect()
        worker: Any = SimpleWorker([self._queue], connection=self._queue.connection)
        worker.work(logging_level="WARNING")
