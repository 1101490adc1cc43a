"""Who is measured on a collection as a crontab, and a collection with so many documents that are due."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from bench.child import run as in_child
from bench.lab import Lab
from bench.ours import crontab as ours
from bench.peers import mongodb_cron as node


class Scheduler(Struct, frozen=True):
    """No job queue: each measure knows how each of them is run."""

    name: str
    missing: Callable[[], str | None]


OURS = Scheduler(ours.ABOUT.name, lambda: None)
NODE = Scheduler(node.ABOUT.name, node.missing)


@contextmanager
def filled(lab: Lab, jobs: int) -> Iterator[str]:
    """The URL of a database whose collection holds so many due documents."""
    with lab.servers.mongo.database() as url:
        in_child(ours.fill, url=url, jobs=jobs)
        yield url
