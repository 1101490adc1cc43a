"""In the child: the clock of a drain on PostgreSQL, where a query tells whether any job is left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from bench.draining import Draining


@asynccontextmanager
async def draining(url: str, left: str | None, jobs: int, counted: int = 0) -> AsyncIterator[Draining]:
    """The clock of so many jobs, or of the last `counted` of them.

    `left` is a query for whether any is still live; without one the clock stops in the last handler.
    """
    connection = await asyncpg.connect(url)

    async def is_left(query: str) -> bool:
        return bool(await connection.fetchval(query))

    try:
        if left is None:
            yield Draining(None, jobs, counted)
        else:
            await is_left(left)
            yield Draining(lambda: is_left(left), jobs, counted)
    finally:
        await connection.close()
