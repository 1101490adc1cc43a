"""A connection of its own that sleeps at the server until there is a marker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from jobmill.errors import StoreUnavailable
from jobmill.stores.redis.connection.errors import Moved
from jobmill.stores.redis.connection.pipelined import WAS_CLOSED, Line, pack
from jobmill.stores.redis.url import Address

if TYPE_CHECKING:
    from jobmill.stores.redis.connection.pool import Lines

# Zero would be for ever, and servers before 7.0.8 take less than 2 ms for zero.
LEAST_SECONDS = 0.002
# The server's own timer runs out first, unless the connection is dead.
GRACE_SECONDS = 1.0
# For putting a marker back that nobody wants any more.
LEAVE_SECONDS = 1.0
# A slot does not move more often than this within one call.
REDIRECTS = 5


class Blocking:
    """Pops markers, one call at a time. Raises StoreUnavailable when the connection breaks; the next call reconnects.

    Whoever takes a marker must claim or put it back. A call that is cancelled is ended at the server, and what it still
    brings is put back on the same connection: that is there exactly if a marker came over it.
    """

    def __init__(self, lines: Lines, name: str) -> None:
        self._lines = lines
        self._name = name
        self._line: Line | None = None
        self._address: Address | None = None
        self._id = 0
        self._popping: asyncio.Future[Any] | None = None
        self._putting_back: asyncio.Future[Any] | None = None
        self._closed = False

    async def pop(self, key: str, timeout_s: float) -> tuple[bytes, float] | None:
        """Wait for a marker and take it: its member and score; None when there was none for so long."""
        timeout_s = max(timeout_s, LEAST_SECONDS)
        data = pack(("BZPOPMIN", key, f"{timeout_s:.3f}"))
        while self._popping is not None and not self._popping.done():
            # Of a call that was cancelled, and is about to end.
            await asyncio.wait([self._popping])
        for _ in range(REDIRECTS):
            line = await self.connect(key)
            self._popping = popping = line.send(data, None, timeout_s + GRACE_SECONDS)
            try:
                reply = await asyncio.shield(popping)
            except asyncio.CancelledError:
                self._give_up(key, line, popping)
                raise
            except Moved as moved:
                self._lines.note(moved)
            else:
                return None if reply is None else (reply[1], float(reply[2]))
        raise StoreUnavailable(f"the slot of {key} moves between nodes of {self._lines.place.url}")

    async def connect(self, key: str) -> Line:
        """Be connected to the server that has this key."""
        if self._is_closed():
            raise StoreUnavailable(WAS_CLOSED)
        address = await self._lines.where(key)
        if self._line is not None and (self._line.ended is not None or address != self._address):
            self._line.end("the key is elsewhere")
            self._line = None
        if self._line is None:
            line = await self._lines.new(address, self._name)
            try:
                self._id = await line.send(pack(("CLIENT", "ID")))
            except BaseException:
                line.end(WAS_CLOSED)
                raise
            self._line, self._address = line, address
            if self._is_closed():  # meanwhile
                line.end(WAS_CLOSED)
                raise StoreUnavailable(WAS_CLOSED)
        return self._line

    def _is_closed(self) -> bool:
        return self._closed

    def _give_up(self, key: str, line: Line, popping: asyncio.Future[Any]) -> None:
        """Nobody waits for this any more. Without tasks: those are cancelled as well when a loop ends."""
        popping.add_done_callback(lambda _: self._put_back(key, line, popping))
        self._unblock()

    def _unblock(self) -> None:
        """Have the server end what is going on. Where nobody can tell it, that ends by its own time."""
        main = self._lines.ready(self._address)
        if main is not None and self._popping is not None and not self._popping.done():
            main.send(pack(("CLIENT", "UNBLOCK", self._id))).add_done_callback(_ignore)

    def _put_back(self, key: str, line: Line, popping: asyncio.Future[Any]) -> None:
        if popping.exception() is None and popping.result() is not None and line.ended is None:
            _, member, score = popping.result()
            # One that is there again is newer than ours.
            self._putting_back = line.send(pack(("ZADD", key, "NX", score, member)))
            self._putting_back.add_done_callback(_ignore)

    async def close(self) -> None:
        """Disconnect; a marker that comes in this moment is not lost. Closing twice is harmless."""
        self._closed = True
        self._lines.blocking.discard(self)
        line, self._line = self._line, None
        if line is not None:
            try:
                self._unblock()
                await _patiently(self._popping)
                await _patiently(self._putting_back)
            finally:
                line.end(WAS_CLOSED)
            await line.lost()

    def abandon(self) -> None:
        """Forget the connection, when the loop does not run and nothing can be awaited on it."""
        if self._line is not None:
            self._line.abandon()


async def _patiently(future: asyncio.Future[Any] | None) -> None:
    if future is not None:
        await asyncio.wait([future], timeout=LEAVE_SECONDS)


def _ignore(future: asyncio.Future[Any]) -> None:
    """What came of it changes nothing; an error that nobody looked at would be complained of."""
    if not future.cancelled():
        future.exception()
