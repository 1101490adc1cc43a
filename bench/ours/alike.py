"""What our side of the measures does in the same way on every store: only the URL differs."""

from __future__ import annotations

from bench.figures import Ran
from bench.loop import run
from bench.ours import enqueue as enqueueing
from bench.ours import hold as holding
from bench.ours import pickup
from bench.pickups import Pickups


def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """Each caller enqueues one job, awaits the answer, and enqueues the next."""
    return run(enqueueing.singly(url, callers, jobs, seconds))


def bulk(url: str, size: int, jobs: int, seconds: float) -> Ran:
    """One caller hands so many jobs in with each call."""
    return run(enqueueing.in_bulk(url, size, jobs, seconds))


def pickup_work(url: str, jobs: int, seconds: float, slots: int) -> list[int]:
    """The worker's side: says that it is ready, and when it started each job."""
    return run(pickup.working(url, jobs, seconds, slots))


def pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    return run(pickup.enqueueing(url, jobs, seed))


def hold(url: str) -> None:
    """One job for `work`."""
    run(holding.enqueueing(url))


def work(url: str, slots: int, path: str) -> None:
    """A worker until it is killed."""
    run(holding.working(url, slots, path))
