"""Who is measured on MongoDB, and a database of its own with so many jobs of one of them in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import structs

from bench.lab import Lab
from bench.ours import mongo as ours
from bench.peers import agenda_mongo as agenda
from bench.peers import monque_mongo as monque
from bench.peers.peer import Peer, in_python


def _ours(name: str) -> Peer:
    return structs.replace(in_python(ours, bulk=ours.bulk), about=structs.replace(ours.ABOUT, name=name))


LEAN, FULL = _ours("jobmill, lean indexes"), _ours("jobmill, Monque's indexes")
MONQUE = in_python(monque, bulk=monque.bulk)
AGENDA, AGENDA_OFTEN, AGENDA_AS_IT_COMES = agenda.PEER, agenda.OFTEN, agenda.AS_IT_COMES

#: One of each, as it is set up to begin with.
PLAIN = (LEAN, MONQUE, AGENDA)
#: With our second set of indexes.
PEERS = (LEAN, FULL, MONQUE, AGENDA)

#: What the URL of a contender says besides.
OPTIONS = {LEAN.name: {"indexes": "lean"}, FULL.name: {"indexes": "monque"}}


@contextmanager
def filled(lab: Lab, peer: Peer, jobs: int) -> Iterator[str]:
    """The URL of a database with so many waiting jobs of this contender, all on the disk; dropped afterwards."""
    server = lab.servers.mongo
    with server.database(**OPTIONS.get(peer.name, {})) as url:
        peer.fill(url, jobs)
        server.checkpoint()
        yield url
