"""The summary of a tick, which claims due jobs once, runs them in this process and settles them."""

from __future__ import annotations

from msgspec import Struct


class Tick(Struct, frozen=True, kw_only=True):
    """The summary of one tick. `waiting` jobs were snoozed or released; `lost` settlements came too late."""

    claimed: int = 0
    succeeded: int = 0
    retrying: int = 0
    failed: int = 0
    waiting: int = 0
    lost: int = 0
