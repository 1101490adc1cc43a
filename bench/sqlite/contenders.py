"""Who is measured on SQLite, and a file of its own with so many jobs of one of them in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.lab import Lab, copied, sqlite_url
from bench.ours import sqlite as ours
from bench.peers import huey_sqlite
from bench.peers.peer import Peer, in_python

OURS = in_python(ours, bulk=ours.bulk)
HUEY = in_python(huey_sqlite)

PEERS = (OURS, HUEY)


def url_at(peer: Peer, path: Path) -> str:
    """What this contender calls the file."""
    return sqlite_url(path) if peer is OURS else str(path)


@contextmanager
def filled(lab: Lab, peer: Peer, jobs: int) -> Iterator[str]:
    """The URL of a copy, to be used up, of a file with so many waiting jobs of this contender."""
    file = lab.prepared(f"{peer.name}-{jobs}.db", lambda path: peer.fill(url_at(peer, path), jobs))
    # A log that one run left behind would be taken for that of the next copy.
    with TemporaryDirectory(dir=file.parent) as folder:
        yield url_at(peer, copied(file, Path(folder)))
