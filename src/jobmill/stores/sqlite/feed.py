"""The event feeds of queues."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import structs

from jobmill.core.cursors import read_position
from jobmill.core.events import Event
from jobmill.stores.sqlite.codec import as_json
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.queues import known_queues, trim_feed, write_queue

_decode = msgspec.json.Decoder(Event).decode


def feeding(context: SqliteContext) -> set[str]:
    """The queues whose feed is on; verbs make events for no other queue."""
    return {queue for queue, row in known_queues(context).items() if row.settings.feed}


def publish(context: SqliteContext, events: Sequence[Event]) -> None:
    """Add events to the feeds of their queues, where a feed is on."""
    for queue in feeding(context).intersection(event.queue for event in events):
        row = known_queues(context)[queue]
        own = enumerate((event for event in events if event.queue == queue), row.last_event + 1)
        added = [(queue, number, as_json(structs.replace(event, id=str(number)))) for number, event in own]
        context.write_rows("add_events", (), added)
        row = structs.replace(row, last_event=row.last_event + len(added))
        write_queue(context, queue, row)
        trim_feed(context, queue, row)


def events(context: SqliteContext, queue: str, after: str | None = None, limit: int = 1_000) -> list[Event]:
    """The feed after an event."""
    seen = 0 if after is None else read_position(after, "after", after)
    return [_decode(row[0]) for row in context.rows("events", (queue, seen, limit))]
