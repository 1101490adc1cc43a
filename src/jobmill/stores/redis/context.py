"""What all verbs of the Redis store stand on: the link, the clock, and scripts run on a queue."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from jobmill.stores.redis.connection.client import Link
from jobmill.stores.redis.script import Script
from jobmill.stores.redis.url import Place

#: So that no call keeps the server for long: it does one thing at a time.
MOST_A_CALL = 200
#: A server takes no part of a command of over 512 MB, and less where it is told so.
MOST_BYTES_A_CALL = 8_000_000
# By a clock of the caller's own, leases and windows end as that says: their keys must not be gone before.
LINGER_MS = 3_600_000

_encode = msgspec.msgpack.Encoder().encode


def text(value: Any) -> str:
    """JSON; as text, because the msgpack of Redis knows no bytes."""
    return msgspec.json.encode(value).decode()


class Base:
    """A place, and the time there."""

    def __init__(self, url: str, clock: Callable[[], int] | None = None, linger_ms: int | None = None) -> None:
        self._place = Place.read(url)
        self._link = Link(self._place)
        self._clock = clock
        self._offset_ms = 0.0
        self._registered: set[str] = set()
        if linger_ms is None:
            linger_ms = 0 if clock is None else LINGER_MS
        self._common = {"v5": self._place.layout == 5, "linger": linger_ms}

    def now(self) -> int:
        """The server's clock, by the offset that was last measured."""
        return self._clock() if self._clock else int(time.time() * 1000 + self._offset_ms)

    def _key(self, queue: str) -> str:
        return f"{self._place.prefix}:{queue}"

    async def _run(self, script: Script, queue: str, now_ms: int, **ask: Any) -> Any:
        """A script on one queue: its request goes in one piece."""
        self._place.check_queue(queue)
        return await self._link.run(script, self._key(queue), (_encode({"now": now_ms, **self._common, **ask}),))

    async def _register(self, queue: str) -> None:
        """Jobs of ours are in this queue: an id that names no queue is looked for there."""
        if queue not in self._registered:
            self._place.check_queue(queue)
            await self._link.call(self._registry, "SADD", self._registry, queue)
            self._registered.add(queue)

    @property
    def _registry(self) -> str:
        # Not under the prefix: what is there belongs to a queue.
        return f"jobmill:{self._place.prefix}:queues"

    async def _learn_time(self) -> None:
        """The server's clock is the store's: ours is corrected by what lies between the two."""
        began = time.time()
        seconds, micros = await self._link.call(self._key(""), "TIME")
        told = int(seconds) * 1000 + int(micros) / 1000
        # It looked at its clock somewhere between question and answer.
        least, most = told - time.time() * 1000, told - began * 1000
        self._offset_ms = min(max(self._offset_ms, least), most)
