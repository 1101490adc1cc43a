"""A long history on PostgreSQL: copies of a job of ours that has really run."""

from __future__ import annotations

from bench.postgres.server import Session

COLUMNS = """
    select string_agg(quote_ident(attname), ', ') from pg_attribute
    where attrelid = 'jobmill.history'::regclass and attnum > 0 and not attisdropped and attname <> 'id'
"""
#: Ids sort as uuid7s do, before those of today.
COPY = """
    insert into jobmill.history (id, {columns})
    select '0100' || lpad(to_hex(n), 28, '0'), {columns}
    from (select * from jobmill.history limit 1) as one, generate_series(1, {jobs}) as n
"""


def multiply(url: str, jobs: int) -> None:
    """So many more finished jobs like the one that is there."""
    with Session(url) as session:
        session.execute(COPY.format(columns=session.value(COLUMNS), jobs=jobs))


def make_ready(url: str) -> None:
    """After a vacuum and a checkpoint, so that no run pays for what was done before it."""
    with Session(url) as session:
        session.execute("vacuum analyze")
        session.execute("checkpoint")
