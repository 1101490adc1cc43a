"""Who is measured on a server."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from bench.lab import Lab
from bench.peers.peer import Peer

#: We are measured whoever else is asked for: each name of ours begins so.
OURS = "jobmill"


class Contender(Struct, frozen=True):
    """Who is measured on MongoDB, where each measure knows how each of them is run."""

    name: str
    #: Why it cannot be measured, if it cannot.
    missing: Callable[[], str | None]
    #: Make what it keeps its jobs in at this URL, and so many jobs.
    fill: Callable[[str, int], None]


def is_there(lab: Lab, peer: Peer | Contender) -> bool:
    """Whether it was asked for and can be measured; if it cannot, the report says why."""
    if not peer.name.startswith(OURS) and not lab.wants(peer.name):
        return False
    lab.prepare(f"looking for {peer.name}")
    why = peer.missing()
    if why is not None:
        lab.results.missing[peer.name] = why
    return why is None
