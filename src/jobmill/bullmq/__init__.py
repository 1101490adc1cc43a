"""BullMQ's own terms for a queue that Node shares, where Jobmill has none: see docs/bullmq.md."""

from __future__ import annotations

from jobmill.bullmq.jobs import Add, Deduplication
from jobmill.bullmq.queue import Queue

__all__ = ["Add", "Deduplication", "Queue"]
