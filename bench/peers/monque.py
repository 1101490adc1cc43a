"""Monque's own queries on Monque's own indexes, in a loop and by its scheduler; Monque itself cannot be installed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from bench.queues import About, AsyncQueue, Handler

T = TypeVar("T")
COLLECTION = "monque_jobs"


class FindAndModify(AsyncQueue):
    """Drains by a loop in each slot; everything else by Monque's scheduler."""

    about = About(
        name="find and modify",
        settings="Monque's queries and indexes (its second generation), sent by pymongo's async client from as many "
        "tasks as there are slots, on uvloop, in one process; each claims one job by find-and-modify, runs it and "
        "completes it by an update, without Monque's timers; pickup, idle memory and recovery: Monque's scheduler with "
        "its defaults, which looks each second, and 100 ms after the last of several changes in a row",
        guarantee="repeated: a process that starts takes up jobs that have been locked for 30 minutes",
        tried="told by its source; nobody waited for it",
        docs="https://github.com/ueberBrot/monque",
    )
    left = (COLLECTION, {"status_1_nextRunAt_1": {"status": {"$in": ["pending", "processing"]}}})
    rate = (300, 500)

    async def install(self) -> None:
        await self._monque.create_indexes()

    @asynccontextmanager
    async def connected(self, callers: int = 1) -> AsyncIterator[None]:
        """With the driver's own pool."""
        from pymongo import AsyncMongoClient

        from tests.interop.monque.monque import Monque

        async with AsyncMongoClient[dict[str, Any]](self.url, tz_aware=True) as client:
            self._monque: Any = Monque(client.get_default_database()[COLLECTION], 2, "bench")
            yield

    async def enqueue(self, number: int = 0) -> None:
        await self._monque.enqueue(self._monque.document("job", {"number": number}))

    async def enqueue_many(self, size: int) -> None:
        await self._monque.enqueue_many([self._monque.document("job") for _ in range(size)])

    def drain(self, jobs: int, handler: Handler, slots: int, until: Callable[[], T]) -> T:
        """Without the scheduler: as many loops as there are slots."""

        async def loop() -> None:
            while (job := await self._monque.claim("job")) is not None:
                await _run(handler, 0)
                await self._monque.complete(job)

        async def work() -> T:
            async with self.connected():
                await asyncio.gather(*(loop() for _ in range(slots)))
                return await asyncio.to_thread(until)

        return self.run(work())

    @asynccontextmanager
    async def working(self, handler: Handler, slots: int) -> AsyncIterator[None]:
        """Its scheduler with all defaults, and our handler."""
        from tests.interop.monque.peer import Peer

        class Process(Peer):
            async def _run(self, job: Any) -> None:
                await _run(handler, (job["data"] or {}).get("number", 0))
                await self.monque.complete(job)

        async with self.connected():
            process = Process(self._monque)
            await process.initialize()
            await process.start(slots, ["job"])
            yield
            await process.stop()


async def _run(handler: Handler, number: int) -> None:
    """Call a handler; it is a coroutine function if it takes time."""
    done: Awaitable[None] | None = handler(number)
    if done is not None:
        await done
