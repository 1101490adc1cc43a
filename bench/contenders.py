"""Who is measured on a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bench.lab import Lab

#: We are measured whoever else is asked for: each name of ours begins so.
OURS = "jobmill"


class Contender(Protocol):
    """What there is to know of a `Peer`, or of whom a measure runs in its own way, before anything is run."""

    @property
    def name(self) -> str:
        """As it stands in the tables."""

    @property
    def missing(self) -> Callable[[], str | None]:
        """Tells why it cannot be measured, if it cannot."""


def is_there(lab: Lab, contender: Contender) -> bool:
    """Whether it was asked for and can be measured; if it cannot, the report says why."""
    if not contender.name.startswith(OURS) and not lab.wants(contender.name):
        return False
    lab.prepare(f"looking for {contender.name}")
    why = contender.missing()
    if why is not None:
        lab.results.missing[contender.name] = why
    return why is None
