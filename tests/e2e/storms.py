"""What bad days of a server have in common: somebody enqueues all the time, and in the end every job must be right."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from jobmill import Client, StoreUnavailable
from tests.e2e.conftest import Place
from tests.helpers import until

#: A worker looks again after at most 5 s, and has nothing to wait for but the jobs that it holds; on a busy machine.
RESUMED_WITHIN_S = 10.0
ALL_ENDED_WITHIN_S = 30.0


#: One job in so many needs its lease extended.
LONG_EVERY = 40
LONG_MS = 1_500


class Storm:
    """A load of jobs that is enqueued one by one, each again and again under its id until it is acknowledged."""

    def __init__(self, jobs: Client, place: Place) -> None:
        self._jobs = jobs
        self._place = place
        self.acknowledged: list[str] = []
        self.refused: list[str] = []
        #: How many jobs were claimed more than once.
        self.claimed_again = 0
        self._stopped = False

    @asynccontextmanager
    async def raging(self) -> AsyncIterator[None]:
        """Enqueue as long as the block lasts."""
        self._stopped = False
        producing = asyncio.create_task(self._produce())
        try:
            await self.moves()
            yield
        finally:
            self._stopped = True
            await producing

    async def _produce(self) -> None:
        while not self._stopped:
            n = len(self.acknowledged)
            await self.enqueue(f"storm-{n}", 2 if n % LONG_EVERY else LONG_MS)
            await asyncio.sleep(0.005)

    async def enqueue(self, id: str, ms: int = 2) -> None:
        """One job, however often it takes. What is not an expected error ends the test."""
        while True:
            try:
                await self._jobs.enqueue("fenced", {"ms": ms}, id=id)
            except StoreUnavailable as error:
                self.refused.append(str(error))
                await asyncio.sleep(0.02)
            else:
                self.acknowledged.append(id)
                return

    async def moves(self, by: int = 20, within: float = 30.0) -> None:
        """Until so many more jobs were run."""
        seen = len(self._place.notes())
        await until(lambda: len(self._place.notes()) >= seen + by, within)

    async def resumes(self) -> float:
        """Until a job that is enqueued now is done; how long that took."""
        began = time.monotonic()
        id = f"after-{len(self.acknowledged)}"
        await self.enqueue(id)
        await until(lambda: ("end", id) in {(word, one) for word, one, *_ in self._place.notes()}, RESUMED_WITHIN_S)
        return time.monotonic() - began

    async def all_is_well(self) -> None:
        """Every acknowledged job is in one final state, under the last claim that it had; no run was run twice."""

        async def all_ended() -> bool:
            return {one.state for one in await self._jobs.count()} == {"succeeded"}

        await until(all_ended, ALL_ENDED_WITHIN_S)
        ended = [job async for job in self._jobs.find_all()]
        assert Counter(job.id for job in ended) == Counter(self.acknowledged)
        # A settlement under an older claim would show here: a later claim had been given by then.
        assert [job.id for job in ended if job.result != job.claims] == []
        assert [job.id for job in ended if job.errors or job.claims < 1 + job.crashes] == []
        runs = Counter((id, fence) for word, id, fence, _ in self._place.notes() if word == "run")
        assert set(runs.values()) == {1}
        self.claimed_again = sum(job.claims > 1 for job in ended)

    async def was_said(self, expected: str = "worker") -> None:
        """Workers are alive, say sooner or later what happened, and each time in one line."""
        for process in self._place.processes:
            await until(lambda process=process: expected in self._place.said(process), RESUMED_WITHIN_S)  # type: ignore[misc]
            said = self._place.said(process)
            assert process.poll() is None, said
            assert "Traceback" not in said, said
