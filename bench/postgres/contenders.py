"""Who is measured on PostgreSQL, and a fresh database of each with so many jobs in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.lab import Lab
from bench.ours import postgres as ours
from bench.peers import (
    chancy_postgres,
    graphile_postgres,
    oban_postgres,
    pgboss_postgres,
    pgqueuer_postgres,
    procrastinate_postgres,
    saq_postgres,
)
from bench.peers.peer import Peer, in_python

OURS = in_python(ours, bulk=ours.bulk)
PGQUEUER = in_python(pgqueuer_postgres, bulk=pgqueuer_postgres.bulk)
PROCRASTINATE = in_python(procrastinate_postgres, bulk=procrastinate_postgres.bulk)
SAQ = in_python(saq_postgres)
CHANCY = in_python(chancy_postgres, bulk=chancy_postgres.bulk)
OBAN = in_python(oban_postgres, bulk=oban_postgres.bulk)
GRAPHILE, GRAPHILE_FIRST, GRAPHILE_TUNED = graphile_postgres.PEER, graphile_postgres.FIRST, graphile_postgres.TUNED
PG_BOSS = pgboss_postgres.PEER

#: One of each, as it is set up to begin with.
PLAIN = (OURS, PGQUEUER, PROCRASTINATE, SAQ, CHANCY, OBAN, GRAPHILE, PG_BOSS)
#: Those as well whose worker has a second set-up of note.
PEERS = (*PLAIN, GRAPHILE_TUNED)


def family(peer: Peer) -> str:
    """Of a second set-up the name of the first."""
    return peer.name.partition(",")[0]


@contextmanager
def database(lab: Lab, peer: Peer, jobs: int) -> Iterator[str]:
    """The URL of a database of its own with so many waiting jobs, dropped afterwards; all its set-ups have the same."""
    template = lab.template(f"{family(peer)}, {jobs:,} jobs", lambda url: peer.fill(url, jobs))
    with lab.servers.postgres.copy(template) as url:
        yield url
