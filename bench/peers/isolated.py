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
from jobmill import Worker, connect

#: The fork server imports this module too, and has the worker's environment.
URL = "JOBMILL_BENCH_URL"
jobs = connect(os.environ.get(URL, "memory://"))


@jobs.handler(isolate=True)
def forked() -> None:
    """A process for each job."""


@jobs.handler(isolate="pool")
def pooled() -> None:
    """A process for many jobs."""


class Forked(OnRedis):
    """`isolate=True`."""

    about = structs.replace(OnRedis.about, name="jobmill, isolate=True", settings="one worker process, isolate=True")
    handler: Any = forked
    rate = (100, 200)

    @asynccontextmanager
    async def _opened(self, handler: Handler) -> AsyncIterator[None]:
        os.environ[URL] = self.url
        self._client, self._job = jobs, self.handler
        jobs.store = connect(self.url).store
        await jobs.store.migrate()
        async with jobs:
            yield

    @asynccontextmanager
    async def working(self, handler: Handler, slots: int) -> AsyncIterator[None]:
        """One worker."""
        async with self._opened(handler), Worker(self._client, concurrency=slots):
            yield


class Pooled(Forked):
    """`isolate="pool"`."""

    about = structs.replace(Forked.about, name="jobmill, isolate=pool", settings='one worker process, isolate="pool"')
    handler = pooled
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
        """In the main thread."""
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
