"""Run what is due, here and now, until nothing is: for tests of applications."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from jobmill.worker.tick import Tick, tick

if TYPE_CHECKING:
    from jobmill.client.client import Client


async def drain(jobs: Client, *, most: int = 10_000) -> Tick:
    """Tick until nothing is due, or `most` jobs ran; what came of all of them.

    Delayed jobs and retries are due when the store's clock says so: move it with a ManualClock and drain again.
    """
    await jobs.open()
    total = Tick()
    while total.claimed < most:
        done = await tick(jobs, min(100, most - total.claimed), None)
        if not done.claimed:
            break
        total = Tick(**{field: getattr(total, field) + getattr(done, field) for field in structs.asdict(done)})
    return total
