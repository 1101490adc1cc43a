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
from tests.interop.scene import Scene, in_layout, scene_at
from tests.kit.node import NodeProcess, Packages

if TYPE_CHECKING:
    from tests.interop.twins import Twins
    from tests.kit.redis import Rooms

#: A Friday morning, 08:00 in UTC.
BEGIN_MS = 1_800_000_000_000


@pytest.fixture(scope="session")
def bullmq(request: pytest.FixtureRequest) -> str:
    """The package that Node imports; `versions` runs a test with each."""
    return str(getattr(request, "param", "bullmq"))


@pytest.fixture(scope="session")
async def node_ops(node_packages: Packages, bullmq: str) -> AsyncIterator[NodeProcess]:
    """BullMQ for Node, one operation at a time; shared, for it keeps nothing between tests but connections."""
    async with NodeProcess(node_packages, "ops.mjs", bullmq) as process:
        yield process


@pytest.fixture
async def both(
    request: pytest.FixtureRequest, node_ops: NodeProcess, bullmq: str, redis_server: Rooms
) -> AsyncIterator[Twins]:
    """Node's queues and ours, each in a database of its own, at a time that stands still."""
    from jobmill.stores.redis import RedisStore
    from tests.interop.our_side import OurSide
    from tests.interop.twins import Twins

    clock = ManualClock(BEGIN_MS)
    prefix = f"t{uuid.uuid4().hex[:12]}"
    of_all = request.node.name.replace(f"-{bullmq}]", "]")  # both versions are meant to be the same
    meant = MEANT.get(request.node.originalname, {}) | MEANT.get(of_all, {})
    async with contextlib.AsyncExitStack() as stack:
        sides = []
        for _ in range(2):
            url = stack.enter_context(redis_server.database())
            redis = await stack.enter_async_context(Redis.from_url(url))
            sides.append(NodeSide(node_ops, redis, url, prefix, clock))
        node, beside = sides
        url = in_layout(f"{beside.url}?prefix={prefix}", bullmq)
        store = RedisStore(url, clock=clock, linger_ms=0)
        await store.open()
        stack.push_async_callback(store.close)
        twins = Twins(node, OurSide(store, beside), clock, meant)
        yield twins
        await node_ops.ask("forget", prefix=prefix)
    assert set(meant) == twins.met, f"no longer differs, take it off the list: {set(meant) - twins.met}"


@pytest.fixture
async def scene(redis_url: str, node_packages: Packages, tmp_path: Path, bullmq: str) -> AsyncIterator[Scene]:
    """A queue with Node and Python on it."""
    async with scene_at(in_layout(redis_url, bullmq), node_packages, tmp_path, bullmq) as made:
        yield made


@pytest.fixture
async def scene5(redis_url: str, node_packages: Packages, tmp_path: Path) -> AsyncIterator[Scene]:
    """The same in the layout of BullMQ 5."""
    async with scene_at(f"{redis_url}&layout=5", node_packages, tmp_path) as made:
        yield made
