"""The verb exchange: settle what is finished, then claim what is free."""

from __future__ import annotations

from collections.abc import Sequence

from jobmill.core.values import Broken, Claim, Claimed, Exchanged, Settled, Settlement
from jobmill.stores.sqlite.claim import claim
from jobmill.stores.sqlite.settle import locate, settle
from jobmill.stores.sqlite.context import Context


def exchange(context: Context, settlements: Sequence[Settlement], wish: Claim | None) -> tuple[Exchanged, int]:
    """The answer; and how many rings it has seen, its own included."""
    settled: list[Settled] = settle(context, settlements) if settlements else []
    claimed: list[Claimed | Broken] = []
    next_due_ms = None
    if wish is not None:
        # Only what waits again could be claimed in the same call. Where a settlement was lost, its job may have left,
        # and its number be another's.
        answers = zip(settlements, settled, strict=True)
        back = {locate(context, done.lease) for done, how in answers if done.state == "waiting" and how == "done"}
        claimed, next_due_ms = claim(context, wish, back)
    exchanged = Exchanged(settled=settled, claimed=claimed, next_due_ms=next_due_ms, now_ms=context.now_ms)
    return exchanged, context.rings + context.wakes
