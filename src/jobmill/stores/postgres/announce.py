"""The verbs announce, workers, order_stop and tallies."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import structs

from jobmill.core.announcing import ANNOUNCED_MS, Orders, WorkerCard
from jobmill.core.tallies import Tally, added, first_kept_ms, in_all_steps, series, stored_step
from jobmill.stores.common.flat_tallies import flat_counts, flat_texts, from_flat
from jobmill.stores.postgres.context import PostgresContext

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_card = msgspec.json.Decoder(WorkerCard).decode


async def announce(
    context: PostgresContext, card: WorkerCard, tallies: Sequence[Tally], *, leaves: bool = False
) -> Orders:
    parts: dict[tuple[object, ...], Tally] = {}
    for part in in_all_steps(tallies):
        key = (part.step_ms, part.start_ms, part.queue, part.name)
        parts[key] = added(parts[key], part) if key in parts else part
    rows = [
        (*key, _encode(flat_counts(part)).decode(), _encode(flat_texts(part)).decode()) for key, part in parts.items()
    ]
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(6)]
    about = (context.clock.given_ms(), card.id, card.announcement, _encode(card).decode(), leaves)
    text = context.statements.call("announce", len(about) + len(columns))
    return Orders(stop=await context.use(lambda connection: connection.fetchval(text, *about, *columns)))


async def workers(context: PostgresContext) -> list[WorkerCard]:
    text, at_ms = context.statements("workers"), context.clock.given_ms()
    rows = await context.use(lambda connection: connection.fetch(text, at_ms, ANNOUNCED_MS))
    cards = [structs.replace(_decode_card(card), seen_ms=seen_ms) for card, seen_ms in rows]
    return sorted(cards, key=lambda card: (card.started_ms, card.id))


async def order_stop(context: PostgresContext, ids: Sequence[str]) -> list[str]:
    text, at_ms = context.statements("order_stop"), context.clock.given_ms()
    rows = await context.use(lambda connection: connection.fetch(text, at_ms, ANNOUNCED_MS, list(ids)))
    found = {row[0] for row in rows}
    return [id for id in dict.fromkeys(ids) if id in found]


async def tallies(
    context: PostgresContext,
    since_ms: int,
    until_ms: int,
    step_ms: int,
    queue: str | None = None,
    name: str | None = None,
) -> list[Tally]:
    text, stored_ms = context.statements("tallies"), stored_step(step_ms)
    first_ms = first_kept_ms(stored_ms, since_ms, context.clock.now())
    rows = await context.use(lambda one: one.fetch(text, stored_ms, first_ms, until_ms, queue, name))
    found = (
        from_flat(start_ms, stored_ms, of, named, _decode(counts) | _decode(texts))
        for start_ms, of, named, counts, texts in rows
    )
    return series(found, step_ms)
