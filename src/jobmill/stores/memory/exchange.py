"""The verb exchange: settle what is finished, then claim what is due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jobmill.core.values import Claim, Exchanged
from jobmill.stores.memory import claim as claims
from jobmill.stores.memory import lanes
from jobmill.stores.memory.context import MemoryContext
from jobmill.stores.memory.settle import settle

if TYPE_CHECKING:
    from jobmill.core.values import Settlement


def exchange(context: MemoryContext, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
    """Settle, then claim jobs that this call did not settle."""
    settled = [settle(context, done) for done in settlements]
    excluded = {done.lease.id for done in settlements}
    if context.jobs.lanes:
        lanes.advance(context)
    if context.ends:
        context.ends.tell(excluded)
    claimed, next_due_ms = ([], None) if claim is None else claims.claim(context, claim, excluded)
    now_ms, has_outbox = context.now_ms, bool(context.outbox)
    return Exchanged(settled=settled, claimed=claimed, next_due_ms=next_due_ms, now_ms=now_ms, has_outbox=has_outbox)
