"""The verbs announce, workers, order_stop and tallies."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import structs

from jobmill.core.announcing import ANNOUNCED_MS, Orders, WorkerCard
from jobmill.core.tallies import Tally, added, first_kept_ms, in_all_steps, series, stored_step
from jobmill.stores.sqlite.codec import as_json
from jobmill.stores.sqlite.context import SqliteContext

_decode_card = msgspec.json.Decoder(WorkerCard).decode
_decode_tally = msgspec.json.Decoder(Tally).decode


def announce(context: SqliteContext, card: WorkerCard, tallies: Sequence[Tally], *, leaves: bool = False) -> Orders:
    """Write a card, and add its tallies unless this announcement was received before."""
    announcement, must_stop = context.row("worker", (card.id,)) or (None, False)
    if announcement is None or announcement < card.announcement:
        _add(context, tallies)
    text = None if leaves else as_json(structs.replace(card, seen_ms=context.now_ms))
    context.write("write_worker", (card.id, context.now_ms, card.announcement, text))
    return Orders(stop=bool(must_stop))


def _add(context: SqliteContext, tallies: Sequence[Tally]) -> None:
    sums: dict[tuple[int, int, str, str], Tally] = {}
    for part in in_all_steps(tallies):
        key = (part.step_ms, part.start_ms, part.queue, part.name)
        if key not in sums and (row := context.row("tally", key)) is not None:
            sums[key] = _decode_tally(row[0])
        sums[key] = added(sums[key], part) if key in sums else part
    context.write_rows("write_tallies", (), [(*key, as_json(tally)) for key, tally in sums.items()])


def workers(context: SqliteContext) -> list[WorkerCard]:
    """The workers whose announcement is valid."""
    cards = [_decode_card(row[0]) for row in context.rows("workers", (context.now_ms - ANNOUNCED_MS,))]
    return sorted(cards, key=lambda card: (card.started_ms, card.id))


def order_stop(context: SqliteContext, ids: Sequence[str]) -> list[str]:
    """Order workers to stop; the ids of those that are there."""
    oldest_ms = context.now_ms - ANNOUNCED_MS
    return [id for id in dict.fromkeys(ids) if context.write("order_stop", (id, oldest_ms))]


def tallies(
    context: SqliteContext,
    since_ms: int,
    until_ms: int,
    step_ms: int,
    queue: str | None = None,
    name: str | None = None,
) -> list[Tally]:
    """What workers counted."""
    stored_ms = stored_step(step_ms)
    first_ms = first_kept_ms(stored_ms, since_ms, context.now_ms)
    rows = context.rows("tallies", (stored_ms, first_ms, until_ms, queue, name))
    return series((_decode_tally(row[0]) for row in rows), step_ms)
