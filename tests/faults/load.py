"""A load of jobs during a fault, and what must hold for each of them afterwards."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import jobmill
from jobmill import Client, StoreUnavailable
from tests.faults.operations import FaultyServer
from tests.helpers import until
from tests.kit.workers import WorkerProcesses

#: Longer than the lease of the workers, which is 1 s.
LONGER_THAN_THE_LEASE_S = 2.5

#: A call ends after 10 s, and a worker looks again after at most 5 s. The rest is for a busy machine.
RESUMED_WITHIN_S = 60.0
ALL_ENDED_WITHIN_S = 90.0
#: Stores give each call 10 s, and a connection some more. The rest is for a busy machine.
CALL_ENDED_WITHIN_S = 60.0

#: More notes than a worker can write for jobs that it had claimed before: 20 of them, with two notes each.
NEWLY_CLAIMED = 60

#: One job in this many runs for longer than a lease, so that the lease must be extended.
LONG_EVERY = 40
LONG_MS = 1_500

#: One job in this many is followed by a job with a unique key, which nobody works.
KEYED_EVERY = 5
KEYS = 4
PARKED = "parked"

#: How a worker's log line begins to end, when the store is not available.
TRYING_AGAIN = "trying again in"


class Load:
    """Jobs that are enqueued one by one, each again and again until the store acknowledges it."""

    def __init__(self, jobs: Client, workers: WorkerProcesses) -> None:
        self.jobs = jobs
        self.workers = workers
        self.acknowledged: list[str] = []
        #: What the store said each time that it was unavailable to us.
        self.refused: list[str] = []
        #: The ids that the store named for each unique key.
        self.named: defaultdict[str, set[str]] = defaultdict(set)
        #: How many jobs were claimed more than once; known after `check()`.
        self.claimed_again = 0
        self._is_over = False

    @asynccontextmanager
    async def enqueued(self) -> AsyncIterator[None]:
        """Enqueue as long as the block lasts. An error other than StoreUnavailable ends the block."""
        async with asyncio.TaskGroup() as group:
            producing = group.create_task(self._produce())
            try:
                await self.moves()
                yield
            except BaseException:
                producing.cancel()
                raise
            self._is_over = True

    async def _produce(self) -> None:
        while not self._is_over:
            n = len(self.acknowledged)
            await self.enqueue(f"job-{n}", 2 if n % LONG_EVERY else LONG_MS)
            if not n % KEYED_EVERY:
                await self._enqueue_keyed(f"key-{n // KEYED_EVERY % KEYS}")
            await asyncio.sleep(0.005)

    async def enqueue(self, id: str, ms: int = 2) -> None:
        """One job, until it is acknowledged."""
        while not await self._enqueue_once(id, ms):
            pass
        self.acknowledged.append(id)

    async def _enqueue_once(self, id: str, ms: int) -> bool:
        try:
            async with asyncio.timeout(CALL_ENDED_WITHIN_S):
                await self.jobs.enqueue("fenced", {"ms": ms}, id=id)
        except StoreUnavailable as error:
            self.refused.append(str(error))
            await asyncio.sleep(0.02)
            return False
        return True

    async def _enqueue_keyed(self, key: str) -> None:
        """A job with another id each time; the store may make one for each key."""
        try:
            async with asyncio.timeout(CALL_ENDED_WITHIN_S):
                job = await self.jobs.enqueue("fenced", {}, queue=PARKED, unique_key=key)
        except StoreUnavailable as error:
            self.refused.append(str(error))
        else:
            self.named[key].add(job.id)

    async def moves(self, by: int = 20, within: float = 60.0) -> None:
        """Wait until handlers have noted so much more."""
        seen = len(self.workers.notes())
        await until(lambda: len(self.workers.notes()) >= seen + by, within)

    async def resumes(self) -> None:
        """Wait until a job that is enqueued now has ended."""
        id = f"after-{len(self.acknowledged)}"
        await self.enqueue(id)
        await until(lambda: ("end", id) in {note[:2] for note in self.workers.notes()}, RESUMED_WITHIN_S)

    async def begin_long_job(self) -> None:
        """Wait until a job runs that runs for longer than a lease."""
        id = f"long-{len(self.acknowledged)}"
        await self.enqueue(id, LONG_MS)
        await until(lambda: ("run", id) in {note[:2] for note in self.workers.notes()}, RESUMED_WITHIN_S)

    async def is_noticed(self, text: str = TRYING_AGAIN) -> None:
        """Wait until each running worker has logged this."""
        for process in self.workers.running():
            await until(lambda process=process: text in self.workers.output(process), RESUMED_WITHIN_S)  # type: ignore[misc]

    async def is_noticed_or_survived(self) -> None:
        """Wait until each running worker has logged the fault, or works on.

        A driver may notice it itself, and send its calls again over a new connection: then the worker sees nothing.
        """
        seen = Counter(note.pid for note in self.workers.notes())

        def has(process: subprocess.Popen[bytes]) -> bool:
            noted = sum(note.pid == process.pid for note in self.workers.notes())
            return noted >= seen[process.pid] + NEWLY_CLAIMED or TRYING_AGAIN in self.workers.output(process)

        await until(lambda: all(map(has, self.workers.running())), RESUMED_WITHIN_S)

    async def check(self) -> None:
        """Each acknowledged job has succeeded under the last of its claims; no claim has run twice."""
        await self.all_have_succeeded()
        ended = [job async for job in self.jobs.find_all(queue="default")]
        assert Counter(job.id for job in ended) == Counter(self.acknowledged)
        # The result is the fence of the run that returned it: an older one was settled after it was lost.
        assert [job.id for job in ended if job.result != job.claims] == []
        assert [job.id for job in ended if job.errors or job.claims < 1 + job.crashes] == []
        runs = Counter((id, fence) for word, id, fence, _ in self.workers.notes() if word == "run")
        assert set(runs.values()) == {1}
        self.claimed_again = sum(job.claims > 1 for job in ended)
        await self._check_keys()

    async def _check_keys(self) -> None:
        parked = [job async for job in self.jobs.find_all(queue=PARKED)]
        owners = {job.unique_key: job.id for job in parked}
        assert len(owners) == len(parked), "a unique key has two live jobs"
        assert {key: {owners[key]} for key in self.named} == self.named

    async def all_have_succeeded(self) -> None:
        """Wait until all jobs that workers work have succeeded."""

        async def they_have() -> bool:
            return {one.state for one in await self.jobs.count(queue="default")} == {"succeeded"}

        await until(they_have, ALL_ENDED_WITHIN_S)

    def check_workers(self) -> None:
        """All workers run, and each problem is one line of their logs."""
        for process in self.workers.processes:
            output = self.workers.output(process)
            assert process.poll() is None, output
            assert "Traceback" not in output, output


@asynccontextmanager
async def working(workers: WorkerProcesses, count: int = 2) -> AsyncIterator[Load]:
    """Start workers, and have each run a job; nothing else is enqueued yet."""
    for _ in range(count):
        workers.worker("--concurrency", "20")
    async with jobmill.connect(workers.url) as jobs:
        load = Load(jobs, workers)

        async def all_have_run() -> bool:
            await load.enqueue(f"first-{len(load.acknowledged)}", ms=50)
            ran = {note.pid for note in workers.notes()}
            return ran >= {process.pid for process in workers.processes}

        await until(all_have_run, 60)
        yield load


@asynccontextmanager
async def loaded(server: FaultyServer) -> AsyncIterator[Load]:
    """Two workers work, and jobs are enqueued as long as the block lasts. Afterwards every promise was kept."""
    async with working(server.workers) as load:
        async with load.enqueued():
            yield load
        await load.check()
        assert await server.duplicates() == []
