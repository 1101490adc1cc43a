"""The event feeds of queues."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from jobmill.core.cursors import read_position
from jobmill.core.events import Event
from jobmill.stores.memory.context import MemoryContext


def publish(context: MemoryContext, events: Sequence[Event]) -> None:
    """Add events to the feeds of their queues, where a feed is on."""
    for event in events:
        state = context.queues.get(event.queue)
        if state is not None and state.limits.settings.feed:
            context.last_event += 1
            state.feed.append(structs.replace(event, id=str(context.last_event)))
            while len(state.feed) > state.limits.settings.events_max_len:
                state.feed.popleft()


def events(context: MemoryContext, queue: str, after: str | None = None, limit: int = 1_000) -> list[Event]:
    """The feed after an event."""
    feed = context.queues[queue].feed if queue in context.queues else ()
    seen = 0 if after is None else read_position(after, "after", after)
    return [event for event in feed if int(event.id or 0) > seen][:limit]
