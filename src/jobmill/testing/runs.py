"""Runs: what a job did in a test, and how jobs are run here, one after the other."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, cast

from msgspec import Raw, Struct

from jobmill.client.client import Client
from jobmill.core.durations import to_datetime
from jobmill.core.job import Job
from jobmill.core.lifecycle import was_written
from jobmill.core.values import Claim, Claimed, Exchanged, Refused, Settlement
from jobmill.errors import JobFailed, StoreUnavailable
from jobmill.handlers.context import Context
from jobmill.handlers.draft import Draft
from jobmill.handlers.enqueued import Enqueued
from jobmill.handlers.observers import RunEnd
from jobmill.store import Store
from jobmill.worker.lifespans import Lifespans
from jobmill.worker.worker import Worker

if TYPE_CHECKING:
    from jobmill.testing.store_calls import StoreCalls

R = TypeVar("R")

#: How an attempt ended. crashed: the job had crashed too often, and failed. lost: the worker died, or lost the job.
RunOutcome: TypeAlias = Literal["succeeded", "errored", "crashed", "snoozed", "released", "suspended", "lost"]

#: How many times in a row a flaky store may refuse a tick.
MAX_TRIES = 1_000


class JobRun(Struct, Generic[R], frozen=True, kw_only=True):
    """One attempt of one job. `R` is the type of its result."""

    #: The job after the attempt; as it was during the attempt if the store has removed it.
    job: Job
    attempt: int
    #: When it ran, by the clock of the store.
    at: datetime
    outcome: RunOutcome
    #: What the handler raised. A TimeoutError or RuntimeError stands for an error that is no exception in this process.
    error: BaseException | None
    #: Whether the job has failed: it is not retried. A recurring job has failed this time.
    failed: bool
    _decoded: Callable[[], R]

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.job.name

    @property
    def payload(self) -> Any:
        """The arguments of the handler, as JSON values."""
        return self.job.payload

    @property
    def result(self) -> R:
        """What the handler returned, as the type of its annotation. An AssertionError if the run did not succeed."""
        if self.outcome != "succeeded":
            raise AssertionError(f"there is no result: {self}") from self.error
        return self._decoded()

    def __repr__(self) -> str:
        """Job, attempt and outcome."""
        why = f", {self.job.error}" if self.outcome in ("errored", "crashed") else ""
        return f"<run of {shown_call(self.job)}, attempt {self.attempt}: {self.outcome}{why}>"


class JobRuns(list[JobRun[Any]]):
    """Runs in the order in which they ended."""

    @property
    def names(self) -> list[str]:
        """The names of the jobs."""
        return [run.name for run in self]

    @property
    def succeeded(self) -> JobRuns:
        """Those that succeeded."""
        return JobRuns(run for run in self if run.outcome == "succeeded")

    @property
    def errored(self) -> JobRuns:
        """Those that raised an error, timed out or crashed too often."""
        return JobRuns(run for run in self if run.outcome in ("errored", "crashed"))

    def raise_first_error(self) -> None:
        """Raise the error of the first run that has one, with a note that names the job."""
        for run in self.errored:
            error = run.error or JobFailed(f"job {run.job.id!r} ({run.name}) failed: {run.job.error}", run.job)
            state = "it has failed" if run.failed else f'it is due again at {run.job.due_at}: errors="keep" continues'
            error.add_note(f"raised by the job {shown_call(run.job)} in attempt {run.attempt}; {state}")
            raise error


def shown_call(job: Job) -> str:
    """A job as a call of its handler: `send(to='ada')`."""
    try:
        payload = job.payload
    except ValueError:
        payload = bytes(job.payload_json)
    arguments = ", ".join(f"{field}={value!r}" for field, value in payload.items()) if isinstance(payload, dict) else ""
    text = f"{job.name}({arguments if isinstance(payload, dict) else repr(payload)})"
    return text if len(text) <= 300 else text[:299] + "…"


class WatchedStore:
    """The store of a worker. It records what the worker claims and settles; everything else is the store's own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.claimed: dict[tuple[str, str], Job] = {}
        #: By job id and token: the settlement, and whether the store says that it is lost.
        self.settled: dict[tuple[str, str], tuple[Settlement, bool]] = {}

    def __getattr__(self, name: str) -> Any:
        """The rest of the port."""
        return getattr(self._store, name)

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        """Pass the call on, and record what it did."""
        answer = await self._store.exchange(settlements, claim)
        for settlement, settled in zip(settlements, answer.settled, strict=True):
            if not isinstance(settled, Refused):
                self.settled[settlement.lease.id, settlement.lease.token] = settlement, settled == "lost"
        for one in answer.claimed:
            if isinstance(one, Claimed):
                self.claimed[one.lease.id, one.lease.token] = one.job
        return answer


