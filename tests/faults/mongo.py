"""The faults of a MongoDB server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from tests.faults.operations import ServerBehindProxy, again_and_again
from tests.kit.mongo import MongoReplicaSet, MongoServer
from tests.kit.proxy import Proxy


class FaultyMongo(ServerBehindProxy):
    """MongoDB, a replica set of one member, at a database of its own."""

    store_name = "mongo"

    def __init__(self, group: MongoReplicaSet, proxy: Proxy, folder: Path, direct_url: str) -> None:
        self.group = group
        self.node: MongoServer = group.nodes[0]
        super().__init__(self.node, proxy, folder, direct_url)
        self.faults = {
            **self.faults,
            "terminate": self._terminated,
            "read_only": self._read_only,
            "full_disk": self._full,
        }

    def restart(self) -> None:
        """Start the member, and wait until it is the primary."""
        self.group.start()

    @contextlib.asynccontextmanager
    async def _terminated(self) -> AsyncIterator[None]:
        """A failpoint closes the connection in the middle of some commands."""
        commands = ("insert", "update", "findAndModify", "bulkWrite", "find", "aggregate")
        async with again_and_again(lambda: self.node.fail(*commands, times=2, closeConnection=True)):
            yield
        self.node.fail_no_more()

    @contextlib.asynccontextmanager
    async def _read_only(self) -> AsyncIterator[None]:
        """The primary steps down, and nobody is elected."""
        self.node.ask("replSetStepDown", 600, force=True)
        try:
            yield
        finally:
            self.node.ask("replSetFreeze", 0)
            await asyncio.to_thread(self.group.await_primary)

    @contextlib.asynccontextmanager
    async def _full(self) -> AsyncIterator[None]:
        """By its own failpoint, with the error OutOfDiskSpace for each write."""
        self.node.fail("insert", "update", "findAndModify", "bulkWrite", times=None, errorCode=14_031)
        try:
            yield
        finally:
            self.node.fail_no_more()
