"""Failover under load: workers find the new primary by themselves and go on.

Redis replicates after it has answered. What the old primary acknowledged in its last moments the new one may never have
heard of: a job is gone that was enqueued then, a settlement (the job runs again), a claim (two runs of one fence). None
of that can be told from here without WAIT, which no verb uses. So these tests promise less than those of a restart:
nobody hangs, every job that is there comes to one final state, and what is missing is of those moments.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import jobmill
from tests.e2e.redis_storms import stands_twice, storm, workplace
from tests.e2e.storms import ALL_ENDED_WITHIN_S, Storm
from tests.helpers import until
from tests.kit.redis import RedisServer
from tests.kit.redis_groups import RedisCluster, RedisSentinel

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis")]

#: How far a replica may be behind, far more than it ever is on one machine.
BEHIND_S = 1.0


@asynccontextmanager
async def failing_over(
    path: Path, url: str, primary: Callable[[], RedisServer], failover: Callable[[RedisServer], None]
) -> AsyncIterator[tuple[Storm, RedisServer]]:
    """Jobs are enqueued and worked while the primary is killed, and while the other takes over."""
    async with workplace(path, url) as (made, _):
        async with made.raging():
            await made.moves(100)
            surely = len(made.acknowledged)
            await asyncio.sleep(BEHIND_S)
            dead = primary()
            await asyncio.to_thread(dead.kill)
            perhaps = len(made.acknowledged) + 1  # one may have been on its way
            await asyncio.to_thread(failover, dead)
            await made.resumes()
            await made.moves(100)
            assert made.refused
            yield made, dead
        await all_have_ended(made, url, set(made.acknowledged[surely:perhaps]))
        await made.was_said("the redis store is unavailable")


async def all_have_ended(made: Storm, url: str, may_be_missing: set[str]) -> None:
    async with jobmill.connect(url) as jobs:

        async def all_ended() -> bool:
            return {one.state for one in await jobs.count()} == {"succeeded"}

        await until(all_ended, ALL_ENDED_WITHIN_S)
        ended = [job async for job in jobs.find_all()]
    assert {job.id for job in ended} >= set(made.acknowledged) - may_be_missing
    assert {job.id for job in ended} <= set(made.acknowledged)
    assert [job.id for job in ended if job.errors] == []
    assert await stands_twice(url) == []


async def test_a_node_of_a_cluster_that_is_killed(tmp_path: Path, own_redis_cluster: RedisCluster) -> None:
    cluster = own_redis_cluster
    url = cluster.url(prefix="{app}")
    async with failing_over(tmp_path, url, lambda: cluster.primary_of("{app}"), cluster.await_failover) as (made, dead):
        # It comes back, as a replica now, and tells nobody wrong.
        dead.start()
        await made.moves(100)


async def test_a_primary_that_is_killed_under_sentinels(tmp_path: Path, redis_sentinel: RedisSentinel) -> None:
    group = redis_sentinel
    async with failing_over(tmp_path, group.url(), group.primary, group.await_failover) as (made, dead):
        dead.start()
        await made.moves(100)


async def test_a_node_of_a_cluster_that_hands_over(tmp_path: Path, own_redis_cluster: RedisCluster) -> None:
    """As for an upgrade. The two agree on the moment, so that nothing is lost: all promises hold."""
    cluster = own_redis_cluster
    async with storm(tmp_path, cluster.url(prefix="{app}")) as made:
        for _ in range(3):
            old = cluster.primary_of("{app}")
            replica = next(node for node in cluster.nodes if follows(node, old))
            replica.ask("CLUSTER", "FAILOVER")
            await until(lambda replica=replica: replica.ask("ROLE")[0] == b"master", 20)  # type: ignore[misc]
            await made.resumes()
            await made.moves()
            # Which is one that the other can hand over to, the next time.
            await until(lambda old=old: old.ask("ROLE")[0] == b"slave" and old.ask("ROLE")[3] == b"connected", 20)  # type: ignore[misc]
        await made.was_said()


def follows(node: RedisServer, primary: RedisServer) -> bool:
    role = node.ask("ROLE")
    return bool(role[0] == b"slave" and role[2] == primary.port)
