"""The lines of one event loop: made when they are first needed, and again when they are broken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from jobmill.errors import StoreError, StoreUnavailable
from jobmill.stores.redis.connection.blocking import Blocking
from jobmill.stores.redis.connection.connect import connect
from jobmill.stores.redis.connection.errors import Moved
from jobmill.stores.redis.connection.pipelined import WAS_CLOSED, Line
from jobmill.stores.redis.url import Address, Place

T = TypeVar("T")


class Lines:
    """One line to each server, shared by all callers, like the attempt to connect it.

    Where there is one server, or one primary, its address is None: sentinels are asked anew for each connection.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        #: CLIENT LIST tells it from workers, whose names BullMQ counts: their second part is base64.
        self._name = f"{place.prefix}:jobmill"
        self._lines: dict[Address | None, Line] = {}
        #: What goes on once for all who want it: connecting, by address.
        self._attempts: dict[object, asyncio.Task[Any]] = {}
        #: Connections that are not shared, but end with the others.
        self.blocking: set[Blocking] = set()
        self._closed = False

    # ------------------------------------------------------------------------------------------------ which

    def known(self, key: str) -> Line | None:
        """The line to the server that has a key, where it is known and works."""
        return self.ready(None)

    async def to(self, key: str) -> Line:
        """The line to the server that has a key."""
        return await self.at(await self.where(key))

    async def where(self, key: str) -> Address | None:
        """The server that has a key."""
        return None

    async def primaries(self) -> Sequence[Address | None]:
        """All that take writes."""
        return (None,)

    def note(self, moved: Moved) -> None:
        """A server said that another one has a key."""
        raise self._mistaken(moved)

    async def follow(self, moved: Moved, data: bytes) -> object:
        """Send a command again, to where its reply says."""
        raise self._mistaken(moved)

    def _mistaken(self, moved: Moved) -> StoreError:
        return StoreError(
            f"Redis at {self.place.url} is a node of a cluster: write redis+cluster://…; it said: {moved}"
        )

    # ------------------------------------------------------------------------------------------------ to and fro

    def ready(self, address: Address | None) -> Line | None:
        """The line to a server, where there is one that works."""
        line = self._lines.get(address)
        return line if line is not None and line.ended is None else None

    async def at(self, address: Address | None) -> Line:
        """The line to a server; connected, if need be."""
        line = self.ready(address)
        return line if line is not None else await self._share(address, lambda: self._connect(address))

    async def _connect(self, address: Address | None) -> Line:
        line = self._lines[address] = await self.new(address, self._name)
        return line

    async def _share(self, what: object, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do something in a task of its own: those who wait for it may give up, and others go on waiting."""
        attempt: asyncio.Task[T] | None = self._attempts.get(what)
        if attempt is None:
            if self._closed:
                raise StoreUnavailable(WAS_CLOSED)
            attempt = self._attempts[what] = asyncio.get_running_loop().create_task(make())
            attempt.add_done_callback(lambda done: self._forget(what, done))
        await asyncio.wait([attempt])
        if attempt.cancelled():
            raise StoreUnavailable(WAS_CLOSED)
        error = attempt.exception()
        if isinstance(error, StoreError):
            # To each an error of its own.
            raise type(error)(*error.args) from error
        return attempt.result()

    def _forget(self, what: object, attempt: asyncio.Task[Any]) -> None:
        del self._attempts[what]
        if not attempt.cancelled():
            # Whoever waited may have given up; an error that nobody looked at would be complained of.
            attempt.exception()

    async def new(self, address: Address | None, name: str) -> Line:
        """Another line to a server, for whoever asks."""
        return await connect(self.place, address, name)

    # ------------------------------------------------------------------------------------------------ the end

    async def close(self) -> None:
        """Cut all off, once no marker is lost by it."""
        self._closed = True
        await asyncio.gather(*(one.close() for one in list(self.blocking)))
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        for line in self._lines.values():
            line.end(WAS_CLOSED)
        await asyncio.gather(*(line.lost() for line in self._lines.values()))

    def abandon(self) -> None:
        """Forget all, when the loop does not run and nothing can be awaited on it."""
        self._closed = True
        for blocking in self.blocking:
            blocking.abandon()
        for line in self._lines.values():
            line.abandon()
