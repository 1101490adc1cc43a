"""Feeds: events are added in the transaction that made them, and numbered when they are first read."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import structs

from jobmill.core.cursors import read_position
from jobmill.core.events import Event
from jobmill.stores.postgres.connection.connector import Connection
from jobmill.stores.postgres.context import PostgresContext
from jobmill.stores.postgres.statements import Statements

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode


async def publish(context: PostgresContext, events: Sequence[Event]) -> None:
    if events:
        await context.use(lambda connection: add_events(connection, context.statements, events))


async def add_events(connection: Connection, statements: Statements, events: Sequence[Event]) -> set[str]:
    """Add events to the feeds that are on; the queues of these feeds."""
    if not events:
        return set()
    rows = await connection.fetch(statements("add_events"), *encoded(events))
    return {row[0] for row in rows}


def encoded(events: Sequence[Event]) -> tuple[list[str], list[str]]:
    """The queues of events, and the events as JSON: the parameters of the statement add_events."""
    return [event.queue for event in events], [_encode(event).decode() for event in events]


async def add_and_learn(context: PostgresContext, connection: Connection, events: Sequence[Event]) -> None:
    """Add events, and remember which of their feeds are on."""
    on = await add_events(connection, context.statements, events)
    feeds_on = context.loops.here().feeds_on
    feeds_on.difference_update(event.queue for event in events)
    feeds_on.update(on)


async def events(context: PostgresContext, queue: str, after: str | None = None, limit: int = 1_000) -> list[Event]:
    seen = 0 if after is None else read_position(after, "after", after)
    statements = context.statements

    async def read(connection: Connection) -> list[Event]:
        await connection.execute(statements.call("number_events", 1), queue)
        rows = await connection.fetch(statements("events"), queue, seen, limit)
        return [structs.replace(_decode(row[1]), id=str(row[0])) for row in rows]

    return await context.use(read)
