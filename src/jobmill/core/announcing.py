"""What a worker announces about itself, and what it is ordered to do."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

#: How often a worker announces itself, and how long an announcement is valid.
ANNOUNCE_EVERY_S: Final = 10
ANNOUNCED_MS: Final = 30_000
#: How long a store remembers an announcement. A worker that repeats one after an outage is not counted twice.
CARD_KEPT_MS: Final = 60 * 60 * 1000


class WorkerCard(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One worker process as it announced itself."""

    #: Made anew at every start.
    id: str
    #: The name of the worker, which its jobs carry. Several workers may have the same one.
    name: str
    host: str
    pid: int
    version: str
    python: str
    started_ms: int
    queues: tuple[str, ...]
    #: The names of its handlers.
    names: tuple[str, ...]
    concurrency: int
    running: int = 0
    stopping: bool = False
    #: How far the clock of its machine is ahead of the clock of the store.
    clock_skew_ms: int = 0
    #: Milliseconds since the last iteration of each loop.
    loops: dict[str, int] = {}
    #: Milliseconds since a purge of this worker left nothing to remove, or since its start; None if it does not say so.
    purge_age_ms: int | None = None
    #: Counts the announcements of this worker. A store takes the tallies of each announcement once.
    announcement: int = 0
    #: When the store received the announcement; set by the store.
    seen_ms: int = 0
    #: "jobmill", or the system of a foreign worker, of which the other fields may be unknown.
    system: str = "jobmill"


class Orders(Struct, frozen=True, kw_only=True):
    """The answer to an announcement: what the worker must do."""

    #: Stop gracefully.
    stop: bool = False
