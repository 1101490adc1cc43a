"""No-op handlers in processes of their own, on Redis: Jobmill's beside RQ's fork for each job and Celery's prefork."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from msgspec import structs

from bench.peers import celery, rq
from bench.peers.jobmill import OnRedis
from bench.queues import Handler
from jobmill import connect

#: The fork server imports this module too, and has the worker's environment.
URL = "JOBMILL_BENCH_URL"
handlers: dict[str, Any] = {}


def noop() -> None:
    """What jobs run."""


def _define(url: str) -> None:
    """A process for each job, and a process for many jobs; as global names, by which other processes find them."""
    jobs = connect(url)
    for name, mode in (("forked", True), ("pooled", "pool")):
        globals()[name] = handlers[name] = jobs.handler(name=name, isolate=mode)(noop)  # type: ignore[arg-type]


_define(os.environ.get(URL, "memory://"))


class Forked(OnRedis):
    """`isolate=True`."""

    about = structs.replace(OnRedis.about, name="jobmill, isolate=True", settings="one worker process, isolate=True")
    name = "forked"
    rate = (100, 200)

    @asynccontextmanager
    async def opened(self, handler: Handler) -> AsyncIterator[None]:
        os.environ[URL] = self.url
        _define(self.url)
        self._job = handlers[self.name]
        self._client = self._job.client
        await self._client.store.migrate()
        async with self._client:
            yield


class Pooled(Forked):
    """`isolate="pool"`."""

    about = structs.replace(Forked.about, name="jobmill, isolate=pool", settings='one worker process, isolate="pool"')
    name = "pooled"
    rate = (1_000, 3_000)


class RqForking(rq.Rq):
    """A process for each job."""

    about = structs.replace(
        rq.Rq.about,
        name="rq, Worker",
        settings="its default Worker, which forks for each job; with 10 slots a WorkerPool of 10 processes",
    )
    max_slots = None
    rate = (50, 100)

    def work(self, handler: Handler, slots: int) -> None:
        from rq import Worker as RqWorker
        from rq.worker_pool import WorkerPool

        rq.handlers.append(handler)
        self.connect()
        if slots == 1:
            worker: Any = RqWorker([self._queue], connection=self._queue.connection)
            worker.work(logging_level="WARNING")
        else:
            pool: Any = WorkerPool([self._queue], connection=self._queue.connection, num_workers=slots)
            pool.start(logging_level="WARNING")


class CeleryPrefork(celery.Celery):
    """Processes for many jobs."""

    about = structs.replace(
        celery.Celery.about,
        name="celery, prefork",
        settings="--pool=prefork whose concurrency is the number of slots; otherwise as celery",
    )
    pool = "prefork"
    rate = (400, 800)

    def work(self, handler: Handler, slots: int) -> None:
        """In the main thread; its processes end with it."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        super().work(handler, slots)
