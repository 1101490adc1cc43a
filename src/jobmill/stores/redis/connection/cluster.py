"""The lines to the nodes of a cluster, and which of them has which slots.

Not redis-py's RedisCluster: it sends a command again by itself when its connection broke, and an exchange that is done
twice unseen claims jobs that nobody runs. All that it would spare us is asking a node for CLUSTER SLOTS.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from jobmill.errors import StoreError, StoreUnavailable
from jobmill.stores.redis.connection.errors import Moved
from jobmill.stores.redis.connection.pipelined import Line, pack
from jobmill.stores.redis.connection.pool import Lines
from jobmill.stores.redis.url import Address, Place, slot_of

# A slot does not move more often than this within one call.
REDIRECTS = 5
# For asking nodes, some of which may be gone, until one knows.
MAP_SECONDS = 10.0

_ASKING = pack(("ASKING",))
_CLUSTER_SLOTS = pack(("CLUSTER", "SLOTS"))


class ClusterLines(Lines):
    """By node. Which node has a key is asked first, and again when one has said otherwise or is gone."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._nodes: dict[int, Address] = {}
        self._is_stale = True
        self._mapping: asyncio.Task[None] | None = None

    def known(self, key: str) -> Line | None:
        """The line to the node that has a key, where it is known and works."""
        if self._is_stale:
            return None
        address = self._nodes.get(slot_of(key))
        return None if address is None else self.ready(address)

    async def where(self, key: str) -> Address | None:
        """The node that has a key."""
        slot = slot_of(key)
        address = self._nodes.get(slot)
        line = self._lines.get(address)
        if self._is_stale or address is None or (line is not None and line.ended is not None):
            # A node that has hung up may have lost its slots to a replica.
            await self._map()
            address = self._nodes.get(slot)
        if address is None:
            raise StoreUnavailable(f"no node of the cluster {self.place.url} serves the slot of {key} now")
        return address

    async def primaries(self) -> Sequence[Address | None]:
        """All nodes that have slots."""
        if self._is_stale:
            await self._map()
        return list(dict.fromkeys(self._nodes.values()))

    async def at(self, address: Address | None) -> Line:
        """The line to a node; connected, if need be."""
        try:
            return await super().at(address)
        except StoreUnavailable:
            self._is_stale = True
            raise

    # ------------------------------------------------------------------------------------------------ moves

    def note(self, moved: Moved) -> None:
        """A node said that another one has a slot. Others may have moved with it: the next call asks."""
        if not moved.ask:
            self._nodes[moved.slot] = moved.address
            self._is_stale = True

    async def follow(self, moved: Moved, data: bytes) -> object:
        """Send a command again, to where its reply says."""
        for _ in range(REDIRECTS):
            self.note(moved)
            line = await self.at(moved.address)
            try:
                if not moved.ask:
                    return await line.send(data)
                _, reply = await line.send(_ASKING + data, 2)
                if isinstance(reply, StoreError):
                    raise reply
                return reply
            except Moved as again:
                moved = again
        raise StoreUnavailable(f"a slot moves between nodes of the cluster {self.place.url}: {moved}")

    # ------------------------------------------------------------------------------------------------ the map

    async def _map(self) -> None:
        """Ask which node has which slots; many callers share the answer."""
        await self._share("map", self._ask_all)

    async def _ask_all(self) -> None:
        # The first that answers is believed, so not always the same is asked first. Those that we are connected to are
        # more likely to answer than others.
        addresses = list({*self._nodes.values(), *self.place.hosts})
        random.shuffle(addresses)
        addresses.sort(key=lambda address: self.ready(address) is None)
        trouble: Exception = StoreUnavailable(
            f"the cluster {self.place.url} could not be reached within {MAP_SECONDS:g} s"
        )
        try:
            async with asyncio.timeout(MAP_SECONDS):
                for address in addresses:
                    try:
                        self._nodes = await self._ask(address)
                    except StoreUnavailable as error:
                        trouble = error
                    else:
                        self._is_stale = False
                        return
        except TimeoutError:
            pass
        raise trouble

    async def _ask(self, address: Address) -> dict[int, Address]:
        line = await self.at(address)
        try:
            ranges = await line.send(_CLUSTER_SLOTS)
        except StoreError as error:
            if "cluster support disabled" in str(error):
                raise StoreError(f"{self.place.url} is no cluster: write redis://…; {error}") from error
            raise
        nodes: dict[int, Address] = {}
        for first, last, (host, port, *_), *_ in ranges:
            # Nodes that do not know their own name leave it out: it is that of the one that says so.
            node = Address((host or b"").decode() or address.host, port)
            nodes.update(dict.fromkeys(range(first, last + 1), node))
        return nodes
