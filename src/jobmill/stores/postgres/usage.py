"""The verb record_usage: what runs used, for whoever reads the table."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from jobmill.core.usage import Usage
from jobmill.stores.postgres.connection.pool import Connection
from jobmill.stores.postgres.statements import Statements


async def record_usage(connection: Connection, statements: Statements, records: Sequence[Usage]) -> None:
    """Add records."""
    rows = [structs.astuple(record) for record in records]
    await connection.execute(statements("usage"), *(list(column) for column in zip(*rows, strict=True)))
