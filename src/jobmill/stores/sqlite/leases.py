"""The guard: which leases still own their jobs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from jobmill.core.values import Lease
from jobmill.stores.sqlite.context import SqliteContext


def held(context: SqliteContext, leases: Sequence[Lease]) -> set[int]:
    """The indexes of the leases that still own their jobs."""
    rows = [(index, locate(context, lease), lease.token) for index, lease in enumerate(leases)]
    found: set[int] = set()
    for cursor in context.run_rows("held", (context.now_ms,), rows):
        found.update(msgspec.json.decode(cursor.fetchone()[0]))
    return found


def locate(context: SqliteContext, lease: Lease) -> int:
    """The seq of a lease's job: the lease carries it, unless it was made outside this store."""
    if type(lease.locator) is int:
        return lease.locator
    row = context.row("subject", (lease.id,))
    return row[0] if row else 0
