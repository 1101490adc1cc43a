"""The connections of one event loop: made when they are first needed, and replaced when they break."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from jobmill.errors import StoreError, StoreUnavailable
from jobmill.stores.redis.connection.connect import connect
from jobmill.stores.redis.connection.errors import Moved
from jobmill.stores.redis.connection.pipelined import STORE_CLOSED, PipelinedConnection, ignore_outcome
from jobmill.stores.redis.url import Address, RedisUrl

T = TypeVar("T")


class LoopConnections:
    """One connection to each server. All callers share it, and the attempt to connect it.

    Where there is one server, or one primary, its address is None: sentinels are asked again for each connection.
    """

    def __init__(self, url: RedisUrl) -> None:
        self.url = url
        #: Shown by CLIENT LIST. No worker has this name: the second part of a worker's name is base64.
        self._name = f"{url.prefix}:jobmill"
        self._connections: dict[Address | None, PipelinedConnection] = {}
        #: Attempts that all callers share: to connect, by address.
        self._attempts: dict[object, asyncio.Task[Any]] = {}
        #: What uses these connections and is closed before them: markers by queue, see wake.py; streams, see hints.py.
        self.watches: dict[str, Any] = {}
        self._closed = False

    # ------------------------------------------------------------------------------------------------ servers

    def known(self, key: str) -> PipelinedConnection | None:
        """The connection to the server that has a key, where it is known and works."""
        return self.ready(None)

    async def to(self, key: str) -> PipelinedConnection:
        """The connection to the server that has a key."""
        return await self.at(await self.where(key))

    async def where(self, key: str) -> Address | None:
        """The server that has a key."""
        return None

    async def primaries(self) -> Sequence[Address | None]:
        """All servers that take writes."""
        return (None,)

    def note(self, moved: Moved) -> None:
        """Learn from a reply that another server has a key."""

    async def follow(self, moved: Moved, data: bytes) -> object:
        """Send a command again, to the server that its reply names."""
        raise StoreError(
            f"Redis at {self.url.text} is a node of a cluster: write redis+cluster://…; it replied: {moved}"
        )

    # ------------------------------------------------------------------------------------------------ connections

    def ready(self, address: Address | None) -> PipelinedConnection | None:
        """The connection to a server, where there is one that works."""
        connection = self._connections.get(address)
        return connection if connection is not None and connection.ended is None else None

    async def at(self, address: Address | None) -> PipelinedConnection:
        """The connection to a server; made first, if necessary."""
        connection = self.ready(address)
        return connection if connection is not None else await self.share(address, lambda: self._connect(address))

    async def _connect(self, address: Address | None) -> PipelinedConnection:
        connection = self._connections[address] = await connect(self.url, address, self._name)
        return connection

    def begin(self, what: object, make: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Do something in a task of its own, once at a time."""
        attempt: asyncio.Task[T] | None = self._attempts.get(what)
        if attempt is None:
            if self._closed:
                raise StoreUnavailable(STORE_CLOSED)
            attempt = self._attempts[what] = asyncio.get_running_loop().create_task(make())
            attempt.add_done_callback(lambda _: self._attempts.pop(what))
            attempt.add_done_callback(ignore_outcome)
        return attempt

    async def share(self, what: object, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The same, and wait for it: a caller may be cancelled while the others go on waiting."""
        attempt = self.begin(what, make)
        await asyncio.wait([attempt])
        if attempt.cancelled():
            raise StoreUnavailable(STORE_CLOSED)
        error = attempt.exception()
        if isinstance(error, StoreError):
            # Each caller raises an error of its own: an error collects the traceback of its caller.
            raise type(error)(*error.args) from error
        return attempt.result()

    # ------------------------------------------------------------------------------------------------ the end

    async def close(self) -> None:
        """Close all connections, once no marker can be lost by it."""
        self._closed = True
        watches, self.watches = self.watches, {}
        await asyncio.gather(*(watch.close() for watch in watches.values()))
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        for connection in self._connections.values():
            connection.end(STORE_CLOSED)
        await asyncio.gather(*(connection.lost() for connection in self._connections.values()))

    def abandon(self) -> None:
        """Forget all connections, where the event loop does not run and nothing can be awaited on it."""
        self._closed = True
        for resource in (*self.watches.values(), *self._connections.values()):
            resource.abandon()
