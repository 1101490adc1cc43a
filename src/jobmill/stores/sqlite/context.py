"""One verb's view of the transaction that it runs in."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from jobmill.stores.sqlite.queues import Queues
from jobmill.stores.sqlite.statements import batches, flat, sql, sql_rows


class NeedsCare(Exception):
    """A statement met fewer rows than a batch has; which ones must be asked before anything is written."""


class Context:
    """Runs statements at one instant. Verbs are functions of it; the writer gives several the same transaction.

    `careful` is false at first: verbs then write without asking and count the rows that were met. Where that number is
    not the expected one they raise NeedsCare; the transaction is rolled back and runs again with `careful`.
    """

    __slots__ = ("careful", "cursor", "now_ms", "queues", "rings", "wakes")

    def __init__(self, cursor: sqlite3.Cursor, now_ms: int, queues: Queues, *, careful: bool = False) -> None:
        self.cursor = cursor
        self.now_ms = now_ms
        self.queues = queues
        self.careful = careful
        #: How many verbs of this transaction may have made work for somebody who sleeps.
        self.wakes = 0
        #: How often the bell had rung when the transaction began: all that it rang for is visible here.
        self.rings = 0

    def write(self, name: str, parameters: Sequence[object] = ()) -> int:
        """Run a statement; how many rows it met."""
        return self.cursor.execute(sql(name), parameters).rowcount

    def write_rows(self, name: str, first: Iterable[object], rows: Sequence[Sequence[object]]) -> int:
        """Run a statement about many rows; how many of them it met."""
        met = 0
        for batch in batches(rows):
            met += self.cursor.execute(sql_rows(name, len(batch)), flat(first, batch)).rowcount
        return met

    def row(self, name: str, parameters: Sequence[object] = ()) -> Any:
        """The one row that a statement answers with, or None."""
        return self.cursor.execute(sql(name), parameters).fetchone()

    def rows(self, name: str, parameters: Sequence[object] = ()) -> list[Any]:
        """All rows that a statement answers with."""
        return self.cursor.execute(sql(name), parameters).fetchall()
