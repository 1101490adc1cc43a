"""Queues: what is set for them, the windows of their rate limits, and their event feeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, Struct, structs

from jobmill.core.cursors import read_position
from jobmill.core.events import Event
from jobmill.core.values import QueueChange, QueueSettings, RateLimit

if TYPE_CHECKING:
    from jobmill.stores.sqlite.context import Context

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode


class Queue(Struct):
    """One row of the queues' table."""

    settings: QueueSettings
    window_ends_ms: int = 0
    window_used: int = 0
    last_event: int = 0

    def room(self, running: int, now_ms: int) -> int | None:
        """How many jobs may be claimed while so many run; None: any number."""
        settings = self.settings
        if settings.paused:
            return 0
        room = None if settings.running_limit is None else max(0, settings.running_limit - running)
        if settings.rate_limit is not None:
            used = 0 if now_ms >= self.window_ends_ms else self.window_used
            left = max(0, settings.rate_limit.count - used)
            room = left if room is None else min(room, left)
        return room


class Queues:
    """The rows of the queues' table, read when they are first needed after somebody may have changed them."""

    def __init__(self) -> None:
        self._known: dict[str, Queue] | None = None

    def forget(self) -> None:
        """Another connection wrote, or a transaction was rolled back."""
        self._known = None

    def any(self, context: Context) -> bool:
        """Whether any queue has a row. Mostly none has, and then nothing else is asked."""
        return bool(self._rows(context))

    def get(self, context: Context, queue: str) -> Queue | None:
        """What is known of a queue; None: all defaults."""
        return self._rows(context).get(queue)

    def _rows(self, context: Context) -> dict[str, Queue]:
        if self._known is None:
            self._known = {row[0]: _from_row(row) for row in context.rows("queues")}
        return self._known

    def feeds(self, context: Context, queue: str) -> bool:
        """Whether a queue's feed is on."""
        known = self.get(context, queue)
        return known is not None and known.settings.feed

    def write(self, context: Context, queue: str, row: Queue) -> None:
        """Change a queue's row."""
        settings, rate = row.settings, row.settings.rate_limit
        context.write(
            "configure",
            (
                *(queue, settings.paused, rate and rate.count, rate and rate.per_ms, settings.running_limit),
                *(settings.feed, settings.events_max_len, row.window_ends_ms, row.window_used, row.last_event),
            ),
        )
        if self._known is not None:
            self._known[queue] = row


def _from_row(row: tuple[object, ...]) -> Queue:
    _, paused, rate_count, rate_per_ms, running_limit, feed, events_max_len, ends_ms, used, last_event = row
    limit = None if rate_count is None else RateLimit(rate_count, rate_per_ms)  # type: ignore[arg-type]
    settings = QueueSettings(
        paused=bool(paused),
        rate_limit=limit,
        running_limit=running_limit,  # type: ignore[arg-type]
        feed=bool(feed),
        events_max_len=events_max_len,  # type: ignore[arg-type]
    )
    return Queue(settings, ends_ms, used, last_event)  # type: ignore[arg-type]


def configure(context: Context, queue: str, change: QueueChange) -> QueueSettings:
    """Change what is set for a queue."""
    row = context.queues.get(context, queue) or Queue(QueueSettings())
    given = {field: value for field in change.__struct_fields__ if (value := getattr(change, field)) is not UNSET}
    row = structs.replace(row, settings=structs.replace(row.settings, **given))
    context.queues.write(context, queue, row)
    _trim(context, queue, row)
    context.wakes += 1
    return row.settings


def settings(context: Context, queues: Sequence[str] | None) -> dict[str, QueueSettings]:
    """What is set for these queues, or for all that have a row."""
    known = {row[0]: _from_row(row).settings for row in context.rows("queues")}
    return known if queues is None else {queue: known.get(queue) or QueueSettings() for queue in queues}


def use_window(context: Context, queue: str, row: Queue, claims: int) -> None:
    """Count claims against the rate limit; the first one after a window opens the next."""
    rate = row.settings.rate_limit
    if rate is None or not claims:
        return
    if context.now_ms >= row.window_ends_ms:
        row = structs.replace(row, window_ends_ms=context.now_ms + rate.per_ms, window_used=0)
    context.queues.write(context, queue, structs.replace(row, window_used=row.window_used + claims))


# ---------------------------------------------------------------------------------------------------- the feeds


def tell(context: Context, queue: str, events: Callable[[], Sequence[Event]]) -> None:
    """Record events where the queue's feed is on; they are not even made where it is off."""
    if not context.queues.feeds(context, queue):
        return
    row = context.queues.get(context, queue)
    assert row is not None
    told = [
        (queue, number, _encode(structs.replace(event, id=str(number))).decode())
        for number, event in enumerate(events(), row.last_event + 1)
    ]
    if told:
        context.write_rows("tell", (), told)
        row = structs.replace(row, last_event=row.last_event + len(told))
        context.queues.write(context, queue, row)
        _trim(context, queue, row)


def _trim(context: Context, queue: str, row: Queue) -> None:
    """Keep the last events. They are numbered per queue, so that nobody has to count them."""
    context.write("tell_trim", (queue, row.last_event - row.settings.events_max_len))


def publish(context: Context, events: Sequence[Event]) -> None:
    """Add a user's own events."""
    for event in events:
        tell(context, event.queue, lambda event=event: [event])  # type: ignore[misc]


def events(context: Context, queue: str, after: str | None, limit: int) -> list[Event]:
    """The feed after an event."""
    seen = 0 if after is None else read_position(after, "after", after)
    return [_decode(row[0]) for row in context.rows("events", (queue, seen, limit))]
