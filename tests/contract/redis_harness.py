"""The Redis store for the contract."""

from __future__ import annotations

import functools
from collections.abc import Callable

import redis.asyncio

from jobmill.store import Store
from jobmill.stores.redis import RedisStore
from jobmill.stores.redis.context import LINGER_MS
from jobmill.stores.redis.url import RedisUrl
from jobmill.testing import ManualClock


class RedisHarness:
    """A prefix of a server, which processes share."""

    def __init__(self, url: str) -> None:
        self.clock = ManualClock()
        self.url = url
        self.store: Store = RedisStore(url, clock=self.clock)
        #: How long unique keys are still taken, by the clock of the test.
        self._left_ms: dict[bytes, int] = {}

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self._expire_keys(round(seconds * 1000))

    async def _expire_keys(self, passed_ms: int) -> None:
        """The server's clock ends unique keys that are taken for a time: here, that of the test does."""
        place = RedisUrl.read(self.url)
        async with redis.asyncio.from_url(self.url.partition("?")[0]) as client:
            async for key in client.scan_iter(f"{place.prefix}:*:de:*"):
                left_ms = await client.pttl(key)
                if left_ms < 0:
                    continue
                # A new key has lost some ms since the test took it, for a number of whole seconds.
                known_ms = self._left_ms[key] if left_ms > LINGER_MS else -(-left_ms // 1000) * 1000
                self._left_ms[key] = known_ms - passed_ms
                await client.pexpire(key, self._left_ms[key] + 2 * LINGER_MS if known_ms > passed_ms else 0)

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
