"""The verb record_usage."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from jobmill.core.usage import Usage
from jobmill.stores.postgres.context import PostgresContext


async def record_usage(context: PostgresContext, records: Sequence[Usage]) -> None:
    """See RecordsUsage."""
    if not records:
        return
    columns = [list(column) for column in zip(*map(structs.astuple, records), strict=True)]
    await context.use(lambda connection: connection.execute(context.statements("usage"), *columns))
