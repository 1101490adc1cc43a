"""A kind of server as measures see it that run on each of them in the same way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from msgspec import Struct

from bench.child import Child
from bench.figures import Ran
from bench.lab import Lab
from bench.metering import followed
from bench.peers.peer import Peer

#: url, pid: bytes written so far by the store at this URL, at which the process of this id works.
Written = Callable[[str, int], int]


class Unmetered(Exception):
    """Here it cannot be told how much is written; the message says why."""


class Ground(Struct, frozen=True, kw_only=True):
    """A kind of server: who is measured on it, and what the harness asks it."""

    store: str
    title: str
    ours: Peer
    #: Whom our targets name.
    rival: Peer
    #: We are the first.
    peers: tuple[Peer, ...]
    #: lab, peer, jobs: the URL of a place with so many waiting jobs of this contender only.
    filled: Callable[[Lab, Peer, int], AbstractContextManager[str]]
    #: lab, peers: the URLs of empty places, one for each contender.
    apart: Callable[[Lab, list[Peer]], AbstractContextManager[dict[str, Peer]]]
    #: url: asks whether any job of ours is live.
    looking: Callable[[str], AbstractContextManager[Callable[[], bool]]]
    #: lab, what, who, child: follow a run and record its rate, and what it cost both sides.
    record: Callable[[Lab, str, str, Child[Ran]], Ran]
    #: lab, finished: the URL of a place of ours with so many finished jobs, the same each time it is asked for.
    kept: Callable[[Lab, int], AbstractContextManager[str]]
    #: url: what was done there so far costs a run from now on nothing.
    make_ready: Callable[[str], None]
    #: CPU seconds of the server until now; None: there is no server, only the processes that work.
    cpu_seconds: Callable[[Lab], float] | None
    #: lab: a counter of what goes to the disk, or would; it may set the server up for it as long as the block lasts.
    written: Callable[[Lab], AbstractContextManager[Written]]

    def who(self, peer: Peer) -> str:
        """As a table says it that holds several servers."""
        return f"{peer.name} on {self.title}"


def run_one(peer: Peer, url: str) -> None:
    """Leave one job there that has really run."""
    peer.fill(url, 1)
    followed(peer.drain(url, 1, 1), lambda: None)
