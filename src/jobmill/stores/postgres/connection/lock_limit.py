"""Calls that do not wait for long if another transaction has locked what they need."""

from __future__ import annotations

from typing import Any, cast

import asyncpg

from jobmill.store import WouldWait
from jobmill.stores.postgres.connection.connector import Connection


def lock_limited(connection: Connection, lock_ms: int | None) -> Connection:
    """The connection; with `lock_ms`, calls of functions on it raise WouldWait if they wait longer for a lock."""
    return connection if lock_ms is None else cast(Connection, _LockLimited(connection, lock_ms))


class _LockLimited:
    """The first parameter of each call, a bigint, sets the limit, until the transaction ends.

    A statement of its own would be another round trip, and a setting of the connection does not exist behind a pooler.
    """

    def __init__(self, connection: Connection, lock_ms: int) -> None:
        self._connection = connection
        self._first = f"(CASE WHEN set_config('lock_timeout', '{lock_ms}', true) IS NOT NULL THEN $1::bigint END"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def fetch(self, text: str, *parameters: object) -> list[asyncpg.Record]:
        """The rows of `SELECT * FROM function($1, …)`."""
        try:
            return await self._connection.fetch(text.replace("($1", self._first, 1), *parameters)
        except asyncpg.LockNotAvailableError as error:
            raise WouldWait(f"another transaction holds a lock: {error}") from error
