"""Failover under load: workers find the new primary by themselves, and resume.

Redis replicates after it has answered. The new primary may not know what the old one acknowledged in its last moments:
a job (it is lost), a settlement (the job runs again), a claim (two runs of one fence). Only WAIT would tell, which no
verb uses. So these tests promise less than those of a restart: nobody hangs, every job that is there comes to one final
state, and only jobs of those moments are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from tests.faults.load import Load, working
from tests.faults.redis import ids_in_two_states
from tests.helpers import until
from tests.kit.redis import RedisServer
from tests.kit.redis_groups import RedisCluster, RedisSentinel
from tests.kit.workers import WorkerProcesses

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis")]

#: How far a replica may be behind: far more than it ever is on one machine.
BEHIND_S = 1.0

PREFIX = "{app}"


@contextmanager
def processes(folder: Path, url: str) -> Iterator[WorkerProcesses]:
    workers = WorkerProcesses(folder, url)
    try:
        yield workers
    finally:
        workers.end()


@asynccontextmanager
async def failing_over(
    workers: WorkerProcesses, primary: Callable[[], RedisServer], failover: Callable[[RedisServer], None]
) -> AsyncIterator[tuple[Load, RedisServer]]:
    """Jobs are enqueued and worked while the primary is killed, and while the other takes over."""
    async with working(workers) as load:
        async with load.enqueued():
            await load.moves(100)
            surely = len(load.acknowledged)
            await asyncio.sleep(BEHIND_S)
            dead = primary()
            await asyncio.to_thread(dead.kill)
            perhaps = len(load.acknowledged) + 1  # one may have been on its way
            await asyncio.to_thread(failover, dead)
            await load.resumes()
            await load.moves(100)
            assert load.refused
            yield load, dead
        await load.all_have_succeeded()
        ended = [job async for job in load.jobs.find_all(queue="default")]
        found, may_be_missing = {job.id for job in ended}, set(load.acknowledged[surely:perhaps])
        assert set(load.acknowledged) - may_be_missing <= found <= set(load.acknowledged)
        assert [job.id for job in ended if job.errors] == []
        await load.is_noticed()
        load.check_workers()


async def test_a_node_of_a_cluster_that_is_killed(tmp_path: Path, own_redis_cluster: RedisCluster) -> None:
    cluster = own_redis_cluster
    with processes(tmp_path, cluster.url(prefix=PREFIX)) as workers:
        async with failing_over(workers, lambda: cluster.primary_of(PREFIX), cluster.await_failover) as (load, dead):
            # It comes back as a replica, and misleads nobody.
            dead.start()
            await load.moves(100)
        assert ids_in_two_states(cluster.primary_of(PREFIX), PREFIX) == []


async def test_a_primary_that_is_killed_under_sentinels(tmp_path: Path, redis_sentinel: RedisSentinel) -> None:
    group = redis_sentinel
    with processes(tmp_path, group.url()) as workers:
        async with failing_over(workers, group.primary, group.await_failover) as (load, dead):
            dead.start()
            await load.moves(100)
        assert ids_in_two_states(group.primary(), "bull") == []


@pytest.mark.extended
async def test_a_node_of_a_cluster_that_hands_over(tmp_path: Path, own_redis_cluster: RedisCluster) -> None:
    """As for an upgrade. The two nodes agree on the moment, so that nothing is lost: all promises hold."""
    cluster = own_redis_cluster
    with processes(tmp_path, cluster.url(prefix=PREFIX)) as workers:
        async with working(workers) as load:
            async with load.enqueued():
                for _ in range(3):
                    await hand_over(cluster)
                    await load.resumes()
                    await load.moves()
                load.check_workers()
            await load.check()
        assert ids_in_two_states(cluster.primary_of(PREFIX), PREFIX) == []


async def hand_over(cluster: RedisCluster) -> None:
    """The replica of the node becomes the primary, and follows it afterwards, so that it can hand over in turn."""
    old = cluster.primary_of(PREFIX)
    replica = next(node for node in cluster.nodes if follows(node, old))
    replica.ask("CLUSTER", "FAILOVER")
    await until(lambda: replica.ask("ROLE")[0] == b"master", 30)
    await until(lambda: old.ask("ROLE")[0] == b"slave" and old.ask("ROLE")[3] == b"connected", 30)


def follows(node: RedisServer, primary: RedisServer) -> bool:
    role = node.ask("ROLE")
    return bool(role[0] == b"slave" and role[2] == primary.port)
