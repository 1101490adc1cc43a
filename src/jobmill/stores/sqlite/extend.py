"""The verb extend: prolong leases of jobs that a worker still runs."""

from __future__ import annotations

from collections.abc import Sequence

from jobmill.core.values import Lease
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.leases import held, locate


def extend(context: SqliteContext, leases: Sequence[Lease], for_ms: int) -> list[str]:
    """Prolong leases; the ids of those that are lost."""
    rows = [(locate(context, lease), lease.token) for lease in leases]
    if context.write_rows("extend", (context.now_ms, context.now_ms + for_ms), rows) == len(leases):
        return []
    # An extended lease still has its holder, unless it was extended by zero.
    standing = held(context, leases) if for_ms > 0 else set()
    return [lease.id for index, lease in enumerate(leases) if index not in standing]
