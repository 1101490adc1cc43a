"""A tick: claims up to n due jobs, runs them in this process, settles them, and returns a summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from jobmill.worker.worker import Worker

if TYPE_CHECKING:
    from jobmill.handlers.registry import Registry


class Tick(Struct, frozen=True, kw_only=True):
    """The summary of one tick. `waiting` jobs were snoozed or released; `lost` settlements came too late."""

    claimed: int = 0
    succeeded: int = 0
    retrying: int = 0
    failed: int = 0
    waiting: int = 0
    lost: int = 0


async def tick(registry: Registry, limit: int, queues: Sequence[str] | None) -> Tick:
    """Run one tick."""
    return Tick(**await Worker(registry, concurrency=limit, queues=queues or ()).tick())
