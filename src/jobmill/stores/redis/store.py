"""The port on Redis: BullMQ's data, worked by scripts of our own, so that Node's processes may share every queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from jobmill.errors import StoreError
from jobmill.stores.common.ids import new_id
from jobmill.stores.redis.enqueue import Enqueues
from jobmill.stores.redis.queues import Queues

OLDEST = (6, 2)


class RedisStore(Enqueues, Queues):
    """Jobs as BullMQ has them. There is nothing to migrate: a queue is there with its first job."""

    name: ClassVar[str] = "redis"
    exchanges_in_flight: ClassVar[int] = 2

    def __init__(self, url: str, *, clock: Callable[[], int] | None = None, linger_ms: int | None = None) -> None:
        super().__init__(url, clock, linger_ms)
        self._is_checked = False

    @property
    def place(self) -> str:
        """The URL without its password, and the prefix."""
        return self._place.shown

    async def open(self) -> None:
        """Connect, check the version, measure the clock."""
        if not self._is_checked:
            await self._check()
            self._is_checked = True
        if self._clock is None:
            await self._learn_time()

    async def close(self) -> None:
        """Give all connections back, also those of other loops."""
        await self._watches.close()
        await self._link.close()

    async def migrate(self) -> list[str]:
        """Nothing to migrate."""
        return []

    def new_id(self) -> str:
        """A uuid7."""
        return new_id()

    async def _check(self) -> None:
        """RPOP with a count, LPOS and XADD's exact lengths are needed: Redis 6.2, or any Valkey."""
        (info, *_) = await self._link.everywhere("INFO", "server")
        version = next((line[14:] for line in info.decode().splitlines() if line.startswith("redis_version:")), "")
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
        if numbers < OLDEST:
            raise StoreError(f"{self._place.url} is Redis {version}; Jobmill needs Redis 6.2 or newer, or Valkey")
