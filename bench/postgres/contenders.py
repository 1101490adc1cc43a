"""Who is measured on PostgreSQL, and a fresh database of each with so many jobs in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.child import run as in_child
from bench.contenders import Contender
from bench.lab import Lab
from bench.ours import postgres as ours
from bench.peers import graphile_postgres as graphile
from bench.peers import pgqueuer_postgres as pgqueuer
from bench.peers import procrastinate_postgres as procrastinate

OURS = Contender("jobmill", lambda: None, lambda url, jobs: in_child(ours.fill, url=url, jobs=jobs))
PGQUEUER = Contender("pgqueuer", pgqueuer.missing, lambda url, jobs: in_child(pgqueuer.fill, url=url, jobs=jobs))
PROCRASTINATE = Contender(
    "procrastinate", procrastinate.missing, lambda url, jobs: in_child(procrastinate.fill, url=url, jobs=jobs)
)
GRAPHILE = Contender("graphile", graphile.missing, graphile.fill)


@contextmanager
def database(lab: Lab, contender: Contender, jobs: int) -> Iterator[str]:
    """The URL of a database of its own with so many waiting jobs, dropped afterwards."""
    template = lab.template(f"{contender.name}, {jobs:,} jobs", lambda url: contender.fill(url, jobs))
    with lab.servers.postgres.copy(template) as url:
        yield url
