"""BullMQ's own words for a queue that Node shares, where Jobmill has none: see docs/bullmq.md."""

from __future__ import annotations

from jobmill.stores.redis.native import Add, Deduplication, Queue

__all__ = ["Add", "Deduplication", "Queue"]
