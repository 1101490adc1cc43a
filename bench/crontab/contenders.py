"""Who is measured on a collection as a crontab, and a collection with so many documents that are due."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.child import run as in_child
from bench.contenders import Contender
from bench.lab import Lab
from bench.ours import crontab as ours
from bench.peers import mongodb_cron as node


def _fill(url: str, jobs: int) -> None:
    in_child(ours.fill, url=url, jobs=jobs)


OURS = Contender(ours.ABOUT.name, lambda: None, _fill)
NODE = Contender(node.ABOUT.name, node.missing, _fill)


@contextmanager
def filled(lab: Lab, jobs: int) -> Iterator[str]:
    """The URL of a database whose collection holds so many due documents."""
    with lab.servers.mongo.database() as url:
        _fill(url, jobs)
        yield url
