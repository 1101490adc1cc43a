"""Acts on all jobs that match, or of a flow: they run in the background, batch by batch, and can be stopped."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, structs

from jobmill.client.client import Client
from jobmill.client.filters import shown_filter
from jobmill.client.manage import batches
from jobmill.core.audit import MAX_AUDIT_IDS, AuditEntry
from jobmill.core.changes import Change, Changed, Requeue
from jobmill.core.values import Filter
from jobmill.dashboard.refusals import Refusals
from jobmill.errors import JobmillError, StoreUnavailable

log = logging.getLogger("jobmill")

#: Jobs of one call. Between two calls workers have their turn, and a person can stop the run.
BATCH: Final = 250
#: The least time between two calls.
REST_S: Final = 0.1
#: A store that does not answer for this long ends the run.
GIVE_UP_S: Final = 120.0
_MAX_PAUSE_S: Final = 10.0
KEPT_MS: Final = 3_600_000
MAX_RUNS: Final = 100
#: The audit log names at most this many reasons why jobs were refused.
MAX_REASONS_NOTED: Final = 5

#: stopping: the present batch is the last one.
RunStatus: TypeAlias = Literal["running", "stopping", "done", "stopped", "failed"]


class RunNotFound(Exception):
    """There is no such run, or not any more."""


class RunOrder(Struct, frozen=True, kw_only=True):
    """What a run does, and for whom."""

    act: str
    change: Change
    #: The jobs that the change may be possible for.
    filter: Filter
    #: The other jobs that match, by the reason why they are left as they are.
    left_out: dict[str, Filter] = {}
    #: How often jobs that were refused are tried again, as long as others of them are changed: see `Flow.retry`.
    rounds: int = 1
    #: The search of the visitor: its text and words, its tab, its filter.
    q: str
    chips: list[str]
    state: str
    searched: Filter
    who: str
    note: str | None = None
    spread_ms: int = 0


class BulkRun:
    """One act on all that match, and how far it is."""

    def __init__(self, order: RunOrder, started_ms: int) -> None:
        self.id = secrets.token_urlsafe(12)
        self.order = order
        self.started_ms = started_ms
        self.ended_ms: int | None = None
        self.status: RunStatus = "running"
        #: How many jobs there were at the start; None while they are counted.
        self.total: int | None = None
        self.done = 0
        self.refused = Refusals()
        #: The first jobs that were changed, for the audit log.
        self.ids: list[str] = []
        self.stopped_by: str | None = None
        #: A sentence: why it does not continue, or has ended too early.
        self.problem: str | None = None
        #: Changes without an answer: the store may have made them.
        self.unanswered = 0
        self.stopping = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether nothing is done any more."""
        return self.ended_ms is not None

    def add(self, answer: Changed) -> None:
        """One batch is done."""
        self.done += len(answer.ids)
        self.ids += answer.ids[: MAX_AUDIT_IDS - len(self.ids)]
        self.refused.add(answer.refused)

    async def rest(self, seconds: float) -> bool:
        """Wait; whether the run is to stop."""
        try:
            async with asyncio.timeout(seconds):
                await self.stopping.wait()
        except TimeoutError:
            return False
        return True


class _PatientStore:
    """The verbs of a store, each tried again with growing pauses while the store does not answer."""

    def __init__(self, jobs: Client, run: BulkRun, give_up_s: float, first_pause_s: float) -> None:
        self._jobs = jobs
        self._run = run
        self._give_up_s = give_up_s
        self._first_pause_s = first_pause_s

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        async def call(*given: Any) -> Any:
            run, waited_s, pause_s = self._run, 0.0, self._first_pause_s
            while True:
                try:
                    await self._jobs.open()
                    answer = await getattr(self._jobs.store, verb)(*given)
                except StoreUnavailable as error:
                    run.problem = f"The store does not answer: {error}."
                    run.unanswered += verb == "change"
                    if waited_s >= self._give_up_s or await run.rest(pause_s):
                        raise
                    waited_s, pause_s = waited_s + pause_s, min(pause_s * 2, _MAX_PAUSE_S)
                else:
                    run.problem = None
                    return answer

        return call


