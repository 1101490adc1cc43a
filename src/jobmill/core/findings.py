"""Findings: what `jobmill doctor` and `jobmill fsck` say about a store and its data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import msgspec
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

#: The check whose evidence is the facts of the store. Every store has it.
REACHABLE = "reachable"


class StoreFacts(Struct, frozen=True, kw_only=True):
    """What a store says about itself."""

    #: "PostgreSQL", and its version: "17.2". None where there is no server and no library.
    product: str
    version: str | None = None
    #: How long the store took to answer a query that reads nothing.
    response_ms: float
    #: What the files, tables or collections with the jobs take. On Redis: the memory of the servers, with other data.
    size_bytes: int | None = None
    #: The number of the last migration; None for a store without migrations.
    schema: int | None = None


def reachable(facts: StoreFacts) -> Finding:
    """The finding of a store that answers."""
    name = f"{facts.product} {facts.version}" if facts.version else facts.product
    schema = "" if facts.schema is None else f", and its schema is current (version {facts.schema})"
    evidence = msgspec.to_builtins(facts)
    return Finding(check=REACHABLE, text=f"{name} answers in {facts.response_ms:.1f} ms{schema}", evidence=evidence)


def facts_of(findings: Iterable[Finding]) -> StoreFacts | None:
    """The facts among the findings of a store."""
    return next((msgspec.convert(one.evidence, StoreFacts) for one in findings if one.check == REACHABLE), None)
