"""The verb exchange: settle what is finished, then claim what is due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from jobmill.core.values import Claim, Exchanged
from jobmill.stores.sqlite.claim import claim
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.lanes import advance, known_lanes
from jobmill.stores.sqlite.leases import locate
from jobmill.stores.sqlite.settle import settle

if TYPE_CHECKING:
    from jobmill.core.values import Settlement


def exchange(context: SqliteContext, settlements: Sequence[Settlement], wish: Claim | None) -> tuple[Exchanged, int]:
    """The answer; and how often the bell will have rung for what it saw, its own changes included.

    Jobs that this call made wait again are not claimed. A lost settlement excludes nothing: its job may have been
    removed, and its seq given to another job.
    """
    settled = settle(context, settlements) if settlements else []
    done = [one for one, answer in zip(settlements, settled, strict=True) if answer == "done"]
    # The last run of a recurring job makes it wait again if its rule was changed while it ran.
    back = {locate(context, one.lease) for one in done if one.state == "waiting" or one.runs}
    if known_lanes(context):
        advance(context, () if wish is None else wish.queues)
    claimed, next_due_ms = ([], None) if wish is None else claim(context, wish, back)
    exchanged = Exchanged(settled=settled, claimed=claimed, next_due_ms=next_due_ms, now_ms=context.now_ms)
    if context.has_outbox:
        exchanged = structs.replace(exchanged, has_outbox=True)
    return exchanged, context.rings + context.wakes
