"""In the child: how long the server itself was at work for what a client did, by its slow log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis

MOST = 10_000


class Slowlog:
    """Everything that others than this connection ask for is logged, and looked at after each call."""

    def __init__(self, connection: Any, own_address: str) -> None:
        self._connection = connection
        self._own = own_address

    async def ms(self, work: Awaitable[object]) -> float:
        """Milliseconds that the server was at work for this, while nobody else is there."""
        await self._connection.slowlog_reset()
        await work
        entries = await self._connection.slowlog_get(MOST)
        took: list[int] = [one["duration"] for one in entries if one["client_address"].decode() != self._own]
        return sum(took) / 1e3


@asynccontextmanager
async def slowlog(url: str) -> AsyncIterator[Slowlog]:
    """As long as the block lasts the log holds every command."""
    connection: Any = Redis.from_url(url, single_connection_client=True)
    told = await connection.config_get("slowlog-*")
    try:
        await connection.config_set("slowlog-log-slower-than", 0, "slowlog-max-len", MOST)
        own = (await connection.client_info())["addr"]
        yield Slowlog(connection, own)
    finally:
        await connection.config_set(*(word for item in told.items() for word in item))
        await connection.slowlog_reset()
        await connection.aclose()
