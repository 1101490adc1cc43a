"""Celery on Redis, with its pool of threads in one process."""

from __future__ import annotations

from typing import Any, ClassVar

from bench.queues import About, Handler, MainThreadQueue


class Celery(MainThreadQueue):
    """One worker process."""

    about = About(
        name="celery",
        settings="--pool=threads whose concurrency is the number of slots, --pool=solo for 1 slot (of the pools in one "
        "process gevent took more CPU), --without-gossip --without-mingle --without-heartbeat, task_ignore_result and "
        "no result backend, logging at WARNING, other defaults, also for the prefetch multiplier (64 was no faster "
        "than 4); it has no bulk call, and its callers are threads with as many connections",
        guarantee="lost: a task is acknowledged before it runs, unless acks_late is set",
        tried="nobody ran it within 460 s, and it was no longer among the unacknowledged ones",
        docs="https://docs.celeryq.dev/en/stable/userguide/optimizing.html",
    )
    apart = "celery"
    #: None: threads, or none for a single slot.
    pool: ClassVar[str | None] = None
    left = (("llen", "celery"), ("hlen", "unacked"))
    has_bulk = False
    ready_after_s = 2.0
    rate = (980, 980)

    def _app(self, connections: int = 10) -> Any:
        from celery import Celery as App

        app = App("bench", broker=self.url, set_as_current=False)
        app.conf.update(
            task_ignore_result=True,
            broker_pool_limit=connections,
            worker_hijack_root_logger=False,
            worker_redirect_stdouts=False,  # the parent reads them
            broker_connection_retry_on_startup=True,
        )
        return app

    def connect(self, callers: int = 1) -> None:
        """With as many connections."""

        def job(number: int = 0) -> None:
            """A client needs only its name."""

        self._job = self._app(max(10, callers)).task(name="job")(job)

    def enqueue(self, number: int = 0) -> None:
        self._job.delay(number)

    def work(self, handler: Handler, slots: int) -> None:
        app = self._app()

        def job(number: int = 0) -> None:
            handler(number)

        app.task(name="job")(job)
        without = dict.fromkeys(("without_gossip", "without_mingle", "without_heartbeat"), True)
        pool = self.pool or ("threads" if slots > 1 else "solo")
        app.Worker(pool=pool, concurrency=slots, loglevel="WARNING", quiet=True, **without).start()
