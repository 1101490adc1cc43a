"""Retention: removing finished jobs of ours. Node's jobs are removed by BullMQ's own rules, when the next one ends."""

from __future__ import annotations

from jobmill.core.job import KEEP_FAILED, KEEP_SUCCEEDED
from jobmill.core.values import Purged
from jobmill.stores.redis.announce import forget_old
from jobmill.stores.redis.audit import audit
from jobmill.stores.redis.context import RedisContext
from jobmill.stores.redis.queues import registered_queues
from jobmill.stores.redis.scripts import PURGE

# The server executes one call at a time: no call may keep it busy for long.
MAX_REMOVED_PER_CALL = 500


async def purge(c: RedisContext, limit: int = 1_000) -> Purged:
    """See the port. Queue by queue."""
    await forget_old(c)
    await audit(c, ())
    ages = {"completed": KEEP_SUCCEEDED.age_ms, "failed": KEEP_FAILED.age_ms}
    removed, more = 0, False
    for queue in await registered_queues(c):
        if removed >= limit:
            return Purged(removed, more=True)
        max_removed = min(limit - removed, MAX_REMOVED_PER_CALL)
        count, left = await c.run(PURGE, queue, c.clock.now(), limit=max_removed, ages=ages)
        removed += count
        more = more or bool(left)
    return Purged(removed, more)
