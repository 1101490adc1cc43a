"""The exchanger: settles finished jobs and claims new ones, both in one call to the store.

Jobs that finish while a call is in flight are settled by the next call. So batches grow under load, and nothing waits
while the worker is idle. A claim never asks for more jobs than there are free slots.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from jobmill.core.events import claim_events, job_event, settlement_events
from jobmill.core.lifecycle import DEFAULT_POLICY, Outcome, Released, begin, fails_instead, policy, settle
from jobmill.core.values import Broken, Claim, Exchanged, Refused, Settlement
from jobmill.errors import StoreUnavailable
from jobmill.handlers.handler import Handler
from jobmill.runtime.backoff import LoopBackoff
from jobmill.runtime.presets import import_preset
from jobmill.runtime.tasks import being_cancelled
from jobmill.runtime.watchdog import Watchdog
from jobmill.store import Store
from jobmill.worker.hooks import HookQueue
from jobmill.worker.options import WorkerSettings
from jobmill.worker.reporter import Reporter
from jobmill.worker.runner import Runner
from jobmill.worker.running import Run, RunningJobs
from jobmill.worker.usage import UsageLog

log = logging.getLogger("jobmill")

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
        store: Store,
        handlers: dict[str, Handler[..., Any]],
        settings: WorkerSettings,
        slots: int,
        *,
        running: RunningJobs,
        runner: Runner,
        reporter: Reporter,
        hooks: HookQueue,
        usage: UsageLog | None,
        watchdog: Watchdog,
        random: Random,
        on_idle: Callable[[], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._store = store
        self._handlers = handlers
        self._worker_name = settings.name
        self._lease_ms = settings.lease_ms
        self._slots = slots
        self._running = running
        self._runner = runner
        self._reporter = reporter
        self._hooks = hooks
        self._usage = usage
        self._watchdog = watchdog
        self._random = random
        self._on_idle = on_idle
        self._monotonic = monotonic
        self._queues = settings.queues
        self._unlimited = {name: slots for name, handler in handlers.items() if handler.concurrency is None}
        self._limits = {name: h.concurrency for name, h in handlers.items() if h.concurrency is not None}
        self._occupied = 0
        #: How many occupied slots belong to threads whose job is settled already.
        self._abandoned_threads = 0
        self._finished: Batch = []
        self._woken = asyncio.Event()
        running.wakes.append(self.wake)
        self._watching: asyncio.Future[None] | None = None
        self._empty_wakes = 0
        self._was_idle = False
        self._in_flight = False
        self.stopping = False
        #: For a tick: claim once, and count the outcomes.
        self.once = False
        self.tally: Counter[str] = Counter()

    # ------------------------------------------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Exchange until the worker stops, no job runs and every job is settled."""
        backoff = LoopBackoff(self._random)
        while not self.stopping or self._finished or self._awaited():
            self._watchdog.beat(self.name)
            try:
                await self._turn()
                backoff.reset()
            except (Exception, asyncio.CancelledError) as error:
                if being_cancelled(error) or (self.once and not self.stopping):
                    raise
                await self._wait_after(error, backoff.next())
        self._stop_watching()
        self._watchdog.ended(self.name)

    @property
    def has_unsettled(self) -> bool:
        """Whether a finished job is not settled yet, or a claim is in flight."""
        return bool(self._finished) or self._in_flight

    def _awaited(self) -> int:
        """How many runs must end before this loop may end. A tick does not wait for threads that timed out."""
        return self._occupied - (self._abandoned_threads if self.once else 0)

    async def _turn(self) -> None:
        # This turn sees everything that woke the loop until now. A set event would cost one more, empty exchange.
        self._woken.clear()
        claim = self._claim()
        if claim is None and not self._finished:
            await self._wait_for_runs()
            return
        if self._finished and self._reporter.has_something:
            # Reports are written under the lease, and the settlement ends the lease.
            await self._reporter.flush()
        batch, self._finished = self._finished, []
        sent = self._monotonic()
        answer = await self._exchange(batch, claim)
        self._watchdog.store_error = None
        self._apply_settled(batch, answer)
        if self.once:
            self.stopping = True
            self.tally["claimed"] += len(answer.claimed)
        self._begin(answer, sent + self._lease_ms / 1000)
        if answer.claimed or self._finished:
            self._empty_wakes = 0
            self._was_idle = False
            self._stop_watching()
        elif claim is not None and not self.stopping:
            await self._idle(answer)

    async def _exchange(self, batch: Batch, claim: Claim | None) -> Exchanged:
        """Call the store. If the call fails, the finished jobs are kept for the next call."""
        self._in_flight = True
        self._reserve(claim, 1)
        try:
            return await self._store.exchange([settlement for _, settlement in batch], claim)
        except (StoreUnavailable, asyncio.CancelledError):
            self._finished = batch + self._finished
            raise
        except Exception:
            await self._settle_one_by_one(batch)
            raise
        finally:
            self._reserve(claim, -1)
            self._in_flight = False

    async def _wait_for_runs(self) -> None:
        """Nothing can be claimed: only the end of a run matters. A tick without running jobs is over."""
        self.stopping = self.stopping or self.once
        if self._awaited() or not self.once:
            await self._sleep_until_woken()

    async def _wait_after(self, error: BaseException, seconds: float) -> None:
        self._watchdog.store_error = f"{type(error).__name__}: {error}"
        if isinstance(error, StoreUnavailable):
            log.warning("the %s store is unavailable (%s); trying again in %.1f s", self._store.name, error, seconds)
        else:
            log.exception("the %s loop raised an error; it continues in %.1f s", self.name, seconds)
        self._hooks.error(error, None)
        # Jobs keep running meanwhile, and the next exchange settles those that finish.
        await asyncio.sleep(seconds)

    async def _settle_one_by_one(self, batch: Batch) -> None:
        """A settlement that makes the store raise must not block the others, nor be tried again for ever."""
        for run, settlement in batch:
            for tried in (settlement, fails_instead(settlement, "it raised an error", DEFAULT_POLICY)):
                try:
                    answer = await self._store.exchange([tried], None)
                except StoreUnavailable:
                    self._finished.append((run, tried))
                    break
                except Exception:
                    log.exception("job %s cannot be settled", settlement.lease.id)
                else:
                    self._apply_settled([(run, tried)], answer)
                    break
            else:
                self._forget(run)

    # ------------------------------------------------------------------------------------------------ claiming

    def _claim(self) -> Claim | None:
        free = self._slots - self._occupied
        names = self._names(free) if self._limits else self._unlimited
        if self.stopping or free <= 0 or not names:
            return None
        if len(self._queues) > 1:
            self._queues = (*self._queues[1:], self._queues[0])
        lease_ms, worker, token = self._lease_ms, self._worker_name, secrets.token_hex(16)
        return Claim(queues=self._queues, names=names, n=free, lease_ms=lease_ms, worker=worker, token=token)

    def _names(self, free: int) -> dict[str, int]:
        names = dict(self._unlimited)
        for name, limit in self._limits.items():
            room = min(free, limit - self._running.of_name.get(name, 0))
            if room > 0:
                names[name] = room
        return names

    def _reserve(self, claim: Claim | None, sign: int) -> None:
        """Count the claimed room as used while the call is in flight: another exchanger may claim at the same time."""
        for name in self._limits if claim is not None else ():
            self._running.take_room(name, sign * claim.names.get(name, 0))  # type: ignore[union-attr]

    def _begin(self, answer: Exchanged, expires: float) -> None:
        now_ms = answer.now_ms
        wants_events = self._hooks.wants_events
        # The answer took longer than the lease, for example because this process was suspended. Other workers may run
        # these jobs by now.
        late = self._monotonic() >= expires
        for claimed in answer.claimed:
            if isinstance(claimed, Broken):
                self._settle_without_run(begin(claimed, None, now_ms))
                continue
            if wants_events:
                self._hooks.events(claim_events(claimed.job, now_ms, lease_lost=False))
            handler = self._handlers.get(claimed.job.name)
            if claimed.job.options.preset is not None:
                import_preset(claimed.job.options.preset)
            rules = None if handler is None else policy(claimed.job.options, handler.policy)
            decided = begin(claimed, rules, now_ms)
            if decided is None and late:
                decided = settle(claimed, Released(), DEFAULT_POLICY, now_ms)
            if decided is not None or handler is None or rules is None:
                self._settle_without_run(decided)
            else:
                self._run(Run(claimed, handler, rules, expires, self._reporter.report_for), now_ms)

    def _settle_without_run(self, settlement: Settlement | None) -> None:
        if settlement is not None:
            self._finished.append((None, settlement))

    def _run(self, run: Run, now_ms: int) -> None:
        older = self._running.add(run)
        if older is not None:
            self._stop_older(older, now_ms)
        self._occupied += 1
        if self._limits:
            self._running.take_room(run.handler.name)
        self._runner.start(run, self._on_over, self._on_free)

    def _stop_older(self, older: Run, now_ms: int) -> None:
        """This worker has claimed a job that it still runs: the older lease had ended without its knowledge."""
        if not older.over and older.why != "lost":
            older.stop("lost")
            if self._usage is not None:
                self._usage.lost(older, "lease_lost")
            if self._hooks.wants_events:
                self._hooks.events([job_event(older.claimed.job, "lease_lost", now_ms)])

    # ------------------------------------------------------------------------------------------------ settling

    def _on_over(self, run: Run, outcome: Outcome | None) -> None:
        if outcome is None:
            self._running.drop(run)
        else:
            decided = settle(run.claimed, outcome, run.rules, self._store.now(), self._random.random())
            self._finished.append((run, decided))
        self._abandoned_threads += run.in_thread
        self._woken.set()

    def _on_free(self, run: Run) -> None:
        self._occupied -= 1
        self._abandoned_threads -= run.in_thread
        if self._limits:
            self._running.free_room(run.handler.name)
        self._woken.set()

    def _apply_settled(self, batch: Batch, answer: Exchanged) -> None:
        wants_events = self._hooks.wants_events
        for (run, settlement), settled in zip(batch, answer.settled, strict=True):
            if isinstance(settled, Refused):
                instead = fails_instead(settlement, settled.why, run.rules if run else DEFAULT_POLICY)
                self._finished.append((run, instead))
                continue
            lost = settled == "lost"
            if run is not None:
                self._running.drop(run)
                if self._usage is not None:
                    self._usage.settled(run, "lost" if lost else settlement.outcome)
            if lost or settlement.outcome != "succeeded":
                _log(settlement, lost=lost)
            if self.once:
                self.tally["lost" if lost else _tally_key(settlement)] += 1
            if wants_events:
                self._publish(run, settlement, lost=lost, now_ms=answer.now_ms)

    def _forget(self, run: Run | None) -> None:
        if run is not None:
            self._running.drop(run)
            if self._usage is not None:
                self._usage.settled(run, "lost")

    def _publish(self, run: Run | None, settlement: Settlement, *, lost: bool, now_ms: int) -> None:
        if not lost:
            self._hooks.events(settlement_events(settlement, now_ms))
        elif run is not None:
            self._hooks.events([job_event(run.claimed.job, "lease_lost", now_ms)])

    # ------------------------------------------------------------------------------------------------ sleeping

    def wake(self) -> None:
        """Exchange again now: something has changed."""
        self._woken.set()

    async def _sleep_until_woken(self, seconds: float = IDLE_MS / 1000) -> None:
        """Sleep until a job finishes or may be due, at most for this time (the watchdog expects a turn)."""
        timer = asyncio.get_running_loop().call_later(seconds, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()
        self._woken.clear()

    async def _idle(self, answer: Exchanged) -> None:
        """Slots are free and no job is due: sleep until one is due, one finishes, or 5 s have passed.

        The store is watched from before the exchange that found nothing, so that no wake-up is lost between the two.
        """
        if self._watching is None:
            await self._watch(answer.now_ms)
            return
        if not self._was_idle and not self._occupied:
            self._was_idle = True
            self._on_idle()
        wait_ms = IDLE_MS if answer.next_due_ms is None else min(IDLE_MS, answer.next_due_ms - answer.now_ms)
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


def _log(settlement: Settlement, *, lost: bool) -> None:
    job = f"job {settlement.lease.id} ({settlement.lease.name})"
    if lost:
        log.warning("%s: the settlement came too late", job)
    elif settlement.outcome in ("errored", "crashed"):
        error = " ".join((settlement.error or "").split())[:300]
        state = _tally_key(settlement)
        log.warning("%s, attempt %d %s, %s: %s", job, settlement.attempt, settlement.outcome, state, error)


def _tally_key(settlement: Settlement) -> str:
    """The field of a tick's summary that counts this settlement."""
    if settlement.outcome in ("errored", "crashed"):
        return "retrying" if settlement.state == "waiting" and settlement.rearm is None else "failed"
    return "succeeded" if settlement.outcome == "succeeded" else "waiting"
