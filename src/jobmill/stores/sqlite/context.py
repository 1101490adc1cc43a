"""What a verb works with: one transaction, at one instant."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from jobmill.stores.sqlite.codec import QueueRow
from jobmill.stores.sqlite.statements import MAX_ROWS, sql, sql_rows, sql_update


class NeedsCare(Exception):
    """A statement matched fewer rows than expected: the transaction must run again and check each row first."""


class SqliteContext(Struct):
    """Runs statements in one transaction. Verbs are functions of it; the writer gives several verbs the same one.

    `careful` is false at first: verbs then write without reading and count the matched rows. Where the count is wrong
    they raise NeedsCare; the transaction is rolled back and runs again with `careful`.
    """

    cursor: sqlite3.Cursor
    now_ms: int
    #: The rows of the queue table by queue; None until a verb needs them.
    queue_rows: dict[str, QueueRow] | None = None
    #: Whether there are edges between jobs; None until a verb needs to know.
    has_edges: bool | None = None
    #: How often the bell had rung when the transaction began: what it rang for is visible in this transaction.
    rings: int = 0
    careful: bool = False
    #: How many verbs of this transaction may have made work for a sleeping worker.
    wakes: int = 0
    #: Whether more jobs wait for jobs that have ended than one transaction releases.
    has_outbox: bool = False

    def write(self, name: str, parameters: Sequence[object] = ()) -> int:
        """Run a statement; the number of rows it matched."""
        return self.cursor.execute(sql(name), parameters).rowcount

    def run_rows(
        self, name: str, first: Sequence[object], rows: Sequence[Sequence[object]]
    ) -> Iterator[sqlite3.Cursor]:
        """Run a statement about many rows, in as many parts as it takes. `first`: its parameters before the rows."""
        for start in range(0, len(rows), MAX_ROWS):
            part = rows[start : start + MAX_ROWS]
            yield self.cursor.execute(sql_rows(name, len(part)), [*first, *itertools.chain.from_iterable(part)])

    def write_rows(self, name: str, first: Sequence[object], rows: Sequence[Sequence[object]]) -> int:
        """Run a statement about many rows; the number of rows it matched."""
        return sum(cursor.rowcount for cursor in self.run_rows(name, first, rows))

    def update_job(self, seq: int, columns: Mapping[str, object], more: str = "") -> None:
        """Write columns of a job that this transaction has read. `more`: another assignment."""
        assignments = ", ".join(f"{column} = ?" for column in columns)
        self.cursor.execute(f"UPDATE jobmill_jobs SET {assignments}{more} WHERE seq = ?", (*columns.values(), seq))

    def update_jobs(self, rows: Iterable[tuple[Sequence[int], Mapping[str, object]]]) -> None:
        """Write columns of many jobs: all jobs of these seqs get the same values.

        Jobs with the same columns share a statement.
        """
        alike: dict[tuple[str, ...], list[tuple[object, ...]]] = {}
        for seqs, columns in rows:
            values = tuple(columns.values())
            alike.setdefault(tuple(columns), []).extend((seq, *values) for seq in seqs)
        for names, own in alike.items():
            for start in range(0, len(own), MAX_ROWS):
                part = own[start : start + MAX_ROWS]
                self.cursor.execute(sql_update(names, len(part)), [*itertools.chain.from_iterable(part)])

    def row(self, name: str, parameters: Sequence[object] = ()) -> Any:
        """The one row that a statement returns, or None."""
        return self.cursor.execute(sql(name), parameters).fetchone()

    def rows(self, name: str, parameters: Sequence[object] = ()) -> list[Any]:
        """All rows that a statement returns."""
        return self.cursor.execute(sql(name), parameters).fetchall()
