"""The verbs announce, workers, order_stop and tallies."""

from __future__ import annotations

from collections.abc import Sequence

from jobmill.core.announcing import Orders, WorkerCard
from jobmill.core.tallies import Tally
from jobmill.stores.memory.context import MemoryContext


def announce(context: MemoryContext, card: WorkerCard, tallies: Sequence[Tally], *, leaves: bool = False) -> Orders:
    """Write what a worker announces."""
    return context.operations.announce(context.now_ms, card, tallies, leaves)


def workers(context: MemoryContext) -> list[WorkerCard]:
    """The workers that are there."""
    return context.operations.workers(context.now_ms)


def order_stop(context: MemoryContext, ids: Sequence[str]) -> list[str]:
    """Order workers to stop."""
    return context.operations.order_stop(context.now_ms, ids)


def tallies(
    context: MemoryContext,
    since_ms: int,
    until_ms: int,
    step_ms: int,
    queue: str | None = None,
    name: str | None = None,
) -> list[Tally]:
    """What workers counted."""
    return context.operations.series(context.now_ms, since_ms, until_ms, step_ms, queue, name)
