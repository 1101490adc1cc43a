"""The one shape of all contenders on a server: what the measures may ask of each, whatever it runs on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from bench.child import Child, start
from bench.child import run as in_child
from bench.figures import Ran
from bench.peers.about import About
from bench.pickups import Pickups


class Peer(Struct, frozen=True, kw_only=True):
    """A job queue on a server. All but `missing` work in a fresh process, on what lies at a URL."""

    about: About
    #: Why it cannot be measured, if it cannot.
    missing: Callable[[], str | None]
    #: url, jobs: make what it keeps its jobs in, and so many waiting no-op jobs.
    fill: Callable[[str, int], None]
    #: url, jobs, slots: one worker process runs all of them. It halts in the first handler, and when no job is live.
    drain: Callable[[str, int, int], Child[Ran]]
    #: url, callers, jobs, seconds: each caller enqueues one job, awaits the answer, and enqueues the next.
    enqueue: Callable[[str, int, int, float], Child[Ran]]
    #: url, size, jobs, seconds: one caller hands so many jobs in with each call. None: it has no such call.
    bulk: Callable[[str, int, int, float], Child[Ran]] | None
    #: url, jobs, seconds, slots: an idle worker says that it is ready, and answers when it started each job.
    pickup_work: Callable[[str, int, float, int], Child[list[int]]]
    #: url, jobs, seed: enqueues for that worker.
    pickup_enqueue: Callable[[str, int, int], Pickups]
    #: url: enqueue one job for `work`.
    hold: Callable[[str], None]
    #: url, slots, path: a worker with all defaults but its slots says that it is ready, and works until it is killed.
    #: Its handler appends a line to the file and then waits.
    work: Callable[[str, int, str], Child[None]]
    #: More than so many slots it cannot have in one process.
    most_slots: int | None = None

    @property
    def name(self) -> str:
        """As it stands in the tables."""
        return self.about.name

    def takes(self, slots: int) -> bool:
        """Whether one worker process of it can run so many jobs at a time."""
        return self.most_slots is None or slots <= self.most_slots


class Adapter(Protocol):
    """A module in Python with plain functions of these names, which run in the child; see `Peer` for what they do."""

    @property
    def ABOUT(self) -> About:  # noqa: N802
        ...

    def missing(self) -> str | None: ...

    def fill(self, url: str, jobs: int) -> None: ...

    def drain(self, url: str, jobs: int, slots: int) -> Ran: ...

    def enqueue(self, url: str, callers: int, jobs: int, seconds: float) -> Ran: ...

    def pickup_work(self, url: str, jobs: int, seconds: float, slots: int) -> list[int]: ...

    def pickup_enqueue(self, url: str, jobs: int, seed: int) -> Pickups: ...

    def hold(self, url: str) -> None: ...

    def work(self, url: str, slots: int, path: str) -> None: ...


class Bulk(Protocol):
    """The function `bulk` of a module that has one."""

    def __call__(self, url: str, size: int, jobs: int, seconds: float) -> Ran: ...


def in_python(of: Adapter, *, bulk: Bulk | None = None, most_slots: int | None = None) -> Peer:
    """The peer whose functions are those of a module, and its bulk call, if it has one."""
    begin_bulk = None if bulk is None else _begin_bulk(bulk)
    return Peer(
        about=of.ABOUT,
        missing=of.missing,
        fill=lambda url, jobs: in_child(of.fill, url=url, jobs=jobs),
        drain=lambda url, jobs, slots: start(of.drain, url=url, jobs=jobs, slots=slots),
        enqueue=lambda url, callers, jobs, seconds: start(
            of.enqueue, url=url, callers=callers, jobs=jobs, seconds=seconds
        ),
        bulk=begin_bulk,
        pickup_work=lambda url, jobs, seconds, slots: start(
            of.pickup_work, url=url, jobs=jobs, seconds=seconds, slots=slots
        ),
        pickup_enqueue=lambda url, jobs, seed: in_child(of.pickup_enqueue, url=url, jobs=jobs, seed=seed),
        hold=lambda url: in_child(of.hold, url=url),
        work=lambda url, slots, path: start(of.work, url=url, slots=slots, path=path),
        most_slots=most_slots,
    )


def _begin_bulk(bulk: Bulk) -> Callable[[str, int, int, float], Child[Ran]]:
    return lambda url, size, jobs, seconds: start(bulk, url=url, size=size, jobs=jobs, seconds=seconds)
