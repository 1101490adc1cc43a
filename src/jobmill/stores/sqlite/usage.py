"""The verb record_usage: what runs used."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from jobmill.core.usage import Usage
from jobmill.stores.sqlite.context import SqliteContext


def record_usage(context: SqliteContext, records: Sequence[Usage]) -> None:
    """Add records."""
    context.write_rows("usage", (), [structs.astuple(record) for record in records])
