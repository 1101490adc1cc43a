"""Why targets are missed, where somebody has looked into it."""

from __future__ import annotations

from bench.figures import Verdict

NOT_YET = "not yet looked into"

#: By the name of a measure, or of one of its figures (`redis drain: drain at 1 slot, …`), one sentence.
REASONS: dict[str, str] = {}


def of(verdict: Verdict) -> str:
    """The sentence about this figure, or about all of its measure."""
    known = (f"{verdict.measure}: {verdict.what}", verdict.measure)
    return next((REASONS[one] for one in known if one in REASONS), NOT_YET)
