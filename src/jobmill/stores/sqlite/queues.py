"""Queues: what is set for them, and the windows of their rate limits."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from jobmill.core.queue_limits import changed_settings
from jobmill.core.values import QueueChange, QueueSettings
from jobmill.stores.sqlite.codec import QueueRow, as_json, queue_from_row, queue_to_row
from jobmill.stores.sqlite.context import SqliteContext


def known_queues(context: SqliteContext) -> dict[str, QueueRow]:
    """The queues that have a row; the others have the defaults. The writer keeps them while nobody else writes."""
    if context.queue_rows is None:
        context.queue_rows = {queue: queue_from_row(row) for queue, *row in context.rows("queues")}
    return context.queue_rows


def write_queue(context: SqliteContext, queue: str, row: QueueRow) -> None:
    """Write a queue's row."""
    context.write("write_queue", (queue, *queue_to_row(row)))
    known_queues(context)[queue] = row


def trim_feed(context: SqliteContext, queue: str, row: QueueRow) -> None:
    """Delete the events that a feed does not keep. Events are numbered by queue, so that no statement counts them."""
    context.write("trim_events", (queue, row.last_event - row.settings.events_max_len))


def configure(context: SqliteContext, queue: str, change: QueueChange) -> QueueSettings:
    """Change what is set for a queue."""
    row = known_queues(context).get(queue, QueueRow())
    settings = changed_settings(row.settings.at(context.now_ms), change)
    row = structs.replace(row, limits=structs.replace(row.limits, settings=settings))
    write_queue(context, queue, row)
    context.write("write_pause", (queue, None if settings.pause is None else as_json(settings.pause)))
    trim_feed(context, queue, row)
    context.wakes += 1
    return settings


def settings(context: SqliteContext, queues: Sequence[str] | None = None) -> dict[str, QueueSettings]:
    """What is set for these queues, or for all that have a row."""
    known = known_queues(context)
    if queues is None:
        queues = list(known)
    return {queue: known.get(queue, QueueRow()).settings.at(context.now_ms) for queue in queues}


def count_claims(context: SqliteContext, queue: str, claims: int) -> None:
    """Count claims against the rate limit of a queue."""
    row = known_queues(context).get(queue)
    if row is not None and (limits := row.limits.after_claims(claims, context.now_ms)) is not row.limits:
        write_queue(context, queue, structs.replace(row, limits=limits))
