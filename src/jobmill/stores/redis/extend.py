"""Extending leases."""

from __future__ import annotations

from collections.abc import Sequence

from jobmill.core.values import Lease
from jobmill.stores.redis.context import RedisContext, by_queue
from jobmill.stores.redis.scripts import EXTEND
from jobmill.stores.redis.settle import id_of

# An extension is short: more of them fit into one call.
MAX_LEASES_PER_CALL = 1_000


async def extend(c: RedisContext, leases: Sequence[Lease], for_ms: int) -> list[str]:
    """See the port."""
    lost_ids: list[str] = []
    for queue, some in by_queue(leases, lambda lease: lease.queue, MAX_LEASES_PER_CALL):
        now_ms = c.clock.now()
        lost = await c.run(EXTEND, queue, now_ms, leases=[(id_of(one), one.token) for one in some], ms=for_ms)
        lost_ids += [some[position].id for position in lost]
        if len(lost) < len(some):
            c.scans.leased(queue, now_ms + for_ms)
    if leases:
        await c.learn_time()
    return lost_ids
