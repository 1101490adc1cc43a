"""What tests with Node share: a Node process for golden steps, and the two databases where they are done."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from jobmill.testing import ManualClock
from tests.interop.meant import MEANT
from tests.interop.node_side import NodeSide
from tests.interop.scene import Scene, scene_at
from tests.kit.node import NodeProcess, Packages

if TYPE_CHECKING:
    from tests.interop.twins import Twins
    from tests.kit.redis import Rooms

#: A Friday morning, 08:00 in UTC.
BEGIN_MS = 1_800_000_000_000


@pytest.fixture(scope="session")
async def node_ops(node_packages: Packages) -> AsyncIterator[NodeProcess]:
    """BullMQ for Node, one operation at a time; shared, for it keeps nothing between tests but connections."""
    async with NodeProcess(node_packages, "ops.mjs") as process:
        yield process


@pytest.fixture
async def both(request: pytest.FixtureRequest, node_ops: NodeProcess, redis_server: Rooms) -> AsyncIterator[Twins]:
    """Node's queues and ours, each in a database of its own, at a time that stands still."""
    from jobmill.stores.redis import RedisStore
    from tests.interop.our_side import OurSide
    from tests.interop.twins import Twins

    clock = ManualClock(BEGIN_MS)
    prefix = f"t{uuid.uuid4().hex[:12]}"
    meant = MEANT.get(request.node.originalname, {}) | MEANT.get(request.node.name, {})
    async with contextlib.AsyncExitStack() as stack:
        sides = []
        for _ in range(2):
            url = stack.enter_context(redis_server.database())
            redis = await stack.enter_async_context(Redis.from_url(url))
            sides.append(NodeSide(node_ops, redis, url, prefix, clock))
        node, beside = sides
        store = RedisStore(f"{beside.url}?prefix={prefix}", clock=clock, linger_ms=0)
        await store.open()
        stack.push_async_callback(store.close)
        twins = Twins(node, OurSide(store, beside), clock, meant)
        yield twins
        await node_ops.ask("forget", prefix=prefix)
    assert set(meant) == twins.met, f"no longer differs, take it off the list: {set(meant) - twins.met}"


@pytest.fixture
async def scene(redis_url: str, node_packages: Packages, tmp_path: Path) -> AsyncIterator[Scene]:
    """A queue with Node and Python on it."""
    async with scene_at(redis_url, node_packages, tmp_path) as made:
        yield made


@pytest.fixture
async def scene5(redis_url: str, node_packages: Packages, tmp_path: Path) -> AsyncIterator[Scene]:
    """The same in the layout of BullMQ 5."""
    async with scene_at(f"{redis_url}&layout=5", node_packages, tmp_path) as made:
        yield made
