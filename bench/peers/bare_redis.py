"""The limit: the Redis store's own script in a bare loop, nothing else."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import hiredis
import msgspec

from bench.figures import Ran
from bench.loop import on_uvloop
from bench.peers.about import About
from bench.stopwatch import metering
from jobmill.stores.redis.connection.pipelined import pack
from jobmill.stores.redis.scripts import EXCHANGE
from jobmill.stores.redis.url import RedisUrl

ABOUT = About(
    name="bare loop on Redis",
    package=None,
    settings="the store's script settles 50 and claims 50 (or 25, two in flight on one connection), hiredis on uvloop "
    "without futures or timers: each answer sends the next; of a job only its id is looked at",
    guarantee="–",
)

QUEUE, NAME = "default", "noop"
LEASE_MS = 60_000
MAX_EVENTS = 10_000
DEFAULT_RETENTION = 0
TOKEN = "0" * 32

_NOT_YET = object()
_encode = msgspec.msgpack.Encoder().encode


def request(place: RedisUrl, batch: int) -> dict[str, Any]:
    """What stays the same in each call."""
    claim = {
        "n": batch, "token": TOKEN, "lease_ms": LEASE_MS, "worker": "bench",
        "names": {NAME: batch}, "skip": None, "scan": None,
    }  # fmt: skip
    return {"max_events": MAX_EVENTS, "settle": [], "claim": claim, "not_these": []}


def settled(id: str) -> tuple[str, str, str, int]:
    """What the script takes of a job that succeeded at once."""
    return (id, TOKEN, "null", DEFAULT_RETENTION)


class Flights(asyncio.Protocol):
    """Answers come in the order of the calls; each sends what it claimed back as settled."""

    def __init__(self, place: RedisUrl, batch: int) -> None:
        self._place = place
        self._request = request(place, batch)
        self._key = f"{place.prefix}:{QUEUE}"
        self._reader = hiredis.Reader(notEnoughData=_NOT_YET)
        self._setting_up = 2
        self._flying = 0
        self.done = 0
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.landed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say which database, and make the script known: two answers that are no exchange's."""
        self._transport = cast("asyncio.WriteTransport", transport)
        self._transport.write(pack(("SELECT", self._place.options["db"])) + pack(("SCRIPT", "LOAD", EXCHANGE.source)))

    def start(self, flights: int) -> None:
        """So many calls at a time from now on."""
        self._flying = flights
        for _ in range(flights):
            self._send([])

    def _send(self, plain: list[tuple[str, str, str, int]]) -> None:
        ask = _encode({"now": time.time_ns() // 1_000_000, "plain": plain, **self._request})
        self._transport.write(pack(("EVALSHA", EXCHANGE.sha, 1, self._key, ask)))

    def data_received(self, data: bytes) -> None:
        """Answers have come, or parts of them."""
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not _NOT_YET:
            if isinstance(reply, hiredis.ReplyError):
                (self.landed if self.ready.done() else self.ready).set_exception(reply)
                self._transport.abort()
                return
            if self._setting_up:
                self._setting_up -= 1
                if not self._setting_up:
                    self.ready.set_result(None)
            else:
                self._learn(reply)

    def _learn(self, reply: list[Any]) -> None:
        self.done += reply[0].count(b"done")
        if reply[2]:
            self._send([settled(one[0].decode()) for one in reply[2]])
            return
        self._flying -= 1
        if not self._flying:
            self.landed.set_result(None)


@on_uvloop
async def drain(url: str, batch: int, flights: int) -> Ran:
    """Claim and settle all that waits, so many at a time in each of so many flights."""
    place = RedisUrl.read(url)
    address = place.hosts[0]
    loop = asyncio.get_running_loop()
    transport, flying = await loop.create_connection(lambda: Flights(place, batch), address.host, address.port)
    await flying.ready
    with metering() as watch:
        flying.start(flights)
        await flying.landed
        ran = watch.ran(flying.done)
    transport.close()
    return ran
