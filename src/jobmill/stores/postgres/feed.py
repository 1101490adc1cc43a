"""Feeds: events are added in the transaction that made them, and numbered when somebody reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import structs

from jobmill.core.cursors import read_position
from jobmill.core.events import Event
from jobmill.stores.postgres.connection.pool import Connection
from jobmill.stores.postgres.statements import Statements, quoted

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode


class Told:
    """Which feeds are known to be on: their verbs take a transaction, and need not be told so again."""

    def __init__(self) -> None:
        self._on: set[str] = set()

    def knows(self, queues: Iterable[str]) -> bool:
        """Whether a feed of these queues was on, as far as this process knows."""
        return bool(self._on) and not self._on.isdisjoint(queues)

    def suspect(self, queues: Iterable[str]) -> None:
        """The server says that one of these is."""
        self._on.update(queues)

    def learn(self, queues: Iterable[str], on: set[str]) -> None:
        """Of these, these are."""
        self._on.difference_update(queues)
        self._on |= on


async def tell(connection: Connection, statements: Statements, events: Sequence[Event]) -> set[str]:
    """Add events to the feeds that are on; the queues whose are."""
    if not events:
        return set()
    rows = await connection.fetch(statements("tell"), *encoded(events))
    return {row[0] for row in rows}


def encoded(events: Sequence[Event]) -> tuple[list[str], list[str]]:
    """The queues of events, and the events, as tell.sql takes them."""
    return [event.queue for event in events], [_encode(event).decode() for event in events]


async def events(
    connection: Connection, statements: Statements, queue: str, after: str | None, limit: int
) -> list[Event]:
    """The feed after an event."""
    seen = 0 if after is None else read_position(after, "after", after)
    await connection.execute(f"SELECT {quoted(statements.schema)}.number_events($1)", queue)
    rows = await connection.fetch(statements("events"), queue, seen, limit)
    return [structs.replace(_decode(row[1]), id=str(row[0])) for row in rows]