class RecordingRegistry:
    """The application of a client, for a worker of a test. It records how runs end; the rest is the client's own."""

    def __init__(self, client: Client, store: Store, watched: WatchedStore) -> None:
        self._client = client
        # Not the client: recurrences that handlers declare are no jobs that the test enqueues.
        self._plain = Client(store)
        self.store = cast(Store, watched)
        self.handlers = client.handlers
        self.hooks = client.hooks.with_run_observer(self._record)
        #: By job id and number of claims.
        self.ends: dict[tuple[str, int], RunEnd] = {}

    def __getattr__(self, name: str) -> Any:
        """What a worker needs of the client, such as its usage recorders."""
        return getattr(self._client, name)

    async def open(self) -> None:
        """Open the store."""
        await self._plain.open()

    async def enqueue_many(self, drafts: Iterable[Draft[Any]], *, within: Any = None) -> list[Enqueued[Any]]:
        """Enqueue the recurrences that handlers declare."""
        return await self._plain.enqueue_many(drafts, within=within)

    def _record(self, context: Context) -> Generator[None, RunEnd, None]:
        self.ends[context.job.id, context.job.claims] = yield


class JobRunner:
    """Runs due jobs of an application in this process, a few at a time, and records each run."""

    def __init__(self, client: Client, store: Store, calls: StoreCalls | None = None) -> None:
        #: The store without the faults of a test, for own queries.
        self.reads = store if calls is None else calls.direct
        self._calls = calls
        self._watched = WatchedStore(store)
        self.registry = RecordingRegistry(client, store, self._watched)
        self._random = random.Random(0)  # retries are due at the same times in each run of a test

    def lifespans(self) -> Lifespans:
        """The lifespans of the application, not yet open. They stay open for several ticks."""
        return Lifespans(self.registry.hooks.lifespans)

    async def tick(self, limit: int, lifespans: Lifespans) -> JobRuns | None:
        """Claim up to `limit` due jobs of all queues and run them; None if no job is due."""
        died = 0 if self._calls is None else self._calls.attempts_died
        await self.registry.open()
        queues = [one.queue for one in await self.reads.depths(limit=0)]
        for _ in range(MAX_TRIES):
            worker = Worker(self.registry, concurrency=limit, queues=queues)
            worker.random = self._random
            worker.lifespans = lifespans
            try:
                claimed = (await worker.tick()).claimed
                break
            except StoreUnavailable:
                if self._calls is None or not self._calls.is_flaky:
                    raise
        else:
            raise StoreUnavailable(f"flaky_store lost {MAX_TRIES:,} calls in a row")
        is_over = not claimed and (self._calls is None or died == self._calls.attempts_died)
        return None if is_over else await self._runs_of(worker.name)

    async def _runs_of(self, worker: str) -> JobRuns:
        """What this worker ran. Another one may be running, if a handler enqueues a job that runs inline."""
        claimed, settled = self._watched.claimed, self._watched.settled
        keys = [key for key in settled if key in claimed and claimed[key].worker == worker]
        found = [(claimed.pop(key), *settled.pop(key)) for key in keys]
        after = await self.reads.get([job.id for job, *_ in found]) if found else []
        if self._calls is not None:
            self._calls.read.update(job.id for job, *_ in found)
        now = to_datetime(self.reads.now())
        return JobRuns(
            self._run(job, settlement, lost, stored, now)
            for (job, settlement, lost), stored in zip(found, after, strict=True)
        )

    def _run(self, job: Job, settlement: Settlement, lost: bool, stored: Job | None, now: datetime) -> JobRun[Any]:
        end = self.registry.ends.pop((job.id, job.claims), None)
        # A settlement whose answer was lost is sent again, and lost then, because it was written the first time.
        is_lost = lost and not was_written(settlement, job, stored)
        handler, result = self.registry.handlers[job.name], Raw(settlement.result_json)
        is_error = settlement.outcome in ("errored", "crashed") and not is_lost
        return JobRun(
            job=stored or job,
            attempt=settlement.attempt,
            at=now,
            outcome="lost" if is_lost else settlement.outcome,
            error=None if end is None else end.error,
            failed=is_error and (settlement.state == "failed" or settlement.rearm is not None),
            _decoded=lambda: handler.decode_result(result),
        )
