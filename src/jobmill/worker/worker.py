"""The worker: creates its loops, starts them, and stops them gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random as chance
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Unpack

from jobmill.core.durations import to_ms
from jobmill.errors import JobmillError
from jobmill.handlers.options import Duration
from jobmill.runtime.tasks import end
from jobmill.runtime.threads import Threads
from jobmill.runtime.watchdog import Watchdog, run_forever
from jobmill.worker.deadlines import Deadlines
from jobmill.worker.exchanger import Exchanger
from jobmill.worker.heartbeat import Heartbeat
from jobmill.worker.hooks import HookQueue
from jobmill.worker.janitor import Janitor
from jobmill.worker.options import WorkerOptions, worker_settings
from jobmill.worker.reporter import Reporter
from jobmill.worker.runner import Runner
from jobmill.worker.running import RunningJobs
from jobmill.worker.usage import UsageLog, UsageQueue

if TYPE_CHECKING:
    from jobmill.handlers.registry import Registry
    from jobmill.worker.health import Health

log = logging.getLogger("jobmill")

#: How long the last settlements of a stopping worker may take, and then its stop hooks.
LAST_CALLS_S = 10.0


class Worker:
    """Claims, runs and settles the jobs of an application's handlers. One worker per process is enough."""

    def __init__(self, registry: Registry, **options: Unpack[WorkerOptions]) -> None:
        self._registry = registry
        self.settings = worker_settings(options, registry.handlers.values())
        self.watchdog = Watchdog()
        self.random = chance.Random()
        self._begun = False
        self._started = False
        self._stopping: asyncio.Task[None] | None = None
        self._hurry: asyncio.Event | None = None

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
        return len(self._running.runs) if self._started else 0

    # ------------------------------------------------------------------------------------------------ start

    async def start(self, *, once: bool = False) -> None:
        """Open the store and start all loops. With `once`, each exchanger claims a single time."""
        if self._begun:
            raise JobmillError(f"worker {self.name} is running already; stop it first, or create another worker")
        _check_handlers(self._registry)
        await self._registry.open()
        self._begun = True
        self._stopping = None
        try:
            await self._start(once)
        except BaseException:
            # For example, the health port is taken. The loops that have started already must not stay.
            await self._end_loops()
            raise

    async def _start(self, once: bool) -> None:
        store = self._registry.store
        # A tick may start a worker every few seconds, which is too often for INFO.
        self._log_level = logging.DEBUG if once else logging.INFO
        self._hurry = asyncio.Event()
        self._end = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._exchanging: list[asyncio.Task[None]] = []
        self._health: Health | None = None
        self._running = RunningJobs()
        self._threads = Threads()
        self._deadlines = Deadlines()
        self.hook_queue = HookQueue(self._registry.hooks)
        self.reporter = Reporter(store, self.hook_queue)
        usage = self._usage = self._usage_log()
        self.heartbeat = Heartbeat(store, self._running, self.settings.lease_ms, self.watchdog, self.hook_queue, usage)
        runner = Runner(self._threads, self._deadlines, self.hook_queue, usage, self._cut_off)
        self._exchangers = [
            self._exchanger(number, slots, runner) for number, slots in enumerate(self._shares(once), 1)
        ]
        for exchanger in self._exchangers:
            exchanger.once = once
        self.hook_queue.start()
        if usage is not None:
            usage.start()
        self._health = await self._start_health()
        self._loops += [
            self._loop("heartbeat", self.heartbeat.turn),
            self._loop("reporter", self.reporter.turn),
            self._loop("janitor", Janitor(store, self.random).turn, watched=False),
        ]
        await self._registry.hooks.call_moment("start", self)
        self._exchanging += [_task(one.name, one.run()) for one in self._exchangers]
        self._started = True
        log.log(
            self._log_level,
            "worker %s: concurrency %d, queues %s, handlers %s, %s store",
            self.name,
            self.settings.concurrency,
            ", ".join(self.settings.queues),
            ", ".join(sorted(self._registry.handlers)) or "none",
            store.name,
        )

    def _shares(self, once: bool) -> list[int]:
        """The slots of each exchanger. The store says how many exchangers it can use; a tick needs one."""
        count = 1 if once else min(self._registry.store.exchanges_in_flight, self.settings.concurrency)
        share, rest = divmod(self.settings.concurrency, count)
        return [share + (number < rest) for number in range(count)]

    def _usage_log(self) -> UsageLog | None:
        queues = [UsageQueue(recorder, self._threads, self.random) for recorder in self._registry.usage_recorders]
        return UsageLog(self._registry.store, self.name, queues) if queues else None

    def _exchanger(self, number: int, slots: int, runner: Runner) -> Exchanger:
        return Exchanger(
            f"exchanger {number}",
            self._registry.store,
            self._registry.handlers,
            self.settings,
            slots,
            running=self._running,
            runner=runner,
            reporter=self.reporter,
            hooks=self.hook_queue,
            usage=self._usage,
            watchdog=self.watchdog,
            random=self.random,
            on_idle=lambda: self.hook_queue.moment("idle", self),
        )

    def _loop(self, name: str, turn: Callable[[], Awaitable[float]], *, watched: bool = True) -> asyncio.Task[None]:
        # The janitor sleeps longer than the watchdog allows, and no job depends on it.
        watchdog = self.watchdog if watched else Watchdog()
        return _task(name, run_forever(name, turn, watchdog, self._on_error, self.random))

    def _on_error(self, error: BaseException) -> None:
        self.hook_queue.error(error, None)

    async def _start_health(self) -> Health | None:
        if self.settings.health is None:
            return None
        from jobmill.worker.health import Health

        health = Health(
            self.settings.health,
            self.watchdog,
            lambda: self._started and self._stopping is None,
            host=self.settings.health_host,
        )
        await health.start()
        return health

    # ------------------------------------------------------------------------------------------------ stop

    async def stop(self, timeout: Duration | None = None) -> None:
        """Claim no more jobs, wait for running jobs, then cancel the rest and release them without counting an attempt.

        `timeout` is how long running jobs may take to end (default: `shutdown_timeout`). A second call waits for the
        same end; with a timeout of 0 it releases the jobs at once. When a hook calls this, it returns at once, because
        the end of the worker waits for its hooks.
        """
        if not self._started:
            return
        self._end.set()
        patience = self.settings.shutdown_timeout if timeout is None else to_ms(timeout, "timeout") / 1000
        if self._stopping is None:
            self._stopping = _task("stop", self._stop(patience))
        elif timeout is not None and patience == 0 and self._hurry is not None:
            self._hurry.set()
        if asyncio.current_task() not in (self._stopping, self.hook_queue.task):
            await asyncio.shield(self._stopping)

    async def _stop(self, patience: float) -> None:
        assert self._hurry is not None
        if self._cut_off():
            patience = 0  # all tasks were cancelled, and threads cannot be waited for
            await self._restart_exchangers()
        left = f"; {self.running} running jobs have {patience:g} s to end" if self.running else ""
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

    def _cut_off(self) -> bool:
        """Whether all tasks were cancelled at once, handlers and exchangers alike, as asyncio.run does at its end."""
        return any(task.cancelling() for task in self._exchanging)

    async def _restart_exchangers(self) -> None:
        """Settle the cancelled jobs after all. Otherwise their leases would end, and count as crashes."""
        await end(self._exchanging)
        for run in self._running.runs.values():
            run.why = run.why or "shutdown"
        self._exchanging = [_task(one.name, one.run()) for one in self._exchangers]

    async def _release(self) -> None:
        """The time is over: cancel and release the jobs that still run. Threads cannot be stopped; they continue."""
        still = [run for run in self._running.runs.values() if not run.over]
        log.warning("worker %s: releasing %d jobs that did not end in time", self.name, len(still))
        deadline = asyncio.get_running_loop().time() + LAST_CALLS_S
        while any(exchanger.has_unsettled for exchanger in self._exchangers) or self._running.runs:
            # In every pass: a claim that was in flight may have added runs.
            for run in list(self._running.runs.values()):
                run.stop("shutdown")
            if asyncio.get_running_loop().time() > deadline:
                unreleased = len(self._running.runs)
                log.error("worker %s: %d jobs could not be released; their leases will expire", self.name, unreleased)
                break
            await asyncio.sleep(0.005)
        for task in self._exchanging:
            task.cancel()

    async def _end_loops(self) -> None:
        try:
            await asyncio.wait_for(self.reporter.flush(), 5)
        except Exception as error:
            log.warning("worker %s: the last progress and log lines could not be stored: %r", self.name, error)
        await end([*self._loops, *self._exchanging])
        await self.hook_queue.stop()
        if self._usage is not None:
            await self._usage.stop()
        if self._health is not None:
            await self._health.stop()
        self._deadlines.clear()
        self._threads.close()
        self._started = self._begun = False

    # ------------------------------------------------------------------------------------------------ run

    async def tick(self) -> Counter[str]:
        """Claim once, run the claimed jobs and settle them. Returns how many jobs had which outcome."""
        await self.start(once=True)
        try:
            # Not gather: it would pass a cancellation on to the exchangers, which have to release the jobs.
            await asyncio.wait(self._exchanging)
        finally:
            await self.stop(timeout=0)
        for ended in self._exchanging:
            ended.result()
        return sum((exchanger.tally for exchanger in self._exchangers), Counter())

    async def run(self) -> None:
        """Start, work until SIGTERM, SIGINT, a call of `stop` or the cancellation of this task, then stop."""
        await self.start()
        loop = asyncio.get_running_loop()
        signals: list[signal.Signals] = []

        def on_signal() -> None:
            # The second signal means: do not wait for jobs.
            if self._end.is_set():
                _keep(self._hurry_up())
            self._end.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            # This fails outside the main thread and on Windows. There, cancel the task or call `stop`.
            with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
                loop.add_signal_handler(number, on_signal)
                signals.append(number)
        try:
            await self._end.wait()
        finally:
            try:
                await self.stop()
            finally:
                for number in signals:
                    loop.remove_signal_handler(number)

    async def _hurry_up(self) -> None:
        await self.stop(timeout=0)

    async def __aenter__(self) -> Worker:
        """Start the worker."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the worker."""
        await self.stop()


def _check_handlers(registry: Registry) -> None:
    isolated = [handler for handler in registry.handlers.values() if handler.isolate]
    if isolated:
        from jobmill.worker.isolate.parent import check_isolatable

        for handler in isolated:
            check_isolatable(handler)


_tasks: set[asyncio.Task[Any]] = set()


def _keep(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine in the background. asyncio itself keeps only weak references to tasks."""
    task = asyncio.ensure_future(coroutine)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


def _task(name: str, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(coroutine, name=f"jobmill {name}")
