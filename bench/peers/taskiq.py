"""taskiq on Redis, with the broker that acknowledges."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.queues import About, AsyncQueue, Handler, job_of, running

#: While it looks for jobs of others it may not stop; the end of its connections ends it then.
STOPS_WITHIN_S = 2.0


class Taskiq(AsyncQueue):
    """RedisStreamBroker."""

    about = About(
        name="taskiq",
        settings="RedisStreamBroker, which acknowledges and is the example of its page, without a result backend, "
        "a receiver whose max_async_tasks is the number of slots, on uvloop (as `taskiq worker` takes it), one "
        "process, other defaults; it has no bulk call, and finished jobs stay in the stream",
        guarantee="repeated: jobs that are not acknowledged after 10 min are taken over when the next job comes",
        tried="nobody ran it within 626 s; then another job came, and it was run again within 2 s",
        docs="https://github.com/taskiq-python/taskiq-redis",
    )
    package = "taskiq_redis"
    left = (("xpending", "taskiq", "taskiq"),)
    has_bulk = False
    fill_size = 200
    ready_after_s = 1.0
    rate = (2_500, 3_000)

    @asynccontextmanager
    async def opened(self, handler: Handler) -> AsyncIterator[None]:
        from taskiq_redis import RedisStreamBroker

        logging.getLogger("taskiq").setLevel(logging.ERROR)
        self._broker: Any = RedisStreamBroker(self.url)
        self._job: Any = self._broker.task(task_name="job")(job_of(handler))
        await self._broker.startup()
        try:
            yield
        finally:
            await self._broker.shutdown()

    async def enqueue(self, number: int = 0) -> None:
        await self._job.kiq(number)

    @asynccontextmanager
    async def working(self, handler: Handler, slots: int) -> AsyncIterator[None]:
        """As `taskiq worker` runs a receiver, and stops it."""
        from taskiq.receiver import Receiver

        async with self.opened(handler):
            self._broker.is_worker_process = True
            event = asyncio.Event()

            async def stop(task: Any) -> None:
                event.set()
                await asyncio.wait([task], timeout=STOPS_WITHIN_S)

            receiver = Receiver(self._broker, max_async_tasks=slots, run_startup=False)
            async with running(receiver.listen(event), stop):
                yield
