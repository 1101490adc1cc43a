"""The verb extend."""

from __future__ import annotations

from collections.abc import Sequence

from jobmill.core.values import Lease
from jobmill.stores.postgres.context import PostgresContext


async def extend(context: PostgresContext, leases: Sequence[Lease], for_ms: int) -> list[str]:
    """See the port. It has a connection of its own, so that a full pool cannot end a lease."""
    if not leases:
        return []
    parameters = (context.clock.given_ms(), [lease.id for lease in leases], [lease.token for lease in leases], for_ms)
    text = context.statements.call("extend", 4)
    lost = set(await context.loops.here().lease_pool.use(lambda connection: connection.fetchval(text, *parameters)))
    return [lease.id for lease in leases if lease.id in lost]