class BulkRuns:
    """The runs of this process: those under way, and those that ended in the last hour."""

    def __init__(self, jobs: Client) -> None:
        self._jobs = jobs
        self._runs: dict[str, BulkRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.rest_s = REST_S
        self.give_up_s = GIVE_UP_S
        self.first_pause_s = 0.5

    def get(self, id: str) -> BulkRun:
        """A run, or RunNotFound."""
        self._forget_old()
        if id not in self._runs:
            raise RunNotFound("there is no such run, or it ended more than an hour ago")
        return self._runs[id]

    def start(self, order: RunOrder) -> BulkRun | None:
        """Begin in the background; None if too many are under way."""
        self._forget_old()
        if len(self._runs) >= MAX_RUNS:
            over = next((id for id, run in self._runs.items() if run.is_over), None)
            if over is None:
                return None
            del self._runs[over]
        run = BulkRun(order, self._jobs.store.now())
        self._runs[run.id] = run
        task = asyncio.create_task(self._work(run), name=f"jobmill dashboard: {order.act}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return run

    def stop(self, run: BulkRun, who: str) -> None:
        """End a run after its present batch."""
        if not run.is_over and not run.stopping.is_set():
            run.status, run.stopped_by = "stopping", who
            run.stopping.set()

    async def close(self) -> None:
        """End all runs after their present batches."""
        for run in self._runs.values():
            self.stop(run, "the end of the dashboard")
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _forget_old(self) -> None:
        oldest_ms = self._jobs.store.now() - KEPT_MS
        self._runs = {id: run for id, run in self._runs.items() if run.ended_ms is None or run.ended_ms > oldest_ms}

    async def _work(self, run: BulkRun) -> None:
        store: Any = _PatientStore(self._jobs, run, self.give_up_s, self.first_pause_s)
        status: RunStatus = "failed"
        try:
            status = await self._changed(run, store)
            if status == "failed":
                # The store may take long for the audit log as well.
                self._end(run, status)
            await self._record(run, status, store)
        finally:
            self._end(run, status)

    def _end(self, run: BulkRun, status: RunStatus) -> None:
        if not run.is_over:
            run.status, run.ended_ms = status, self._jobs.store.now()

    async def _changed(self, run: BulkRun, store: Any) -> RunStatus:
        """Change all jobs; how it ended."""
        try:
            return await self._change(run, store)
        except StoreUnavailable:
            return "stopped" if run.stopping.is_set() else "failed"
        except JobmillError as error:
            run.problem = f"The store refused it: {error}."
        except Exception as error:
            log.exception("a run of the dashboard failed")
            run.problem = f"The dashboard failed: {type(error).__name__}. The log of the dashboard has the traceback."
        return "failed"

    async def _change(self, run: BulkRun, store: Any) -> RunStatus:
        order, change, wanted = run.order, run.order.change, run.order.filter
        if isinstance(change, Requeue):
            # A job that fails again at once would match again, without end.
            until_ms = run.started_ms + 1
            before_ms = until_ms if wanted.finished_before_ms is None else min(until_ms, wanted.finished_before_ms)
            wanted = structs.replace(wanted, finished_before_ms=before_ms)
        run.total = sum(one.count for one in await store.count(wanted))
        if isinstance(change, Requeue) and order.spread_ms:
            change = structs.replace(change, step_ms=order.spread_ms / max(1, run.total))
        left = {
            reason: sum(one.count for one in await store.count(others)) for reason, others in order.left_out.items()
        }
        run.total += sum(left.values())
        for number in range(order.rounds):
            if number and await run.rest(self.rest_s):
                return "stopped"
            before = run.done
            run.refused = Refusals()
            for reason, count in left.items():
                run.refused.add_count(reason, count)
            if not await self._change_once(run, store, wanted, change):
                return "stopped"
            if run.done == before or run.refused.count == sum(left.values()):
                break
        return "done"

    async def _change_once(self, run: BulkRun, store: Any, wanted: Filter, change: Change) -> bool:
        """Try to change each job once, batch by batch; False if the run was stopped."""
        assert run.total is not None
        clock = asyncio.get_running_loop().time
        async with aclosing(batches(store, wanted, change, BATCH)) as answers:
            began_s = clock()
            async for answer in answers:
                run.add(answer)
                # Jobs that came since the start were not counted, and nobody has asked for them.
                if not answer.more or run.done + run.refused.count >= run.total:
                    break
                if await run.rest(max(self.rest_s, clock() - began_s)):
                    return False
                began_s = clock()
        return True

    async def _record(self, run: BulkRun, status: RunStatus, store: Any) -> None:
        """One entry in the audit log, however the run has ended."""
        order, problem = run.order, run.problem
        notes = [] if order.note is None else [order.note]
        if status != "done":
            by = f" by {run.stopped_by}" if status == "stopped" else ""
            of = "" if run.total is None else f" of {run.total:,}"
            notes.append(f"{status}{by} after {run.done:,}{of}")
        notes += [f"{one.count:,} refused: {one.reason}" for one in run.refused.groups[:MAX_REASONS_NOTED]]
        entry = AuditEntry(
            id=self._jobs.store.new_id(),
            who=order.who,
            what=order.act,
            queue=order.searched.queue,
            ids=tuple(run.ids),
            filter=shown_filter(order.searched),
            count=run.done,
            note="; ".join(notes) or None,
        )
        try:
            await store.audit([entry])
        except Exception as error:
            log.warning("the audit log could not be written (%s of %s jobs): %r", order.act, run.done, error)
        run.problem = problem
