"""Who is measured on MongoDB, and a database of its own with so many jobs of one of them in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.child import run as in_child
from bench.contenders import Contender
from bench.lab import Lab
from bench.ours import mongo as ours
from bench.peers import agenda_mongo as agenda
from bench.peers import monque_mongo as monque


def _ours(name: str) -> Contender:
    return Contender(name, lambda: None, lambda url, jobs: in_child(ours.fill, url=url, jobs=jobs))


LEAN, FULL = _ours("jobmill, lean indexes"), _ours("jobmill, Monque's indexes")
MONQUE = Contender(monque.ABOUT.name, monque.missing, lambda url, jobs: in_child(monque.fill, url=url, jobs=jobs))
AGENDA = Contender(agenda.ABOUT.name, agenda.missing, agenda.fill)

#: What the URL of a contender says besides.
OPTIONS = {LEAN.name: {"indexes": "lean"}, FULL.name: {"indexes": "monque"}}


@contextmanager
def filled(lab: Lab, contender: Contender, jobs: int) -> Iterator[str]:
    """The URL of a database with so many waiting jobs of this contender, all on the disk; dropped afterwards."""
    server = lab.servers.mongo
    with server.database(**OPTIONS.get(contender.name, {})) as url:
        contender.fill(url, jobs)
        server.checkpoint()
        yield url
