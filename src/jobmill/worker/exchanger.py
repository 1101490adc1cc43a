"""The exchanger: hands in what is finished and takes what is free, in one call, as long as the worker works.

What finishes while a call is in flight goes into the next one, so batches grow by themselves under load and nothing
waits when idle. Never a claim beyond the free slots.
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
from jobmill.core.lifecycle import DEFAULT_POLICY, Outcome, Released, begin, fails_instead, settle
from jobmill.core.presets import UnknownPreset
from jobmill.core.values import Broken, Claim, Exchanged, Refused, Settlement
from jobmill.errors import StoreUnavailable
from jobmill.handlers.handler import Handler
from jobmill.runtime.backoff import LoopBackoff
from jobmill.runtime.presets import policy_with_presets
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
#: Between wake-ups that brought nothing, so that other workers' commits do not keep an idle one busy.
FRUITLESS_S = (0.0, 0.001, 0.002, 0.004, 0.008)


class Exchanger:
    """One exchange in flight, over its own share of the slots."""

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
        self._settings = settings
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
        self._all_names = {name: slots for name, handler in handlers.items() if handler.concurrency is None}
        self._limited = {name: h.concurrency for name, h in handlers.items() if h.concurrency is not None}
        self._occupied = 0
        #: How many of these are threads that run on after their job was settled.
        self._left = 0
        self._finished: list[tuple[Run | None, Settlement]] = []
        self._woken = asyncio.Event()
        running.wakes.append(self.wake)
        self._watching: asyncio.Future[None] | None = None
        self._fruitless = 0
        self._was_idle = False
        self._in_flight = False
        self.stopping = False
        #: For a tick: claim once, and count what comes of it.
        self.once = False
        self.tally: Counter[str] = Counter()

    # ------------------------------------------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Until stopping, nothing runs and everything is settled."""
        backoff = LoopBackoff(self._random)
        while not (self.stopping and not self._finished and not self._awaited()):
            self._watchdog.beat(self.name)
            try:
                await self._turn()
                backoff.reset()
            except (Exception, asyncio.CancelledError) as error:
                if being_cancelled(error) or (self.once and not self.stopping):
                    raise
                await self._survive(error, backoff.next())
        self._watch_no_more()
        self._watchdog.ended(self.name)

    @property
    def has_unsettled(self) -> bool:
        """Whether something finished is not yet written, or a claim is in flight."""
        return bool(self._finished) or self._in_flight

    def _awaited(self) -> int:
        """How many runs the end waits for; a tick has a summary to give, and leaves threads that timed out behind."""
        return self._occupied - (self._left if self.once else 0)

    async def _turn(self) -> None:
        # What woke us until now is seen by this turn: left set, it would cost an exchange that finds nothing.
        self._woken.clear()
        claim = self._claim()
        if claim is None and not self._finished:
            # A tick that has nothing to claim is over; otherwise only what finishes is of interest.
            self.stopping = self.stopping or self.once
            if self._awaited() or not self.once:
                await self._sleep_until_woken()
            return
        if self._reporter.has_something and self._finished:
            # A settlement ends the lease under which they are written.
            await self._reporter.flush()
        batch, self._finished = self._finished, []
        self._in_flight = True
        try:
            answer, sent = await self._exchange(batch, claim)
        finally:
            self._in_flight = False
        self._watchdog.store_error = None
        self._settled(batch, answer)
        if self.once:
            self.stopping = True
            self.tally["claimed"] += len(answer.claimed)
        self._begin(answer, sent + self._settings.lease_ms / 1000)
        if answer.claimed or self._finished:
            self._fruitless = 0
            self._was_idle = False
            self._watch_no_more()
        elif claim is not None and not self.stopping:
            await self._idle(answer)

    async def _exchange(
        self, batch: list[tuple[Run | None, Settlement]], claim: Claim | None
    ) -> tuple[Exchanged, float]:
        """The call itself; when it fails, nothing that is finished is forgotten and reserved room is given back."""
        sent = self._monotonic()
        self._reserve(claim, 1)
        try:
            return await self._store.exchange([settlement for _, settlement in batch], claim), sent
        except (StoreUnavailable, asyncio.CancelledError):
            self._finished = batch + self._finished
            raise
        except Exception:
            await self._one_by_one(batch)
            raise
        finally:
            self._reserve(claim, -1)

    async def _survive(self, error: BaseException, wait: float) -> None:
        self._watchdog.store_error = f"{type(error).__name__}: {error}"
        if isinstance(error, StoreUnavailable):
            log.warning("the %s store is away (%s); trying again in %.1f s", self._store.name, error, wait)
        else:
            log.exception("the %s loop raised; it goes on in %.1f s", self.name, wait)
        self._hooks.error(error, None)
        # Running jobs go on, and what finishes meanwhile is kept for the next try.
        await asyncio.sleep(wait)

    async def _one_by_one(self, batch: list[tuple[Run | None, Settlement]]) -> None:
        """One settlement that the store chokes on must not hold the others up, nor come back for ever."""
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
                    self._settled([(run, tried)], answer)
                    break
            else:
                self._forget(run)

    # ------------------------------------------------------------------------------------------------ claiming

    def _claim(self) -> Claim | None:
        free = self._slots - self._occupied
        names = self._names(free)
        if self.stopping or free <= 0 or not names:
            return None
        if len(self._queues) > 1:
            self._queues = (*self._queues[1:], self._queues[0])
        return Claim(
            queues=self._queues,
            names=names,
            n=free,
            lease_ms=self._settings.lease_ms,
            worker=self._settings.name,
            token=secrets.token_hex(16),
        )

    def _names(self, free: int) -> dict[str, int]:
        if not self._limited:
            return self._all_names
        names = dict(self._all_names)
        for name, most in self._limited.items():
            room = min(free, most - self._running.of_name.get(name, 0))
            if room > 0:
                names[name] = room
        return names

    def _reserve(self, claim: Claim | None, sign: int) -> None:
        """Room that is asked for is taken until the answer is here: another exchanger may ask at the same time."""
        for name in self._limited if claim is not None else ():
            self._running.take_room(name, sign * claim.names.get(name, 0))  # type: ignore[union-attr]

    def _begin(self, answer: Exchanged, expires: float) -> None:
        now_ms = answer.now_ms
        told = self._hooks.wants_events
        # The answer took longer than the lease (this process was stopped, say): other workers may run these by now.
        late = self._monotonic() >= expires
        for claimed in answer.claimed:
            if isinstance(claimed, Broken):
                self._decided(begin(claimed, None, now_ms))
                continue
            if told:
                self._hooks.events(claim_events(claimed.job, now_ms, lease_lost=False))
            handler = self._handlers.get(claimed.job.name)
            try:
                rules = None if handler is None else policy_with_presets(claimed.job.options, handler.policy)
            except UnknownPreset as unknown:
                self._decided(begin(Broken(claimed.lease, str(unknown)), None, now_ms))
                continue
            decided = begin(claimed, rules, now_ms)
            if decided is None and late:
                decided = settle(claimed, Released(), DEFAULT_POLICY, now_ms)
            if decided is not None or handler is None or rules is None:
                self._decided(decided)
            else:
                self._run(Run(claimed, handler, rules, expires, self._reporter.report_for), now_ms)

    def _decided(self, settlement: Settlement | None) -> None:
        """What is settled without a run."""
        if settlement is not None:
            self._finished.append((None, settlement))

    def _run(self, run: Run, now_ms: int) -> None:
        older = self._running.add(run)
        if older is not None:
            self._overtaken(older, now_ms)
        self._occupied += 1
        if self._limited:
            self._running.take_room(run.handler.name)
        self._runner.start(run, self._over, self._freed)

    def _overtaken(self, older: Run, now_ms: int) -> None:
        """We have claimed what we still run: that lease had ended, and we did not know it yet."""
        if not older.over and older.why != "lost":
            older.stop("lost")
            if self._usage is not None:
                self._usage.lost(older, "lease_lost")
            if self._hooks.wants_events:
                self._hooks.events([job_event(older.claimed.job, "lease_lost", now_ms)])

    # ------------------------------------------------------------------------------------------------ settling

    def _over(self, run: Run, outcome: Outcome | None) -> None:
        if outcome is None:
            self._running.drop(run)
        else:
            decided = settle(run.claimed, outcome, run.rules, self._store.now(), self._random.random())
            self._finished.append((run, decided))
        self._left += run.in_thread
        self._woken.set()

    def _freed(self, run: Run) -> None:
        self._occupied -= 1
        self._left -= run.in_thread
        if self._limited:
            self._running.free_room(run.handler.name)
        self._woken.set()

    def _settled(self, batch: list[tuple[Run | None, Settlement]], answer: Exchanged) -> None:
        told = self._hooks.wants_events
        for (run, settlement), settled in zip(batch, answer.settled, strict=True):
            if isinstance(settled, Refused):
                instead = fails_instead(settlement, settled.why, run.rules if run else DEFAULT_POLICY)
                self._finished.append((run, instead))
                continue
            if run is not None:
                self._running.drop(run)
                if self._usage is not None:
                    self._usage.settled(run, "lost" if settled == "lost" else settlement.outcome)
            if settled == "lost" or settlement.outcome != "succeeded":
                _log(settlement, lost=settled == "lost")
            if self.once:
                self.tally["lost" if settled == "lost" else _word(settlement)] += 1
            if told:
                self._tell(run, settlement, lost=settled == "lost", now_ms=answer.now_ms)

    def _forget(self, run: Run | None) -> None:
        if run is not None:
            self._running.drop(run)
            if self._usage is not None:
                self._usage.settled(run, "lost")

    def _tell(self, run: Run | None, settlement: Settlement, *, lost: bool, now_ms: int) -> None:
        if not lost:
            self._hooks.events(settlement_events(settlement, now_ms))
        elif run is not None:
            self._hooks.events([job_event(run.claimed.job, "lease_lost", now_ms)])

    # ------------------------------------------------------------------------------------------------ sleeping

    def wake(self) -> None:
        """Look again now: something has changed."""
        self._woken.set()

    async def _sleep_until_woken(self, seconds: float = IDLE_MS / 1000) -> None:
        """Until something finishes, a hint comes, or the time is over (which also keeps the watchdog content)."""
        timer = asyncio.get_running_loop().call_later(seconds, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()
        self._woken.clear()

    async def _idle(self, answer: Exchanged) -> None:
        """Slots are free and nothing is due: sleep until something is, something finishes, or 5 s have passed.

        The store is watched from before the exchange that found nothing, so that no hint falls between the two.
        """
        if self._watching is None:
            await self._watch(answer.now_ms)
            return
        if not self._was_idle and not self._occupied:
            self._was_idle = True
            self._on_idle()
        wait_ms = IDLE_MS if answer.next_due_ms is None else min(IDLE_MS, answer.next_due_ms - answer.now_ms)
        pause = FRUITLESS_S[min(self._fruitless, len(FRUITLESS_S) - 1)]
        self._fruitless += 1
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
        await asyncio.sleep(0)  # it begins to watch now

    def _watch_no_more(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None


def _log(settlement: Settlement, *, lost: bool) -> None:
    lease = settlement.lease
    if lost:
        log.warning("job %s (%s): the settlement came too late", lease.id, lease.name)
    elif settlement.outcome in ("errored", "crashed"):
        said = " ".join((settlement.error or "").split())[:300]
        log.warning(
            "job %s (%s), attempt %d %s, %s: %s",
            lease.id,
            lease.name,
            settlement.attempt,
            settlement.outcome,
            _word(settlement),
            said,
        )


def _word(settlement: Settlement) -> str:
    """What a settlement counts as in a tick's summary."""
    if settlement.outcome in ("errored", "crashed") and settlement.state == "waiting" and settlement.rearm is None:
        return "retrying"
    if settlement.outcome in ("errored", "crashed"):
        return "failed"
    return "succeeded" if settlement.outcome == "succeeded" else "waiting"
