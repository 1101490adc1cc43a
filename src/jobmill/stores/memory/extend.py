"""The verb extend: prolong leases of jobs that a worker still runs."""

from __future__ import annotations

from collections.abc import Sequence

from jobmill.core.values import Lease
from jobmill.stores.memory.context import MemoryContext


def extend(context: MemoryContext, leases: Sequence[Lease], for_ms: int) -> list[str]:
    """Prolong leases; the ids of those that are lost."""
    lost = []
    for lease in leases:
        if (stored := context.jobs.held(lease, context.now_ms)) is None:
            lost.append(lease.id)
        else:
            stored.lease_until_ms = context.now_ms + for_ms
    return lost
