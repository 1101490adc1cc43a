"""Queues and lanes: what is set for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field, structs

from jobmill.core.events import Event
from jobmill.core.lanes import LaneLimits, LaneWindow, changed_lane
from jobmill.core.queue_limits import QueueLimits, changed_settings
from jobmill.core.queue_settings import LaneChange, LaneSettings
from jobmill.core.values import QueueChange, QueueSettings

if TYPE_CHECKING:
    from jobmill.stores.memory.context import MemoryContext


class QueueState(Struct):
    """One queue: its settings, the window of its rate limit, and its feed."""

    limits: QueueLimits = QueueLimits()
    feed: deque[Event] = field(default_factory=deque)


class LaneState(Struct):
    """One lane: its settings, the window of its rate, and when that rate allows more jobs."""

    settings: LaneSettings = LaneSettings()
    window: LaneWindow = LaneWindow()
    again_ms: int | None = None


def configure(context: MemoryContext, queue: str, change: QueueChange) -> QueueSettings:
    """Change what is set for a queue."""
    state = context.queues.setdefault(queue, QueueState())
    before = state.limits.settings
    settings = changed_settings(before, change)
    state.limits = structs.replace(state.limits, settings=settings)
    if settings.lanes != before.lanes:
        context.jobs.changed_lanes.update(key for key in context.jobs.lanes if key[0] == queue)
    context.wakes = True
    return settings


def configure_lane(context: MemoryContext, queue: str, lane: str, change: LaneChange) -> LaneSettings:
    """Change what is set for a lane."""
    state = context.lanes.setdefault((queue, lane), LaneState())
    state.settings = changed_lane(state.settings, change)
    context.jobs.changed_lanes.add((queue, lane))
    context.wakes = True
    return state.settings


def forget_lanes(context: MemoryContext) -> None:
    """Forget lanes without settings whose window is over and that need no look."""
    for key, state in list(context.lanes.items()):
        if state.settings == LaneSettings() and state.again_ms is None and state.window.ends_ms <= context.now_ms:
            del context.lanes[key]


def lane_limits(context: MemoryContext, queue: str, lane: str) -> LaneLimits:
    """The limits of a lane."""
    state, own = context.queues.get(queue, QueueState()), context.lanes.get((queue, lane), LaneState())
    return LaneLimits.of(state.limits.settings.lanes, own.settings)


def settings(context: MemoryContext, queues: Sequence[str] | None = None) -> dict[str, QueueSettings]:
    """What is set for these queues, or for all that have settings."""
    wanted = list(context.queues) if queues is None else queues
    return {queue: context.queues.get(queue, QueueState()).limits.settings.at(context.now_ms) for queue in wanted}
