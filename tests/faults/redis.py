"""The faults of a Redis server."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.faults.operations import ServerBehindProxy, again_and_again
from tests.kit.proxy import Proxy
from tests.kit.redis import RedisServer


class FaultyRedis(ServerBehindProxy):
    """Redis, under a prefix of its own; it writes each command to disk before it answers."""

    store_name = "redis"
    #: The keys of a queue in which BullMQ keeps ids, by their type.
    LISTS = ("active", "wait", "paused")
    SORTED_SETS = ("prioritized", "delayed", "waiting-children", "completed", "failed")

    def __init__(self, server: RedisServer, proxy: Proxy, folder: Path, direct_url: str) -> None:
        super().__init__(server, proxy, folder, direct_url)
        self.redis = server
        self.prefix = parse_qs(urlsplit(direct_url).query)["prefix"][0]
        self.faults = {
            **self.faults,
            "terminate": self._terminated,
            "crowd": self._crowded,
            "read_only": self._read_only,
            "full_disk": self._full,
        }

    async def duplicates(self) -> list[str]:
        """The ids that stand in two states of the queue `default`, or twice in one."""
        return ids_in_two_states(self.redis, self.prefix)

    @contextlib.asynccontextmanager
    async def _terminated(self) -> AsyncIterator[None]:
        with self.redis.client() as administrator:

            def terminate() -> None:
                administrator.client_kill_filter(_type="normal", skipme=True)

            async with again_and_again(terminate):
                yield

    @contextlib.asynccontextmanager
    async def _crowded(self) -> AsyncIterator[None]:
        with self.redis.client() as administrator:
            administrator.config_set("maxclients", 1)
            administrator.client_kill_filter(_type="normal", skipme=True)
            try:
                yield
            finally:
                administrator.config_set("maxclients", 1_000)

    @contextlib.asynccontextmanager
    async def _read_only(self) -> AsyncIterator[None]:
        """As the replica of a server that is not there."""
        self.redis.ask("REPLICAOF", "127.0.0.1", "1")
        try:
            yield
        finally:
            self.redis.ask("REPLICAOF", "NO", "ONE")

    @contextlib.asynccontextmanager
    async def _full(self) -> AsyncIterator[None]:
        """Redis keeps its data in memory."""
        self.redis.ask("CONFIG", "SET", "maxmemory", "1")
        try:
            yield
        finally:
            self.redis.ask("CONFIG", "SET", "maxmemory", "0")


def ids_in_two_states(server: RedisServer, prefix: str, queue: str = "default") -> list[str]:
    """The ids that stand in two states of a queue, or twice in one, as an administrator sees them."""
    found: Counter[Any] = Counter()
    with server.client() as client:
        for state in FaultyRedis.LISTS:
            found.update(client.lrange(f"{prefix}:{queue}:{state}", 0, -1))
        for state in FaultyRedis.SORTED_SETS:
            found.update(client.zrange(f"{prefix}:{queue}:{state}", 0, -1))
    return [id.decode() for id, count in found.items() if count > 1]
