"""`--processes N`: runs workers in several processes, restarts those that crash, and stops all of them.

A supervisor that forks its processes has one thread and no event loop, so that it can replace a process at any time.
Its health port is in a process of its own then: `health_process`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random

from msgspec import Struct

from jobmill.core.limits import check_int
from jobmill.errors import InvalidValue
from jobmill.runtime.backoff import LoopBackoff
from jobmill.worker import forking
from jobmill.worker.health import Address, Health
from jobmill.worker.health_process import HealthProcess
from jobmill.worker.isolate.death import how_ended, signal_group
from jobmill.worker.processes import InChild, StartedProcess, death_signal, fork, spawn, wakes
from jobmill.worker.recycle import RECYCLED
from jobmill.worker.supervisor_health import Board, Seen, SeenProcess, supervisor_views

log = logging.getLogger("jobmill")

PROGRAM = (sys.executable, "-m", "jobmill")
#: Exit codes of the command line: the arguments were refused; the store cannot be used, and the worker does not wait.
USAGE_ERROR, UNAVAILABLE = 2, 3
#: The exit code of a process that Ctrl-C has ended before it had its signal handlers.
INTERRUPTED = 130
#: After a process has run this long, its backoff starts from the beginning.
STEADY_S = 30.0
#: How much longer than `shutdown_timeout` a process may take to end before it is killed.
KILL_AFTER_S = 10.0
#: The path of a unix socket has at most 107 bytes, 103 on macOS; a folder with a longer path is not used for sockets.
MAX_FOLDER = 60

#: Starts a worker process, which answers probes on this socket, if it has a path.
Start = Callable[[str], StartedProcess]


def supervise(
    argv: Sequence[str],
    processes: int,
    *,
    shutdown_timeout: float,
    health: Address | None = None,
    health_host: str = "127.0.0.1",
    program: Sequence[str] = PROGRAM,
    kill_after: float = KILL_AFTER_S,
    random: Random | None = None,
) -> int:
    """Run `jobmill *argv` in several processes until they have ended, or until SIGTERM or SIGINT. Returns an exit code.

    With `health` it answers probes there for all processes; each of them gets a socket of its own as `--health`.

    0: all processes ended normally. 1: a process had to be killed, or crashed while it stopped. 2: the command line was
    refused. 3: the store could not be used at the start. Call it in the main thread, because signals arrive there.
    """
    die_with_us = death_signal()

    def start(socket: str) -> StartedProcess:
        return spawn([*program, *argv, *([f"--health={socket}"] if socket else [])], die_with_us)

    supervisor = _Supervisor(start, check_processes(processes), shutdown_timeout + kill_after, random or Random())
    with wakes() as woken:
        if health is None:
            return supervisor.run(woken)
        with _sockets(supervisor):
            return asyncio.run(supervisor.run_with_health(woken, health, health_host))


def supervise_forks(
    work: Callable[[str], int],
    processes: int,
    *,
    shutdown_timeout: float,
    health: Address | None = None,
    health_host: str = "127.0.0.1",
    kill_after: float = KILL_AFTER_S,
) -> int:
    """Like `supervise`, with forks of this process, in which `forking.why_unsafe` finds nothing.

    In the supervisor it returns its exit code. In each fork it returns the exit code of `work`, which gets the path of
    its socket for probes, or an empty text.
    """
    die_with_us = death_signal()

    def start(socket: str) -> StartedProcess:
        return fork(functools.partial(work, socket), die_with_us)

    supervisor = _Supervisor(start, check_processes(processes), shutdown_timeout + kill_after, Random())
    forking.prepare()
    try:
        with wakes() as woken:
            if health is None:
                return supervisor.run(woken)
            with _sockets(supervisor), HealthProcess(health, health_host) as port:
                return supervisor.run_with_port(woken, port)
    except InChild as forked:
        in_child = forked.work
    try:
        return in_child()
    finally:
        gc.unfreeze()  # a file that an object of the application has left open is written at the end


def check_processes(processes: object) -> int:
    """A number of worker processes that this system can run."""
    if sys.platform == "win32":
        raise InvalidValue("processes", "1 on this system: several need POSIX (signals, process groups)", processes)
    return check_int(processes, "processes", 1)


class _Child(Struct):
    """One of the worker processes. It has the process that runs now, or the time of its next start."""

    number: int
    label: str
    start: Start
    backoff: LoopBackoff
    #: Where it answers probes, if it does.
    socket: str = ""
    process: StartedProcess | None = None
    started: float = 0.0
    starts: int = 0
    #: When to start it; None while it runs, and after its last run.
    due: float | None = 0.0

    @property
    def age(self) -> float:
        return time.monotonic() - self.started

    @property
    def is_over(self) -> bool:
        """It has ended for good."""
        return self.process is None and self.due is None


class _Supervisor:
    def __init__(self, start: Start, count: int, patience: float, random: Random) -> None:
        self._patience = patience
        self._random = random
        self.children = [_Child(n, f"process {n} of {count}", start, LoopBackoff(random)) for n in range(1, count + 1)]
        #: The process of the health port, if it has one.
        self._port: _Child | None = None
        self._kill_at: float | None = None
        self._code = 0
        self._pid = os.getpid()

    async def run_with_health(self, woken: int, address: Address, host: str) -> int:
        """Run in an event loop, in which the health port answers."""
        board = Board(self._seen())
        health = Health(address, supervisor_views(board), host)
        await health.start()
        try:
            with self._ending():
                while not self._is_over:
                    pause = self._begin_turn(board.update)
                    self._end_turn(await _signals_in_loop(woken, pause))
        finally:
            await health.stop()
        return self._code

    def run(self, woken: int, port: HealthProcess | None = None) -> int:
        """Run without an event loop."""
        with self._ending():
            while not self._is_over:
                pause = self._begin_turn(None if port is None else port.update)
                self._end_turn(_signals(woken, pause))
        return self._code

    def run_with_port(self, woken: int, port: HealthProcess) -> int:
        """Run without an event loop. The health port is in a process of its own, which is restarted like the others."""
        process = port.start(self._seen())
        if not port.wait_ready():
            code = port.end(process)  # it has printed why
            return code if code > 0 else 1
        self._port = _Child(
            0, "health port", lambda _: port.start(self._seen()), LoopBackoff(self._random), process=process
        )
        self._port.due, self._port.started = None, time.monotonic()
        code = self.run(woken, port)
        if self._port.process is not None:
            port.end(self._port.process)
        return code

    @property
    def _everyone(self) -> list[_Child]:
        return self.children if self._port is None else [*self.children, self._port]

    @property
    def _is_over(self) -> bool:
        return all(child.is_over for child in self.children)

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        finally:
            if os.getpid() == self._pid:
                self._kill_all()  # none is left, unless the loop raised

    def _begin_turn(self, show: Callable[[Seen], None] | None) -> float | None:
        """Start what is due. Return the seconds until the next start or kill."""
        self._start_due()
        if show is not None:
            show(self._seen())
        return self._pause()

    def _end_turn(self, signals: bytes) -> None:
        for signum in signals:
            if signum in (signal.SIGTERM, signal.SIGINT):
                self._end_all(signal.Signals(signum))
        self._reap()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_all()
            self._kill_at = time.monotonic() + self._patience

    def _seen(self) -> Seen:
        return Seen(
            [
                SeenProcess(child.number, child.socket, child.starts, child.started, child.process is not None)
                for child in self.children
                if not child.is_over
            ],
            self._kill_at is not None,
        )

    def _pause(self) -> float | None:
        """Seconds until the next start or kill. A signal ends the wait earlier: a stop, or the end of a process."""
        moments = [one.due for one in self._everyone if one.due is not None]
        if self._kill_at is not None:
            moments.append(self._kill_at)
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    # -------------------------------------------------------------------------------------------- start

    def _start_due(self) -> None:
        for child in self._everyone:
            if child.due is None or child.due > time.monotonic():
                continue
            child.due = None
            child.started = time.monotonic()
            child.starts += 1
            try:
                child.process = child.start(child.socket)
            except OSError as error:
                self._start_later(child, f"could not be started: {error}")
            else:
                log.info("%s: started (pid %d)", child.label, child.process.pid)

    def _start_later(self, child: _Child, why: str) -> None:
        if child.age >= STEADY_S:
            child.backoff.reset()
        pause = child.backoff.next()
        child.due = time.monotonic() + pause
        log.error("%s: %s; restarting in %.1f s", child.label, why, pause)

    # -------------------------------------------------------------------------------------------- end

    def _reap(self) -> None:
        for child in self._everyone:
            if child.process is not None and (code := child.process.poll()) is not None:
                pid, child.process = child.process.pid, None
                self._on_end(child, pid, code)

    def _on_end(self, child: _Child, pid: int, code: int) -> None:
        how = f"{how_ended(code)} after {child.age:.1f} s (pid {pid})"
        if child is self._port:
            self._start_later(child, f"crashed: {how}")
        elif code == 0 or (code == RECYCLED and self._kill_at is not None):
            log.info("%s: ended (pid %d)", child.label, pid)
        elif code == RECYCLED:
            log.info("%s: replacing it after %.1f s (pid %d)", child.label, child.age, pid)
            child.due = time.monotonic()
        elif self._kill_at is None and child.age < STEADY_S and code in self._hopeless(child):
            log.error("%s: %s; a restart would not help", child.label, how)
            self._code = code
            self._end_all(signal.SIGTERM)
        elif self._kill_at is None:
            self._start_later(child, f"crashed: {how}")
        elif code in (-signal.SIGTERM, -signal.SIGINT, INTERRUPTED):
            # If a process has not installed its signal handlers yet, the signal ends it. That is not a crash.
            log.info("%s: %s", child.label, how)
        else:
            log.error("%s: crashed while it stopped: %s", child.label, how)
            self._code = self._code or 1

    def _hopeless(self, child: _Child) -> tuple[int, ...]:
        """A process that could use the store before is restarted until it can use it again."""
        return (USAGE_ERROR, UNAVAILABLE) if child.starts == 1 else (USAGE_ERROR,)

    def _end_all(self, signum: signal.Signals) -> None:
        """Pass a signal on to all processes. The first signal also sets the time at which they are killed."""
        if self._kill_at is None:
            log.info("%s: stopping all processes within %.0f s", signum.name, self._patience)
            self._kill_at = time.monotonic() + self._patience
        for child in self.children:
            child.due = None
            if child.process is not None:
                child.process.send_signal(signum)

    def _kill_all(self) -> None:
        for child in self.children:
            if child.process is not None:
                # With the processes that handlers started. The child is not reaped, so its id is valid.
                signal_group(child.process.pid, signal.SIGKILL)


def _signals(woken: int, timeout: float | None) -> bytes:
    """Wait for signals. Return their numbers; empty if the timeout has passed."""
    ready, _, _ = select.select([woken], [], [], timeout)
    return os.read(woken, 4096) if ready else b""


async def _signals_in_loop(woken: int, timeout: float | None) -> bytes:
    """The same in an event loop, which other tasks use meanwhile."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(woken, ready.set)
    try:
        async with asyncio.timeout(timeout):
            await ready.wait()
        return os.read(woken, 4096)
    except TimeoutError:
        return b""
    finally:
        loop.remove_reader(woken)


@contextlib.contextmanager
def _sockets(supervisor: _Supervisor) -> Iterator[None]:
    """Give each process the path of a socket, in a folder that this process removes. Its forks must not."""
    # Here, because only a health port needs them, and all processes together have 0.5 MB of them.
    import shutil
    import tempfile

    short = None if len(tempfile.gettempdir()) <= MAX_FOLDER else "/tmp"
    folder, owner = tempfile.mkdtemp(prefix="jobmill-", dir=short), os.getpid()
    for child in supervisor.children:
        child.socket = f"{folder}/{child.number}"
    try:
        yield
    finally:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)
