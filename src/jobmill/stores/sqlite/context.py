"""What a verb works with: one transaction, at one instant."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from jobmill.stores.sqlite.codec import QueueRow, as_json
from jobmill.stores.sqlite.statements import MAX_ROWS, sql, sql_rows, sql_update, sql_update_alike

#: Rows with equal values get their own statement if there are more of them than this.
FEW = 2


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
    #: Whether a live job has a lane; None until a verb needs to know.
    has_lanes: bool | None = None
    #: How often the bell had rung when the transaction began: what it rang for is visible in this transaction.
    rings: int = 0
    careful: bool = False
    #: How many verbs of this transaction may have made work for a sleeping worker.
    wakes: int = 0
    #: Whether more jobs wait for jobs that have ended than one transaction releases.
    has_outbox: bool = False
    #: The lanes, by queue and name, that this transaction has changed, and how many slots may be given in each, because
    #: settlements have freed them or jobs have arrived; None if it has changed otherwise.
    changed_lanes: dict[tuple[str, str], int | None] = field(default_factory=dict)
    #: Those of them in which jobs have arrived, which may be more urgent than jobs with a slot.
    arrivals: set[tuple[str, str]] = field(default_factory=set)
    #: How many jobs have lost their slots in this transaction.
    taken_back: int = 0

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
        """Write columns of many jobs: all jobs of these seqs get the same values, by a statement if they are many.

        Other jobs with the same columns share a statement.
        """
        few: dict[tuple[str, ...], list[tuple[object, ...]]] = {}
        for seqs, columns in rows:
            names, values = tuple(columns), tuple(columns.values())
            if len(seqs) > FEW:
                self.cursor.execute(sql_update_alike(names), (*values, as_json(seqs)))
            else:
                few.setdefault(names, []).extend((seq, *values) for seq in seqs)
        for names, own in few.items():
            for start in range(0, len(own), MAX_ROWS):
                part = own[start : start + MAX_ROWS]
                self.cursor.execute(sql_update(names, len(part)), [*itertools.chain.from_iterable(part)])

    def row(self, name: str, parameters: Sequence[object] = ()) -> Any:
        """The one row that a statement returns, or None."""
        return self.cursor.execute(sql(name), parameters).fetchone()

    def rows(self, name: str, parameters: Sequence[object] = ()) -> list[Any]:
        """All rows that a statement returns."""
        return self.cursor.execute(sql(name), parameters).fetchall()
