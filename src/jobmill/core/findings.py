"""Findings: what `jobmill doctor` and `jobmill fsck` say about a store and its data."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

#: ok: nothing is wrong. warning: something will go wrong, or is slow. error: something is wrong now.
Level: TypeAlias = Literal["ok", "warning", "error"]


class Finding(Struct, frozen=True, kw_only=True):
    """The result of one check."""

    #: Which check: "clock_skew", "running_without_lease".
    check: str
    level: Level = "ok"
    #: A sentence for people.
    text: str
    #: What the finding is based on, for programs: ids (at most `IDS_SHOWN`), numbers.
    evidence: dict[str, Any] = {}
    #: What to do; None if nothing is wrong.
    remedy: str | None = None
    #: How many records are damaged, and whether `fsck(repair=True)` can repair them.
    count: int = 0
    can_repair: bool = False
    #: How many were repaired in this call.
    repaired: int = 0


IDS_SHOWN = 20
