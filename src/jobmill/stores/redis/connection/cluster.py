"""The connections to the nodes of a cluster, and which node has which slots.

redis-py's RedisCluster cannot do this: it repeats a command by itself when a connection broke, and an exchange that is
done twice claims jobs that nobody runs. As a mere source of the slot map it would need connections of its own and the
right to call COMMAND.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence

from jobmill.errors import StoreError, StoreUnavailable
from jobmill.stores.redis.connection.errors import Moved
from jobmill.stores.redis.connection.pipelined import PipelinedConnection, ignore_outcome, pack
from jobmill.stores.redis.connection.pool import LoopConnections
from jobmill.stores.redis.url import Address, RedisUrl, slot_of

# A slot does not move more often than this within one call.
MAX_REDIRECTS = 5
# For asking nodes, some of which may be down, until one answers.
MAP_SECONDS = 10.0

_ASKING = pack(("ASKING",))
_CLUSTER_SLOTS = pack(("CLUSTER", "SLOTS"))


class ClusterConnections(LoopConnections):
    """By node. The slot map is loaded first, and again when a reply contradicts it or a node is gone."""

    def __init__(self, url: RedisUrl) -> None:
        super().__init__(url)
        self._nodes: dict[int, Address] = {}
        self._is_stale = True

    def known(self, key: str) -> PipelinedConnection | None:
        """The connection to the node that has a key, where it is known and works."""
        address = None if self._is_stale else self._nodes.get(slot_of(key))
        return None if address is None else self.ready(address)

    async def where(self, key: str) -> Address | None:
        """The node that has a key."""
        address = self._nodes.get(slot_of(key))
        connection = self._connections.get(address)
        if self._is_stale or address is None or (connection is not None and connection.ended is not None):
            # A node that closed its connections may have lost its slots to a replica.
            await self.share("map", self._load_map)
            address = self._nodes.get(slot_of(key))
        if address is None:
            raise StoreUnavailable(f"no node of the cluster {self.url.text} serves the slot of {key} now")
        return address

    async def primaries(self) -> Sequence[Address | None]:
        """All nodes that have slots."""
        if self._is_stale:
            await self.share("map", self._load_map)
        return list(dict.fromkeys(self._nodes.values()))

    async def at(self, address: Address | None) -> PipelinedConnection:
        """The connection to a node; made first, if necessary."""
        try:
            return await super().at(address)
        except StoreUnavailable:
            self._is_stale = True
            raise

    # ------------------------------------------------------------------------------------------------ redirects

    def note(self, moved: Moved) -> None:
        """Learn from a reply that another node has a slot. More slots may have moved: the next call loads the map."""
        if not moved.ask:
            self._nodes[moved.slot] = moved.address
            self._is_stale = True

    async def follow(self, moved: Moved, data: bytes) -> object:
        """Send a command again, to the node that its reply names."""
        for _ in range(MAX_REDIRECTS):
            self.note(moved)
            connection = await self.at(moved.address)
            try:
                if moved.ask:
                    connection.send(_ASKING).add_done_callback(ignore_outcome)
                return await connection.send(data)
            except Moved as again:
                moved = again
        raise StoreUnavailable(f"a slot moves between nodes of the cluster {self.url.text}: {moved}")

    # ------------------------------------------------------------------------------------------------ the map

    async def _load_map(self) -> None:
        """Ask nodes, those with a connection first, until one answers. The order is random: a node may be mistaken."""
        addresses = list({*self._nodes.values(), *self.url.hosts})
        random.shuffle(addresses)
        addresses.sort(key=lambda address: self.ready(address) is None)
        last_error = StoreUnavailable(f"the cluster {self.url.text} could not be reached within {MAP_SECONDS:g} s")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MAP_SECONDS):
                for address in addresses:
                    try:
                        self._nodes = await self._ask(address)
                    except StoreUnavailable as error:
                        last_error = error
                    else:
                        self._is_stale = False
                        return
        raise last_error

    async def _ask(self, address: Address) -> dict[int, Address]:
        connection = await self.at(address)
        try:
            ranges = await connection.send(_CLUSTER_SLOTS)
        except StoreError as error:
            if "cluster support disabled" in str(error):
                raise StoreError(f"{self.url.text} is no cluster: write redis://…; {error}") from error
            raise
        nodes: dict[int, Address] = {}
        for first, last, (host, port, *_), *_ in ranges:
            # A node that does not know its own name leaves it out: then it is the host that was asked.
            node = Address((host or b"").decode() or address.host, port)
            nodes.update(dict.fromkeys(range(first, last + 1), node))
        return nodes
