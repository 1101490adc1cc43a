"""Who is measured on Redis, and the server with so many jobs of one of them in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.child import run as in_child
from bench.contenders import Contender
from bench.lab import Lab
from bench.ours import redis as ours
from bench.peers import bullmq_node_redis as node
from bench.peers import bullmq_python_redis as python

OURS = Contender("jobmill", lambda: None, lambda url, jobs: in_child(ours.fill, url=url, jobs=jobs))
NODE = Contender(node.ABOUT.name, node.missing, node.fill)
PYTHON = Contender(python.ABOUT.name, python.missing, lambda url, jobs: in_child(python.fill, url=url, jobs=jobs))


@contextmanager
def filled(lab: Lab, contender: Contender, jobs: int) -> Iterator[str]:
    """The URL of the server, which holds so many waiting jobs of this contender only; emptied afterwards."""
    with lab.servers.redis.emptied() as url:
        if jobs:
            contender.fill(url, jobs)
        yield url
