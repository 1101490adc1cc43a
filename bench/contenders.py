"""Who is measured on a server."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from bench.lab import Lab


class Contender(Struct, frozen=True):
    """A job queue on a server."""

    name: str
    #: Why it cannot be measured, if it cannot.
    missing: Callable[[], str | None]
    #: Make what it keeps its jobs in at this URL, and so many jobs.
    fill: Callable[[str, int], None]


def is_there(lab: Lab, contender: Contender) -> bool:
    """Whether it can be measured; if not, the report says why."""
    lab.prepare(f"looking for {contender.name}")
    why = contender.missing()
    if why is not None:
        lab.results.missing[contender.name] = why
    return why is None
