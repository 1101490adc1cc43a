"""The worker: creates its loops, starts them, and stops them gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random as chance
import signal
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Unpack

from jobmill.core.durations import Duration, to_ms
from jobmill.errors import JobmillError, LoginRefused, StoreUnavailable
from jobmill.runtime.backoff import LoopBackoff
from jobmill.runtime.tasks import end
from jobmill.runtime.threads import Threads
from jobmill.runtime.watchdog import Turn, Watchdog
from jobmill.worker.ahead import AheadQueue, AheadRules
from jobmill.worker.announcer import Announcer
from jobmill.worker.context import WorkerContext
from jobmill.worker.counts import Counts
from jobmill.worker.deadlines import Deadlines
from jobmill.worker.declared import state_declared
from jobmill.worker.exchanger import Exchanger
from jobmill.worker.health import Health, worker_views
from jobmill.worker.heartbeat import Heartbeat
from jobmill.worker.hooks import HookQueue
from jobmill.worker.janitor import Janitor
from jobmill.worker.lifespans import Lifespans
from jobmill.worker.loop_monitor import LoopMonitor
from jobmill.worker.metrics import worker_metrics
from jobmill.worker.options import WorkerOptions, worker_settings
from jobmill.worker.outbox import OutboxLoop
from jobmill.worker.recycle import MemoryLimit
from jobmill.worker.reporter import Reporter
from jobmill.worker.running import RunningJobs
from jobmill.worker.tick import Tick
from jobmill.worker.usage import UsageLog, UsageQueue

if TYPE_CHECKING:
    from jobmill.handlers.registry import Registry

log = logging.getLogger("jobmill")

#: After this time without an answer a starting worker says that it waits for its store.
SILENT_S = 2.0

#: How long the last settlements of a stopping worker may take, and then its stop hooks.
LAST_CALLS_S = 10.0


class Worker:
    """Claims, runs and settles the jobs of an application's handlers. One worker per process is enough."""

    def __init__(self, registry: Registry, **options: Unpack[WorkerOptions]) -> None:
        self._registry = registry
        self.settings = worker_settings(options, registry.handlers.values())
        self.watchdog = Watchdog()
        self.random = chance.Random()
        self.lifespans = Lifespans(registry.hooks.lifespans)
        self._begun = False
        self._started = False
        self._stopping: asyncio.Task[None] | None = None
        #: Whether it has ended because it reached `max_jobs` or `max_memory`: a new process should take its place.
        self.recycled = False

    def __repr__(self) -> str:
        """Name and state."""
        state = "stopping" if self._stopping else f"{self.running} jobs running" if self._started else "not started"
        return f"<worker {self.name}: {state}>"

    @property
    def name(self) -> str:
        """The name of this worker, by default `{hostname}-{pid}-{random}`. Its jobs carry it."""
        return self.settings.name

    @property
    def running(self) -> int:
        """The number of jobs that run now."""
        return self._context.running.started if self._started else 0

    # ------------------------------------------------------------------------------------------------ start

    async def start(self, *, once: bool = False) -> None:
        """Open the store and the lifespans, and start all loops. With `once`, each exchanger claims a single time.

        While the store is unavailable, this waits for it, or until `stop` is called, unless `wait_for_store` is False.
        """
        self._check_not_running()
        _check_handlers(self._registry)
        self._context = self._new_context()  # a client of Django refuses a real store in a test
        self._begun = True
        self._stopping = None
        self._is_recycling = self.recycled = False
        self._hurry = asyncio.Event()
        self._end = asyncio.Event()
        # A tick may start a worker every few seconds, which is too often for INFO.
        self._log_level = logging.DEBUG if once else logging.INFO
        try:
            await self._prepare(once)
            if await self._open_store(once) and await self._unless_stopped(self.lifespans.open(), "lifespans"):
                await self._start(once)
        except BaseException:
            # For example, the health port is taken. The loops that have started already must not stay.
            await self._end_loops()
            raise
        if not self._started:
            await self._end_loops()

    def _check_not_running(self) -> None:
        if self._begun:
            raise JobmillError(f"worker {self.name} is running already; stop it first, or create another worker")

    async def _prepare(self, once: bool) -> None:
        """Start what does not need the store."""
        self._loops: list[asyncio.Task[None]] = []
        self._exchanging: list[asyncio.Task[None]] = []
        self._health: Health | None = None
        self._announcer: Announcer | None = None
        self._monitor: LoopMonitor | None = None
        context = self._context
        self._registry.hooks.count_enqueued.append(context.counts.enqueued)
        self._exchangers = self._new_exchangers(context, once)
        context.hooks.start()
        if context.usage is not None:
            context.usage.start()
        if not once and any(one.is_async and not one.isolate for one in context.handlers.values()):
            self._monitor = LoopMonitor(context)
            self._monitor.start()
        if self.settings.health is not None:
            views = worker_views(
                self.watchdog, self._not_ready, lambda: worker_metrics(context, is_started=self._started)
            )
            self._health = Health(self.settings.health, views, self.settings.health_host)
            await self._health.start()

    async def _open_store(self, once: bool) -> bool:
        """Open the store and state what is declared. Wait for an unavailable store; False if stopped meanwhile."""
        backoff = LoopBackoff(self.random)
        while not self._end.is_set():
            try:
                if not await self._unless_stopped(self._open(once), "store"):
                    return False
            except StoreUnavailable as error:
                if once or not self.settings.wait_for_store or isinstance(error, LoginRefused):
                    raise
                self.watchdog.store_failed(error)
                pause = backoff.next()
                log.warning("worker %s waits for its store (%s); trying again in %.1f s", self.name, error, pause)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._end.wait(), pause)
            else:
                self.watchdog.store_answered(self._registry.store.name)
                return True
        return False

    async def _unless_stopped(self, opens: Coroutine[Any, Any, None], what: str) -> bool:
        """False if the worker was stopped first. A driver may need ten seconds to notice that its server is away."""
        opening = asyncio.ensure_future(opens)
        ending = asyncio.ensure_future(self._end.wait())
        try:
            done, _ = await asyncio.wait((opening, ending), timeout=SILENT_S, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                log.warning("worker %s waits for its %s (no answer yet)", self.name, what)
                await asyncio.wait((opening, ending), return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                opening.result()
            return opening.done()
        finally:
            for task in (opening, ending):
                task.cancel()
            await asyncio.gather(opening, ending, return_exceptions=True)

    async def _open(self, once: bool) -> None:
        await self._registry.open()
        self._has_undeclared = await state_declared(self._registry, once=once)

    async def _start(self, once: bool) -> None:
        context = self._context
        janitor = Janitor(context, self._registry, self._has_undeclared, checks_queues=not once)
        self._announcer = Announcer(
            context, is_stopping=lambda: self._stopping is not None, on_stop=self._stop_by_order
        )
        self._loops += [
            self._loop("heartbeat", Heartbeat(context, hints=not once).turn, self.watchdog),
            self._loop("reporter", context.reporter.turn, self.watchdog),
            # The janitor sleeps longer than the watchdog allows, and no job depends on it.
            self._loop("janitor", janitor.turn, Watchdog()),
            self._loop("outbox", OutboxLoop(context).turn, self.watchdog),
        ]
        if not once:
            self._loops.append(self._loop("announcer", self._announcer.turn, self.watchdog))
        await self._registry.hooks.call_moment("start", self)
        self._exchanging += [_task(one.name, one.run()) for one in self._exchangers]
        self._started = True
        if self.settings.max_memory is not None:
            limit = MemoryLimit(self.settings.max_memory, self._recycle)
            self._loops.append(self._loop("memory", limit.turn, self.watchdog))
        log.log(
            self._log_level,
            "worker %s: concurrency %d, queues %s, handlers %s, %s store",
            self.name,
            self.settings.concurrency,
            ", ".join(self.settings.queues),
            ", ".join(sorted(self._registry.handlers)) or "none",
            self._registry.store.name,
        )

    def _new_context(self) -> WorkerContext:
        store, threads, hooks = self._registry.store, Threads(), HookQueue(self._registry.hooks, self)
        queues = [UsageQueue(recorder, threads, self.random) for recorder in self._registry.usage_recorders]
        return WorkerContext(
            store=store,
            handlers=self._registry.handlers,
            settings=self.settings,
            random=self.random,
            watchdog=self.watchdog,
            running=RunningJobs(),
            threads=threads,
            deadlines=Deadlines(),
            hooks=hooks,
            lifespans=self.lifespans,
            reporter=Reporter(store, hooks),
            counts=Counts(self._registry.handlers, self.settings.queues),
            usage=UsageLog(store, self.name, queues) if queues else None,
            cut_off=self._cut_off,
            recycle=self._recycle,
            outbox=asyncio.Event(),
        )

    def _not_ready(self) -> dict[str, Any]:
        """Why this worker claims no jobs, for a probe; empty if it does."""
        if self._end.is_set() or self._stopping is not None or self._is_recycling:
            return {"stopping": True}
        return {} if self._started else {"ready": False}

    def _shares(self, once: bool) -> list[int]:
        """The slots of each exchanger. The store says how many it can use; a tick and `max_jobs` need a single one."""
        is_single = once or self.settings.max_jobs is not None
        count = 1 if is_single else min(self._registry.store.exchanges_in_flight, self.settings.concurrency)
        share, rest = divmod(self.settings.concurrency, count)
        return [share + (number < rest) for number in range(count)]

    def _new_exchangers(self, context: WorkerContext, once: bool) -> list[Exchanger]:
        rules, exchangers = AheadRules(context), list[Exchanger]()
        for number, slots in enumerate(self._shares(once), 1):
            limit = 0 if once else self.settings.claim_ahead * slots // self.settings.concurrency
            ahead = AheadQueue(rules, limit)
            context.running.waiting.append(ahead.waiting)
            first = exchangers[0] if exchangers else None
            exchangers.append(Exchanger(f"exchanger {number}", slots, context, ahead, first, once=once))
        return exchangers

    def _loop(self, name: str, turn: Turn, watchdog: Watchdog) -> asyncio.Task[None]:
        return _task(name, watchdog.run(name, turn, self._context.hooks.error, self.random))

    # ------------------------------------------------------------------------------------------------ stop

    async def stop(self, timeout: Duration | None = None) -> None:
        """Claim no more jobs, wait for running jobs, then cancel the rest and release them without counting an attempt.

        `timeout` is how long running jobs may take to end (default: `shutdown_timeout`). A second call waits for the
        same end; with a timeout of 0 it releases the jobs at once. When a hook calls this, it returns at once, because
        the end of the worker waits for its hooks.
        """
        if self._begun:
            self._end.set()
        if not self._started:
            return
        patience = self.settings.shutdown_timeout if timeout is None else to_ms(timeout, "timeout") / 1000
        if self._stopping is None or self._stopping.cancelling():  # all tasks were cancelled, this one too
            self._stopping = _task("stop", self._stop(patience))
        elif timeout is not None and patience == 0:
            self._hurry.set()
        if asyncio.current_task() not in (self._stopping, self._context.hooks.task):
            await asyncio.shield(self._stopping)

    def _stop_by_order(self) -> None:
        """Stop because somebody ordered it, without waiting for the end: the announcer ends with the worker."""
        self._ordered = _task("ordered stop", self.stop())

    async def _stop(self, patience: float) -> None:
        if self._cut_off():
            patience = 0  # all tasks were cancelled, and threads cannot be waited for
            await self._restart_exchangers()
        jobs = "1 running job has" if self.running == 1 else f"{self.running} running jobs have"
        left = f"; {jobs} {patience:g} s to end" if self.running else ""
        log.log(self._log_level, "worker %s: stopping%s", self.name, left)
        for exchanger in self._exchangers:
            exchanger.stopping = True
            exchanger.wake()
        hurry = _task("hurry", self._hurry.wait())
        all_ended = _task("all ended", asyncio.wait(self._exchanging))
        await asyncio.wait([hurry, all_ended], timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        all_ended.cancel()
        if any(not task.done() for task in self._exchanging):
            await self._release()
        try:
            async with asyncio.timeout(LAST_CALLS_S):
                await self._registry.hooks.call_moment("stop", self)
        except TimeoutError:
            log.error("worker %s: a stop hook did not end within %g s and was abandoned", self.name, LAST_CALLS_S)
        await self._end_loops()
        log.log(self._log_level, "worker %s: stopped", self.name)

    def _recycle(self, why: str) -> None:
        """A limit of this process is reached: claim no more jobs, finish those that run, however long, and stop."""
        if self._is_recycling or self._end.is_set() or self._stopping is not None:
            return
        self._is_recycling = True
        log.info("worker %s: %s; it finishes its running jobs (%d) and ends", self.name, why, self.running)
        self._loops.append(_task("recycle", self._finish()))

    async def _finish(self) -> None:
        for exchanger in self._exchangers:
            exchanger.stopping = True
            exchanger.wake()
        await asyncio.wait(self._exchanging)
        self.recycled = not self._end.is_set()
        await self.stop()

    def _cut_off(self) -> bool:
        """Whether all tasks were cancelled at once, handlers and exchangers alike, as asyncio.run does at its end."""
        return any(task.cancelling() for task in self._exchanging)

    async def _restart_exchangers(self) -> None:
        """Settle the cancelled jobs after all. Otherwise their leases would end, and count as crashes."""
        await end(self._exchanging)
        for run in self._context.running.runs.values():
            run.why = run.why or "shutdown"
        self._exchanging = [_task(one.name, one.run()) for one in self._exchangers]

    async def _release(self) -> None:
        """The time is over: cancel and release the jobs that still run. Threads cannot be stopped; they continue."""
        still = [run for run in self._context.running.runs.values() if not run.over]
        if still:
            jobs = "1 job" if len(still) == 1 else f"{len(still)} jobs"
            log.warning("worker %s: releasing %s that did not end in time", self.name, jobs)
        deadline = asyncio.get_running_loop().time() + LAST_CALLS_S
        while any(exchanger.has_unsettled for exchanger in self._exchangers) or self._context.running.runs:
            # In every pass: a claim that was in flight may have added runs.
            for run in list(self._context.running.runs.values()):
                run.stop("shutdown")
            if asyncio.get_running_loop().time() > deadline:
                unreleased = len(self._context.running.runs)
                log.error("worker %s: jobs could not be released (%d); their leases will expire", self.name, unreleased)
                break
            await asyncio.sleep(0.005)
        for task in self._exchanging:
            task.cancel()

    async def _end_loops(self) -> None:
        try:
            await asyncio.wait_for(self._context.reporter.flush(), 5)
        except Exception as error:
            log.warning("worker %s: the last progress and log lines could not be stored: %r", self.name, error)
        await end([*self._loops, *self._exchanging])
        if self._announcer is not None:
            await self._announcer.leave()
        await self._context.hooks.stop()
        self._registry.hooks.count_enqueued.remove(self._context.counts.enqueued)
        if self._context.usage is not None:
            await self._context.usage.stop()
        await self.lifespans.close()
        if self._health is not None:
            await self._health.stop()
        if self._monitor is not None:
            self._monitor.stop()
        if self._context.isolation is not None:
            await self._context.isolation.close()
        self._context.deadlines.clear()
        self._context.threads.close()
        self._started = self._begun = False

    # ------------------------------------------------------------------------------------------------ run

    async def tick(self) -> Tick:
        """Claim once, run the claimed jobs and settle them. Returns how many jobs had which outcome."""
        await self.start(once=True)
        try:
            # Not gather: it would pass a cancellation on to the exchangers, which have to release the jobs.
            await asyncio.wait(self._exchanging)
        finally:
            await self.stop(timeout=0)
        for ended in self._exchanging:
            ended.result()
        (exchanger,) = self._exchangers
        return Tick(claimed=exchanger.claimed, **exchanger.tally)

    async def run(self) -> None:
        """Start, work until SIGTERM, SIGINT, a call of `stop`, a limit or the cancellation of this task, then stop."""
        self._check_not_running()
        loop = asyncio.get_running_loop()
        signals: list[signal.Signals] = []

        def on_signal() -> None:
            # The second signal means: do not wait for jobs.
            if self._end.is_set():
                self._hurry.set()
            self._end.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            # This fails outside the main thread and on Windows. There, cancel the task or call `stop`.
            with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
                loop.add_signal_handler(number, on_signal)
                signals.append(number)
        try:
            await self.start()
            await self._end.wait()
        finally:
            try:
                await self.stop()
            finally:
                for number in signals:
                    loop.remove_signal_handler(number)

    async def __aenter__(self) -> Worker:
        """Start the worker."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the worker."""
        await self.stop()


def _check_handlers(registry: Registry) -> None:
    for handler in registry.handlers.values():
        if handler.isolate:
            from jobmill.worker.isolate.find import check_isolatable

            check_isolatable(handler)


def _task(name: str, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(coroutine, name=f"jobmill {name}")
