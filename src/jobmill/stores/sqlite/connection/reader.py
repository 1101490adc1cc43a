"""The reader: queries on a connection of their own, so that a long one does not delay the writer."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from jobmill.stores.sqlite.connection.connect import begin, translated
from jobmill.stores.sqlite.connection.threads import Answer, Work
from jobmill.stores.sqlite.context import SqliteContext


class Reader:
    """Runs queries, each in a snapshot of its own, which shows all that its caller was answered before."""

    def __init__(self, connection: sqlite3.Connection, path: Path, clock: Callable[[], int]) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._path = path
        self._clock = clock

    def run(self, batch: Sequence[Work]) -> Sequence[Answer]:
        """Run one after the other."""
        return [self._one(work) for work in batch]

    def _one(self, work: Work) -> Answer:
        try:
            begin(self._connection, "DEFERRED")
            try:
                return work(SqliteContext(self._cursor, self._clock()))
            finally:
                self._connection.rollback()
        except Exception as error:
            return translated(error, self._path)
