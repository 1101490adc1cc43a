"""The Redis store for the contract."""

from __future__ import annotations

import functools
from collections.abc import Callable

import redis.asyncio

from jobmill.store import Store
from jobmill.stores.redis import RedisStore
from jobmill.stores.redis.url import RedisUrl
from jobmill.testing import ManualClock


class RedisHarness:
    """A prefix of a server, which processes share."""

    def __init__(self, url: str) -> None:
        self.clock = ManualClock()
        self.url = url
        self.store: Store = RedisStore(url, clock=self.clock)

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def another(self) -> Store:
        store = RedisStore(self.url, clock=self.clock)
        await store.open()
        return store

    async def corrupt(self, id: str) -> None:
        (job,) = await self.store.get([id])
        assert job is not None
        place = RedisUrl.read(self.url)
        async with redis.asyncio.from_url(self.url.partition("?")[0]) as client:
            await client.hset(f"{place.prefix}:{job.queue}:{id}", "data", "{garbage")

    @property
    def opener(self) -> Callable[[], Store]:
        return functools.partial(RedisStore, self.url)
