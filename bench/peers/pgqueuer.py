"""PgQueuer on PostgreSQL and asyncpg, as its page on performance tuning sets it up for one process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from msgspec import structs

from bench.queues import About, AsyncQueue, Handler, running


class PgQueuer(AsyncQueue):
    """With as many tasks at once as there are slots, and half of that as batch: it must be twice the batch."""

    about = About(
        name="pgqueuer",
        settings="durability `durable` and `pgq autovac` (the former is the default), a worker on one asyncpg "
        "connection and uvloop (as `pgq run`): max_concurrent_tasks is the number of slots, batch_size half of it; "
        "`no limit` has batch_size=100 instead; batch_size=1 for 1 slot; enqueues on one connection, from many callers "
        "on a pool of 20; finished jobs are deleted and logged in a table",
        guarantee="kept: another worker picks them up when their heartbeat is 30 s old",
        docs="https://janbjorge.github.io/pgqueuer/",
    )
    package = "pgqueuer"
    left = "select exists (select from pgqueuer)"
    fill_size = 10_000
    ready_after_s = 1.0
    rate = (650, 12_000)

    def batch(self, slots: int) -> tuple[int, int | None]:
        """Jobs in one fetch, and jobs at once."""
        return (1, None) if slots == 1 else (slots // 2, slots)

    async def install(self) -> None:
        """Its tables, tuned by `pgq autovac`."""
        await self._queries.install()
        await self._queries.optimize_autovacuum()

    @asynccontextmanager
    async def connected(self, callers: int = 1) -> AsyncIterator[None]:
        """The docs' own example of a pool for producers, where there are many."""
        import asyncpg
        from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
        from pgqueuer.queries import Queries

        if callers == 1:
            connection = await asyncpg.connect(self.url)
            self._queries: Any = Queries(AsyncpgDriver(connection))
            yield
            await connection.close()
        else:
            async with asyncpg.create_pool(self.url, min_size=5, max_size=20) as pool:
                self._queries = Queries(AsyncpgPoolDriver(pool))
                yield

    async def enqueue(self, number: int = 0) -> None:
        await self._queries.enqueue("job", str(number).encode())

    async def enqueue_many(self, size: int) -> None:
        await self._queries.enqueue(["job"] * size, [b"0"] * size, [0] * size)

    @asynccontextmanager
    async def working(self, handler: Handler, slots: int) -> AsyncIterator[None]:
        """Stopped by its own event."""
        import asyncpg
        from pgqueuer import PgQueuer as Worker
        from pgqueuer.db import AsyncpgDriver

        async def job(given: Any) -> None:
            if (done := handler(int(given.payload))) is not None:
                await done

        connection = await asyncpg.connect(self.url)
        worker = Worker(AsyncpgDriver(connection))
        worker.entrypoint("job")(job)
        batch, most = self.batch(slots)

        async def stop(task: Any) -> None:
            worker.shutdown.set()
            await task

        async with running(worker.run(batch_size=batch, max_concurrent_tasks=most), stop):
            yield
        await connection.close()


class Unlimited(PgQueuer):
    """It fetches a batch, however many jobs run."""

    about = structs.replace(PgQueuer.about, name="pgqueuer, no limit")

    def batch(self, slots: int) -> tuple[int, int | None]:
        return slots, None
