"""Who is measured on a server."""

from __future__ import annotations

from bench.lab import Lab
from bench.peers.peer import Peer

#: We are measured whoever else is asked for.
OURS = "jobmill"


def is_there(lab: Lab, peer: Peer) -> bool:
    """Whether it was asked for and can be measured; if it cannot, the report says why."""
    if peer.name != OURS and not lab.wants(peer.name):
        return False
    lab.prepare(f"looking for {peer.name}")
    why = peer.missing()
    if why is not None:
        lab.results.missing[peer.name] = why
    return why is None
