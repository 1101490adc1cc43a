"""A tick: claim up to n due jobs, run them in this process, settle them, and say what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from jobmill.worker.worker import Worker

if TYPE_CHECKING:
    from jobmill.handlers.registry import Registry


class Tick(Struct, frozen=True, kw_only=True):
    """What one tick did. `waiting` were snoozed or given back, `lost` are settlements that came too late."""

    claimed: int = 0
    succeeded: int = 0
    retrying: int = 0
    failed: int = 0
    waiting: int = 0
    lost: int = 0


async def tick(registry: Registry, limit: int, queues: Sequence[str] | None) -> Tick:
    """One claim, its runs, their settlements."""
    worker = Worker(registry, concurrency=limit, queues=queues) if queues else Worker(registry, concurrency=limit)
    return Tick(**await worker.tick())
