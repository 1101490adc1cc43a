"""Who is measured on Redis, and the server with so many jobs of one of them in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.lab import Lab
from bench.ours import redis as ours
from bench.peers import (
    arq_redis,
    bullmq_node_redis,
    bullmq_python_redis,
    celery_redis,
    dramatiq_redis,
    huey_redis,
    rq_redis,
    saq_redis,
    taskiq_redis,
)
from bench.peers.peer import Peer, in_python

OURS = in_python(ours, bulk=ours.bulk)
NODE = bullmq_node_redis.PEER
PYTHON = in_python(bullmq_python_redis, bulk=bullmq_python_redis.bulk)

PEERS = (
    OURS,
    NODE,
    PYTHON,
    in_python(huey_redis),
    in_python(rq_redis, bulk=rq_redis.bulk, most_slots=rq_redis.MOST_SLOTS),
    in_python(saq_redis),
    in_python(taskiq_redis),
    in_python(dramatiq_redis),
    in_python(celery_redis),
    in_python(arq_redis),
)


@contextmanager
def filled(lab: Lab, peer: Peer, jobs: int) -> Iterator[str]:
    """The URL of the server, which holds so many waiting jobs of this contender only; emptied afterwards."""
    with lab.servers.redis.emptied() as url:
        if jobs:
            peer.fill(url, jobs)
        yield url
