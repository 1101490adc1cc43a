"""The link to the servers: what the verbs stand on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from jobmill.errors import StoreError
from jobmill.stores.common.per_loop import PerLoop
from jobmill.stores.redis.connection.blocking import Blocking
from jobmill.stores.redis.connection.cluster import ClusterLines
from jobmill.stores.redis.connection.errors import Moved, NoScript
from jobmill.stores.redis.connection.pipelined import Word, pack
from jobmill.stores.redis.connection.pool import Lines
from jobmill.stores.redis.script import Script
from jobmill.stores.redis.url import Place


class Link:
    """Commands to the servers of a place, from any event loop. Replies come as they are: bytes, undecoded.

    StoreUnavailable when the server cannot be used now: whether it executed the command is unknown. StoreError when it
    refuses.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._lines = PerLoop(lambda: ClusterLines(place) if place.kind == "cluster" else Lines(place))

    async def call(self, key: str, *command: Word) -> Any:
        """One command, sent to the node of `key`."""
        return await self._send(key, pack(command))

    async def many(self, key: str, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Several commands, written at once. When one fails that is raised; the others were done all the same."""
        if not commands:
            return []
        lines = self._lines.here()
        packed = [pack(tuple(command)) for command in commands]
        line = lines.known(key) or await lines.to(key)
        replies: list[Any] = await line.send(b"".join(packed), len(packed))
        for n, reply in enumerate(replies):
            if isinstance(reply, Moved):
                replies[n] = await lines.follow(reply, packed[n])
            elif isinstance(reply, StoreError):
                raise reply
        return replies

    async def run(self, script: Script, key: str, args: Sequence[Word]) -> Any:
        """A script with one key."""
        try:
            return await self._send(key, pack(("EVALSHA", script.sha, 1, key, *args)))
        except NoScript:
            # This makes it known as well, and works however often somebody says SCRIPT FLUSH.
            return await self._send(key, pack(("EVAL", script.source, 1, key, *args)))

    async def everywhere(self, *command: Word) -> list[Any]:
        """One command on each primary; their replies."""
        lines = self._lines.here()
        data = pack(command)
        found = [await lines.at(address) for address in await lines.primaries()]
        return await asyncio.gather(*(line.send(data) for line in found))

    async def scan(self, pattern: str, type: str, count: int = 10_000) -> list[bytes]:
        """All keys of this pattern and type, of each primary; while others write, some may come twice."""
        lines = self._lines.here()
        found: list[bytes] = []
        for address in await lines.primaries():
            line = await lines.at(address)
            cursor = b"0"
            while True:
                cursor, keys = await line.send(pack(("SCAN", cursor, "MATCH", pattern, "COUNT", count, "TYPE", type)))
                found += keys
                if cursor == b"0":
                    break
        return found

    async def blocking(self, key: str, name: str) -> Blocking:
        """A connection of its own for this key, of this loop, under a name that CLIENT LIST shows."""
        lines = self._lines.here()
        blocking = Blocking(lines, name)
        lines.blocking.add(blocking)
        try:
            await blocking.connect(key)
        except BaseException:
            lines.blocking.discard(blocking)
            raise
        return blocking

    async def close(self) -> None:
        """Give everything back, in all loops. Closing twice is harmless; what is called later connects again."""
        await self._lines.close()

    async def _send(self, key: str, data: bytes) -> Any:
        lines = self._lines.here()
        try:
            return await (lines.known(key) or await lines.to(key)).send(data)
        except Moved as moved:
            return await lines.follow(moved, data)
