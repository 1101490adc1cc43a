"""Queues: what is set for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field, structs

from jobmill.core.events import Event
from jobmill.core.queue_limits import QueueLimits, changed_settings
from jobmill.core.values import QueueChange, QueueSettings

if TYPE_CHECKING:
    from jobmill.stores.memory.context import MemoryContext


class QueueState(Struct):
    """One queue: its settings, the window of its rate limit, and its feed."""

    limits: QueueLimits = QueueLimits()
    feed: deque[Event] = field(default_factory=deque)


def configure(context: MemoryContext, queue: str, change: QueueChange) -> QueueSettings:
    """Change what is set for a queue."""
    state = context.queues.setdefault(queue, QueueState())
    settings = changed_settings(state.limits.settings, change)
    state.limits = structs.replace(state.limits, settings=settings)
    context.wakes = True
    return settings


def settings(context: MemoryContext, queues: Sequence[str] | None = None) -> dict[str, QueueSettings]:
    """What is set for these queues, or for all that have settings."""
    wanted = list(context.queues) if queues is None else queues
    return {queue: context.queues.get(queue, QueueState()).limits.settings.at(context.now_ms) for queue in wanted}
