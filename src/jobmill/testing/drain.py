"""`drain`: runs due jobs in the current process, for tests of applications."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from jobmill.worker.lifespans import Lifespans
from jobmill.worker.tick import Tick
from jobmill.worker.worker import Worker

if TYPE_CHECKING:
    from jobmill.client.client import Client


async def drain(jobs: Client, *, max_jobs: int = 10_000) -> Tick:
    """Run due jobs until none is due, or `max_jobs` have run. Returns the sum of all ticks.

    The store's clock decides when delayed jobs and retries are due: move it with a ManualClock, and drain again.
    """
    total = Tick()
    async with Lifespans(jobs.hooks.lifespans) as lifespans:
        while total.claimed < max_jobs:
            worker = Worker(jobs, concurrency=min(100, max_jobs - total.claimed))
            worker.lifespans = lifespans  # open during the whole drain, not anew in every tick
            done = await worker.tick()
            if not done.claimed:
                break
            total = Tick(**{field: getattr(total, field) + getattr(done, field) for field in structs.asdict(done)})
    return total
