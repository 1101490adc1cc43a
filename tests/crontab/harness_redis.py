"""The contract's view of Redis: a sorted set and hashes."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

import msgspec
from redis.asyncio import Redis, RedisCluster

from jobmill.core.durations import instant_ms, to_datetime
from jobmill.crontab import RedisCrontab
from jobmill.testing import ManualClock
from tests.crontab.harness import Kept, OurStore


class RedisHarness:
    """Keys under a new name, and a client that reads them."""

    def __init__(self, url: str, client: Redis | RedisCluster) -> None:
        self.url = url
        self.client: Any = client
        self.name = f"crontab-{uuid.uuid4().hex[:12]}"
        self.clock = ManualClock()
        self.set, self._document = f"{{{self.name}}}:sleep_until", f"{{{self.name}}}:document:"
        self._stores: list[RedisCrontab] = []
        self.store: OurStore = self.made()

    def made(self) -> RedisCrontab:
        """A store with its own connections."""
        self._stores.append(store := RedisCrontab(self.url, self.name, clock=self.clock))
        return store

    async def add(self, id: str, document: Kept) -> None:
        fields: dict[str, Any] = {"data": msgspec.json.encode(document.data)}
        if document.interval is not None:
            fields["interval"] = document.interval
        if document.repeat_until is not None:
            fields["repeat_until"] = _ms(document.repeat_until)
        if document.auto_remove:
            fields["auto_remove"] = 1
        await self.client.hset(self._document + id, mapping=fields)
        if document.sleep_until is not None:
            await self.client.zadd(self.set, {id: _ms(document.sleep_until)})

    async def kept(self, id: str) -> Kept | None:
        fields = await self.client.hgetall(self._document + id)
        score = await self.client.zscore(self.set, id)
        if not fields and score is None:
            return None
        interval, until = fields.get("interval"), fields.get("repeat_until")
        return Kept(
            sleep_until=None if score is None else to_datetime(int(score)),
            interval=interval,
            repeat_until=None if until is None else to_datetime(int(until)),
            auto_remove=fields.get("auto_remove") == "1",
        )

    async def another(self) -> OurStore:
        return self.made()

    async def close(self) -> None:
        for store in self._stores:
            await store.close()
        keys = [key async for key in self.client.scan_iter(f"{{{self.name}}}:*")]
        if keys:
            await self.client.delete(*keys)
        await self.client.aclose()


def _ms(moment: datetime) -> int:
    return instant_ms(moment, "moment")
