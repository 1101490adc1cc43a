"""Commands and scripts, sent to the server that has their key, from any event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from jobmill.stores.common.per_loop import PerLoop
from jobmill.stores.redis.connection.cluster import ClusterConnections
from jobmill.stores.redis.connection.errors import Moved, NoScript
from jobmill.stores.redis.connection.pipelined import Word, pack
from jobmill.stores.redis.connection.pool import LoopConnections
from jobmill.stores.redis.scripts import Script
from jobmill.stores.redis.url import RedisUrl


class RedisClient:
    """Replies come as the server sends them: bytes, not decoded.

    StoreUnavailable when the server cannot be used now: whether it executed the command is unknown. StoreError when it
    refuses.
    """

    def __init__(self, url: RedisUrl) -> None:
        self.url = url
        self._per_loop = PerLoop(lambda: (ClusterConnections if url.kind == "cluster" else LoopConnections)(url))
        #: The connections of the running event loop.
        self.here: Callable[[], LoopConnections] = self._per_loop.here

    async def call(self, key: str, *command: Word) -> Any:
        """One command, sent to the node of `key`."""
        return await self._send(key, pack(command))

    async def many(self, key: str, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Several commands, sent before the first reply. The first error is raised; the others were executed."""
        packed = [pack(tuple(command)) for command in commands]
        connections = self.here()
        connection = await connections.to(key)
        replies = await asyncio.gather(*[connection.send(data) for data in packed], return_exceptions=True)
        for n, reply in enumerate(replies):
            if isinstance(reply, Moved):
                replies[n] = await connections.follow(reply, packed[n])
            elif isinstance(reply, BaseException):
                raise reply
        return replies

    async def run(self, script: Script, key: str, args: Sequence[Word]) -> Any:
        """A script with one key."""
        try:
            return await self._send(key, pack(("EVALSHA", script.sha, 1, key, *args)))
        except NoScript:
            # The server knows the script from now on. EVAL works even where somebody keeps calling SCRIPT FLUSH.
            return await self._send(key, pack(("EVAL", script.source, 1, key, *args)))

    async def scan(self, pattern: str, type: str, count: int = 10_000) -> list[bytes]:
        """All keys of this pattern and type, of each primary; while others write, some may come twice."""
        connections = self.here()
        found: list[bytes] = []
        for address in await connections.primaries():
            connection = await connections.at(address)
            cursor = None
            while cursor != b"0":
                scan = ("SCAN", cursor or "0", "MATCH", pattern, "COUNT", count, "TYPE", type)
                cursor, keys = await connection.send(pack(scan))
                found += keys
        return found

    async def close(self) -> None:
        """Close all connections, in all event loops. Closing twice is harmless; a later call connects again."""
        await self._per_loop.close()

    async def _send(self, key: str, data: bytes) -> Any:
        connections = self.here()
        try:
            return await (connections.known(key) or await connections.to(key)).send(data)
        except Moved as moved:
            return await connections.follow(moved, data)
