"""The exchanger: settles finished jobs and claims new ones, both in one call to the store.

Jobs that finish while a call is in flight are settled by the next call. So batches grow under load, and nothing waits
while the worker is idle. A claim asks for as many jobs as there are free slots, and for more jobs of short handlers:
see `worker.ahead`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
import time
from collections import Counter
from collections.abc import Container

from msgspec import structs

from jobmill.core.events import claim_events, job_event, settlement_events
from jobmill.core.lifecycle import (
    DEFAULT_POLICY,
    PRESETS,
    Errored,
    Outcome,
    Released,
    begin,
    fails_instead,
    policy,
    settle,
    was_written,
)
from jobmill.core.usage import RunEnded
from jobmill.core.values import AHEAD, Broken, Claim, Claimed, Ended, Exchanged, Refused, Settled, Settlement
from jobmill.errors import StoreUnavailable
from jobmill.worker.ahead import MAX_UNSETTLED_S, STUCK_PAUSE_S, AheadQueue
from jobmill.worker.context import WorkerContext
from jobmill.worker.logs import about, log_recovered, log_settlement, tally_key
from jobmill.worker.runner import Runner
from jobmill.worker.running import Run

log = logging.getLogger("jobmill")

#: An idle worker claims this often at least, and twice in each lease: so it sees every lease before its end.
IDLE_MS = 5_000
#: Pauses after wake-ups that found no job, so that commits of other workers do not keep an idle worker busy.
EMPTY_WAKE_PAUSES_S = (0.0, 0.001, 0.002, 0.004, 0.008)

#: Settlements to write, each with its run. A job that is settled without running has no run.
Batch = list[tuple[Run | None, Settlement]]


class Exchanger:
    """Has one exchange in flight at most, and its own share of the worker's slots."""

    def __init__(
        self,
        name: str,
        slots: int,
        context: WorkerContext,
        ahead: AheadQueue,
        first: Exchanger | None = None,
        *,
        once: bool,
    ) -> None:
        # At most 30 attributes: CPython 3.11 keeps more of them in a dictionary, which made a job 1.2 % more expensive.
        self.name = name
        self._slots = slots
        #: The first exchanger of the worker, if this is another one: this one claims only while the first is full.
        self._first = first
        #: Whether the last claim got as many jobs as it asked for.
        self._was_full = False
        self._context = context
        self._store = context.store
        self._running = context.running
        self._hooks = context.hooks
        self._report = context.reporter.report
        self._shared = context.lifespans
        self._counts = context.counts
        self._settings = context.settings
        self._runner = Runner(context, self._on_over, self._on_free)
        self._queues = self._settings.queues
        self._unlimited = {name: slots for name, handler in context.handlers.items() if handler.concurrency is None}
        self._limits = {name: h.concurrency for name, h in context.handlers.items() if h.concurrency is not None}
        self._occupied = 0
        self._ahead = ahead
        #: How many jobs this loop has claimed.
        self.claimed = 0
        #: How many occupied slots belong to threads whose job is settled already.
        self._abandoned_threads = 0
        self._finished: Batch = []
        #: Settlements that were sent without an answer: the store may have written them. By job id and token.
        self._unanswered: set[tuple[str, str]] = set()
        self._woken = asyncio.Event()
        self._running.wakes.append(self.wake)
        self._watching: asyncio.Future[None] | None = None
        self._empty_wakes = 0
        self._was_idle = False
        self._in_flight = False
        self.stopping = False
        #: For a tick: claim once, and count the outcomes.
        self._once = once
        self.tally: Counter[str] = Counter()

    # ------------------------------------------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Exchange until the worker stops, no job runs and every job is settled."""
        await self._context.watchdog.run(self.name, self._turn, self._on_error, self._context.random)

    def wake(self) -> None:
        """Something has changed: exchange again now."""
        self._woken.set()

    @property
    def has_unsettled(self) -> bool:
        """Whether a finished job is not settled yet, or a claim is in flight."""
        return bool(self._finished) or self._in_flight

    @property
    def is_full(self) -> bool:
        """Whether there may be more jobs than this loop can claim."""
        return self._was_full or self._occupied >= self._slots

    def _awaited(self) -> int:
        """How many runs must end before this loop may end. A tick does not wait for threads that timed out."""
        return self._occupied - (self._abandoned_threads if self._once else 0)

    async def _turn(self) -> float | None:
        """Exchange once, and sleep if there was nothing to do. None ends the loop."""
        # This turn sees everything that woke the loop until now. A set event would cost one more, empty exchange.
        self._woken.clear()
        if self._ahead.waiting:
            self._check_waiting()
        claim = self._claim()
        if claim is None and not self._finished:
            return await self._wait_for_runs()
        if self._finished and self._context.reporter.has_something:
            # Reports are written under the lease, and the settlement ends the lease.
            await self._context.reporter.flush()
        batch, self._finished = self._finished, []
        asked = time.monotonic()
        answer = await self._exchange(batch, claim)
        took = time.monotonic() - asked
        self._counts.exchanged(len(batch) + len(answer.claimed), took)
        if self._context.watchdog.store_error is not None:
            self._context.watchdog.store_answered(self._store.name)
        if self._unanswered:
            batch, answer = await self._resolve_unanswered(batch, answer)
        self._apply_settled(batch, answer)
        if answer.has_outbox:
            self._context.outbox.set()
        self.stopping = self.stopping or self._once
        self.claimed += len(answer.claimed)
        was_full, self._was_full = self.is_full, self._was_full if claim is None else len(answer.claimed) == claim.n
        self._begin(answer, asked + self._settings.lease_ms / 1000)
        self._ahead.settled += len(batch)
        await self._share(was_full)
        if claim is not None and (self._was_full or self._ahead.target):
            await self._decide_ahead(claim, answer, asked, took)
        if answer.claimed or self._finished:
            self._empty_wakes = 0
            self._was_idle = False
            self._stop_watching()
        elif claim is not None and not self.stopping:
            await self._idle(answer)
        return 0

    async def _share(self, was_full: bool) -> None:
        """Let the other exchangers claim as well, once there may be more jobs than this one can claim.

        While few jobs come, their claims would find nothing: a single job took 5 exchanges, and 11 with four workers.
        Now it takes 3 (to claim it, to settle it, and to claim once more before sleeping), and 6.
        """
        if not self.is_full:
            await asyncio.sleep(0)  # jobs that end at once are settled by the next exchange
        elif not was_full:
            self._running.wake_all()

    async def _exchange(self, batch: Batch, claim: Claim | None) -> Exchanged:
        """Call the store. If the call fails, the finished jobs are kept for the next call."""
        self._in_flight = True
        self._reserve(claim, 1)
        try:
            return await self._store.exchange([settlement for _, settlement in batch], claim)
        except (StoreUnavailable, asyncio.CancelledError):
            self._finished = batch + self._finished
            self._unanswered.update(_key(settlement) for _, settlement in batch)
            raise
        except Exception:
            await self._settle_one_by_one(batch)
            raise
        finally:
            self._reserve(claim, -1)
            self._in_flight = False

    async def _resolve_unanswered(self, batch: Batch, answer: Exchanged) -> tuple[Batch, Exchanged]:
        """A settlement that was sent twice is lost the second time if it was written the first time: ask the store."""
        asked = [
            (index, run, settlement)
            for index, ((run, settlement), settled) in enumerate(zip(batch, answer.settled, strict=True))
            if settled == "lost" and run is not None and _key(settlement) in self._unanswered
        ]
        settled: list[Settled] = list(answer.settled)
        try:
            jobs = await self._store.get([settlement.lease.id for *_, settlement in asked]) if asked else []
        except StoreUnavailable:
            # Ask again after the next exchange, which reports the outage.
            self._finished += [(run, settlement) for _, run, settlement in asked]
            left = {index for index, *_ in asked}
            batch = [one for index, one in enumerate(batch) if index not in left]
            settled = [one for index, one in enumerate(settled) if index not in left]
        else:
            for (index, run, settlement), job in zip(asked, jobs, strict=True):
                if was_written(settlement, run.claimed.job, job):
                    settled[index] = "done"
        self._unanswered.intersection_update(_key(settlement) for _, settlement in self._finished)
        return batch, structs.replace(answer, settled=settled)

    async def _wait_for_runs(self) -> float | None:
        """Nothing is to be claimed: only the end of a run matters. Without one, a stopping worker or a tick is over."""
        self._stop_watching()
        if self.claimed >= (self._settings.max_jobs or sys.maxsize) and not self._ahead.waiting:
            self._context.recycle(f"it has claimed {self.claimed:,} jobs (max_jobs)")
        self.stopping = self.stopping or self._once
        if self.stopping and not self._awaited():
            return None
        await self._sleep_until_woken(MAX_UNSETTLED_S if self._ahead.waiting else IDLE_MS / 1000)
        return 0

    def _on_error(self, error: BaseException) -> None:
        if self._once and not self.stopping:
            raise error
        self._context.watchdog.store_failed(error)
        self._hooks.error(error)

    async def _settle_one_by_one(self, batch: Batch) -> None:
        """A settlement that makes the store raise does not block the others, and is not retried for ever."""
        for run, settlement in batch:
            for tried in (settlement, fails_instead(settlement, Refused("it raised an error"), DEFAULT_POLICY)):
                try:
                    answer = await self._store.exchange([tried], None)
                except StoreUnavailable:
                    self._finished.append((run, tried))
                    break
                except Exception:
                    extra = about(settlement.lease, settlement.attempt, self._context.settings.name, run)
                    log.exception("job %s cannot be settled", settlement.lease.id, extra=extra)
                else:
                    self._apply_settled([(run, tried)], answer)
                    break
            else:
                self._drop(run, "lost")

    # ------------------------------------------------------------------------------------------------ claiming

    def _claim(self) -> Claim | None:
        if self.stopping or (self._first is not None and not self._first.is_full):
            return None
        left = (self._settings.max_jobs or sys.maxsize) - self.claimed
        n = free = min(self._slots - self._occupied, left)
        names = self._names(free) if self._limits else self._unlimited
        if self._ahead.target:
            n, names = self._ahead.claimable(free, names, left)
        if n <= 0 or not names:
            return None
        if len(self._queues) > 1:
            self._queues = (*self._queues[1:], self._queues[0])
        token = (AHEAD if n > free else "") + secrets.token_hex(16)
        lease_ms, worker = self._settings.lease_ms, self._settings.name
        return Claim(queues=self._queues, names=names, n=n, lease_ms=lease_ms, worker=worker, token=token)

    def _names(self, free: int) -> dict[str, int]:
        names = dict(self._unlimited)
        for name, limit in self._limits.items():
            room = min(free, limit - self._running.of_name[name])
            if room > 0:
                names[name] = room
        return names

    def _reserve(self, claim: Claim | None, sign: int) -> None:
        """Count the claimed room as used while the call is in flight: another exchanger may claim at the same time."""
        if claim is not None:
            for name in self._limits:
                self._running.of_name[name] += sign * claim.names.get(name, 0)

    def _begin(self, answer: Exchanged, expires: float) -> None:
        # The answer took longer than the lease, for example because this process was suspended. Other workers may run
        # these jobs by now.
        late = time.monotonic() >= expires
        if self._hooks.wants_events:
            self._add_claim_events(answer)
        if len(answer.claimed) > self._slots - self._occupied:
            answer.claimed.sort(key=self._ahead.may_wait)  # those that may not wait start first
        for claimed in answer.claimed:
            run = self._run_of(claimed, expires, answer.now_ms)
            decided = begin(claimed, None if run is None else run.rules, answer.now_ms)
            if late and run is not None and decided is None:
                decided = settle(run.claimed, Released(), DEFAULT_POLICY, answer.now_ms)
            if decided is not None:
                self._not_run(claimed, decided)
            elif run is not None:
                self._start(run)

    def _add_claim_events(self, answer: Exchanged) -> None:
        for claimed in answer.claimed:
            if not isinstance(claimed, Broken):
                self._hooks.events(claim_events(claimed.job, answer.now_ms, lease_lost=False))

    def _not_run(self, claimed: Claimed | Broken, decided: Settlement) -> None:
        """Settle a job that must not run. A reason of its own means that another program may be able to run it."""
        self._finished.append((None, decided))
        if decided.outcome == "released" and (isinstance(claimed, Broken) or decided.error != claimed.job.error):
            self._context.warn_given_back(decided)

    def _run_of(self, claimed: Claimed | Broken, expires: float, now_ms: int) -> Run | None:
        """The run of a claimed job; None if the job cannot be read, or has no handler here."""
        if isinstance(claimed, Broken):
            return None
        job = claimed.job
        try:
            series = self._counts.series[job.queue][job.name]
        except KeyError:
            series = self._counts.series_of(job.queue, job.name)
        if claimed.recovered_from is not None:
            log_recovered(claimed, self._settings.name)
            series.runs["crashed"] += not claimed.uncounted
        if claimed.recovered_from is None or claimed.uncounted:
            series.wait_seconds.values.append((now_ms - job.due_ms) / 1000)
        handler = self._context.handlers.get(job.name)
        if handler is None:
            return None
        if job.options.preset is not None:
            _import_preset(job.options.preset)
        return Run(claimed, handler, policy(job.options, handler.policy), expires, series, self._report, self._shared)

    def _start(self, run: Run) -> None:
        runs, id = self._running.runs, run.claimed.job.id
        older = runs.get(id)
        if older is not None and not older.over and older.why != "lost":
            self._context.stop_lost(older, "lease_lost", "its lease had ended, and this worker has claimed it again")
        if not runs:
            self._running.begun.set()
        runs[id] = run
        (self._occupy if self._occupied < self._slots else self._wait)(run)

    def _occupy(self, run: Run) -> None:
        self._occupied += 1
        if self._limits:
            self._running.of_name[run.handler.name] += 1
        self._runner.start(run)

    # ------------------------------------------------------------------------------------------------ waiting here

    def _wait(self, run: Run) -> None:
        """All slots are occupied: the job waits, or is given back if it may not wait."""
        if self.stopping or not self._ahead.may_wait(run.claimed):
            self._give_back(run)
            self._ahead.stop(MAX_UNSETTLED_S)  # the next claim asks for free slots only
            return
        if not self._ahead.waiting:
            self._ahead.moved = time.monotonic()
        self._ahead.waiting.append(run)

    def _check_waiting(self) -> None:
        if self.stopping:
            self._give_back_waiting()
        elif self._ahead.is_stuck:
            self._give_back_waiting()
            self._ahead.stop(STUCK_PAUSE_S)

    def _start_next(self) -> None:
        """A slot is free: start the first job that waits for one and has not been lost meanwhile."""
        ahead, waiting = self._ahead, self._ahead.waiting
        now = ahead.moved = time.monotonic()
        while waiting and not self.stopping:
            run = waiting.popleft()
            if run.why is None and run.expires > now:
                self._occupy(run)
                return
            if run.why is None:
                self._context.stop_lost(run, "lease_lost", "its lease ended before a slot was free")
            self._give_back(run)

    def _give_back(self, run: Run) -> None:
        """A job that has not started waits in its queue again, unless it is lost."""
        self._running.drop(run)
        if run.why != "lost":
            self._not_run(run.claimed, settle(run.claimed, Released(), DEFAULT_POLICY, self._store.now()))

    def _give_back_waiting(self, queues: Container[str] | None = None) -> None:
        """Give the jobs that wait here back, or those of these queues."""
        waiting, kept = self._ahead.waiting, list[Run]()
        while waiting:
            run = waiting.popleft()
            if queues is None or run.claimed.job.queue in queues:
                self._give_back(run)
            else:
                kept.append(run)
        waiting.extend(kept)
        self._ahead.stop()

    async def _decide_ahead(self, claim: Claim, answer: Exchanged, asked: float, took: float) -> None:
        """If a claim was not full, nothing is claimed ahead for now. If a queue is paused, its jobs do not start."""
        if len(answer.claimed) == claim.n:
            await self._ahead.learn(answer.claimed, asked, took)
            return
        self._ahead.stop()
        if self._ahead.waiting and (paused := await self._ahead.rules.paused()):
            self._give_back_waiting(paused)

    # ------------------------------------------------------------------------------------------------ settling

    def _on_over(self, run: Run, outcome: Outcome | None) -> Settlement | None:
        decided = None
        if outcome is None:
            self._running.drop(run)
        else:
            decided = settle(run.claimed, outcome, run.rules, self._store.now(), self._context.random.random())
            self._finished.append((run, decided))
        if run.in_thread:  # its slot is not free, so `_on_free` is not called now
            self._abandoned_threads += 1
            self._woken.set()
        return decided

    def _on_free(self, run: Run) -> None:
        self._occupied -= 1
        self._abandoned_threads -= run.in_thread
        if self._limits:
            self._running.free_room(run.handler.name)
        if self._ahead.waiting:
            self._start_next()
        if len(self._ahead.waiting) <= self._ahead.wake_at:
            self._woken.set()

    def _apply_settled(self, batch: Batch, answer: Exchanged) -> None:
        wants_events = self._hooks.wants_events
        for (run, settlement), settled in zip(batch, answer.settled, strict=True):
            if isinstance(settled, Refused):
                self._finished.append((run, self._instead(run, settlement, settled)))
                continue
            lost = settled == "lost"
            self._drop(run, "lost" if lost else settlement.outcome)
            if lost or settlement.outcome != "succeeded":
                self._counts.not_succeeded(settlement, lost=lost)
                log_settlement(settlement, run, self._context.settings.name, lost=lost)
            if self._once:
                self.tally["lost" if lost else tally_key(settlement)] += 1
            if wants_events:
                self._add_settlement_events(run, settlement, answer.now_ms, lost=lost)

    def _add_settlement_events(self, run: Run | None, settlement: Settlement, now_ms: int, *, lost: bool) -> None:
        if not lost:
            self._hooks.events(settlement_events(settlement, now_ms))
        elif run is not None:
            self._hooks.events([job_event(run.claimed.job, "lease_lost", now_ms)])

    def _instead(self, run: Run | None, settlement: Settlement, refused: Refused) -> Settlement:
        self._counts.settlements_refused += 1
        if refused.is_temporary and run is not None:
            return settle(
                run.claimed, Errored(error=refused.why), run.rules, self._store.now(), self._context.random.random()
            )
        return fails_instead(settlement, refused, run.rules if run else DEFAULT_POLICY)

    def _drop(self, run: Run | None, outcome: Ended | RunEnded) -> None:
        if run is not None:
            runs, series, id = self._running.runs, run.series, run.claimed.lease.id
            if runs.get(id) is run:  # as `RunningJobs.drop`, without a call for every job
                del runs[id]
            series.run_seconds.values.append(run.over - run.started)
            if outcome != "succeeded":
                series.runs[outcome] += 1
            if (usage := self._context.usage) is not None:
                usage.settled(run, outcome)

    # ------------------------------------------------------------------------------------------------ sleeping

    async def _sleep_until_woken(self, seconds: float = IDLE_MS / 1000) -> None:
        """Sleep until a job finishes or may be due, at most for this time (the watchdog expects a turn)."""
        timer = asyncio.get_running_loop().call_later(seconds, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()

    async def _idle(self, answer: Exchanged) -> None:
        """Slots are free and no job is due: sleep until one is due, a lease ends, a job finishes, or 5 s have passed.

        The store is watched from before the exchange that found nothing, so that no wake-up is lost between the two.
        """
        if self._watching is None:
            await self._watch(answer.now_ms)
            return
        if not self._was_idle and not self._occupied:
            self._was_idle = True
            self._hooks.idle()
        now_ms, due_ms = answer.now_ms, answer.next_due_ms
        wait_ms = min(IDLE_MS, self._settings.lease_ms // 2, IDLE_MS if due_ms is None else due_ms - now_ms)
        pause = EMPTY_WAKE_PAUSES_S[min(self._empty_wakes, len(EMPTY_WAKE_PAUSES_S) - 1)]
        self._empty_wakes += 1
        if not self._watching.done():
            await self._sleep_until_woken(max(wait_ms / 1000, pause))
        if self._watching.done():
            watched, self._watching = self._watching, None
            watched.result()
            await asyncio.sleep(pause)
            await self._watch(self._store.now())

    async def _watch(self, now_ms: int) -> None:
        self._watching = asyncio.ensure_future(self._store.wait_for_work(self._queues, now_ms + IDLE_MS))
        self._watching.add_done_callback(lambda _: self._woken.set())
        await asyncio.sleep(0)  # the task begins to watch now

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None


def _key(settlement: Settlement) -> tuple[str, str]:
    return settlement.lease.id, settlement.lease.token


def _import_preset(name: str) -> None:
    """Import the module that registers a preset, unless it is registered or no package has such a module."""
    if name in PRESETS:
        return
    from importlib.metadata import entry_points  # takes a moment, and few jobs have a preset

    for entry_point in entry_points(group="jobmill.presets", name=name):
        entry_point.load()
