"""`--processes N`: runs workers in several processes, restarts those that crash, and stops all of them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random

from msgspec import Struct

from jobmill.core.limits import check_int
from jobmill.errors import InvalidValue
from jobmill.runtime.backoff import LoopBackoff
from jobmill.worker.health import Address, Health
from jobmill.worker.isolate.death import how_ended, signal_group
from jobmill.worker.recycle import RECYCLED
from jobmill.worker.supervisor_health import supervisor_views

log = logging.getLogger("jobmill")

PROGRAM = (sys.executable, "-m", "jobmill")
#: Exit codes of the command line: the arguments were refused; the store cannot be used, and the worker does not wait.
USAGE_ERROR, UNAVAILABLE = 2, 3
#: After a process has run this long, its backoff starts from the beginning.
STEADY_S = 30.0
#: How much longer than `shutdown_timeout` a process may take to end before it is killed.
KILL_AFTER_S = 10.0
#: The path of a unix socket has at most 107 bytes, 103 on macOS; a folder with a longer path is not used for sockets.
MAX_FOLDER = 60

_PR_SET_PDEATHSIG = 1


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
    count = check_processes(processes)
    supervisor = _Supervisor([*program, *argv], count, shutdown_timeout + kill_after, random or Random())
    with _wakes() as wakes:
        if health is None:
            return asyncio.run(supervisor.run(wakes))
        with tempfile.TemporaryDirectory(prefix="jobmill-", dir=_short_folder()) as folder:
            return asyncio.run(supervisor.run_with_health(wakes, health, health_host, folder))


def check_processes(processes: object) -> int:
    """A number of worker processes that this system can run."""
    if sys.platform == "win32":
        raise InvalidValue("processes", "1 on this system: several need POSIX (signals, process groups)", processes)
    return check_int(processes, "processes", 1)


class _Child(Struct):
    """One of the worker processes. It has the process that runs now, or the time of its next start."""

    number: int
    label: str
    backoff: LoopBackoff
    #: Where it answers probes, if it does.
    socket: str = ""
    answered: bool = False
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    starts: int = 0
    #: When to start it; None while it runs, and after its last run.
    due: float | None = 0.0

    @property
    def age(self) -> float:
        return time.monotonic() - self.started

    @property
    def is_running(self) -> bool:
        return self.process is not None

    @property
    def is_over(self) -> bool:
        """It has ended for good."""
        return self.process is None and self.due is None


class _Supervisor:
    def __init__(self, command: list[str], count: int, patience: float, random: Random) -> None:
        self._command = command
        self._patience = patience
        self._children = [_Child(n, f"process {n} of {count}", LoopBackoff(random)) for n in range(1, count + 1)]
        self._die_with_us = _death_signal()
        self._kill_at: float | None = None
        self._code = 0

    async def run_with_health(self, wakes: int, address: Address, host: str, folder: str) -> int:
        for child in self._children:
            child.socket = f"{folder}/{child.number}"
        views = supervisor_views(
            lambda: [child for child in self._children if not child.is_over], lambda: self._kill_at is not None
        )
        health = Health(address, views, host)
        await health.start()
        try:
            return await self.run(wakes)
        finally:
            await health.stop()

    async def run(self, wakes: int) -> int:
        try:
            while not all(child.is_over for child in self._children):
                self._start_due()
                for signum in await _woken(wakes, self._pause()):
                    if signum in (signal.SIGTERM, signal.SIGINT):
                        self._end_all(signal.Signals(signum))
                self._reap()
                if self._kill_at is not None and time.monotonic() >= self._kill_at:
                    self._kill_all()
                    self._kill_at = time.monotonic() + self._patience
        finally:
            self._kill_all()  # none is left, unless this loop raised
        return self._code

    def _pause(self) -> float | None:
        """Seconds until the next start or kill. A signal ends the wait earlier: a stop, or the end of a process."""
        moments = [child.due for child in self._children if child.due is not None]
        if self._kill_at is not None:
            moments.append(self._kill_at)
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    # -------------------------------------------------------------------------------------------- start

    def _start_due(self) -> None:
        for child in self._children:
            if child.due is None or child.due > time.monotonic():
                continue
            child.due = None
            child.started = time.monotonic()
            child.starts += 1
            child.answered = False
            try:
                # In a new session, so that Ctrl-C reaches only the supervisor, which passes the signal on once.
                child.process = subprocess.Popen(
                    [*self._command, *([f"--health={child.socket}"] if child.socket else [])],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    preexec_fn=self._die_with_us,  # noqa: PLW1509 - no other thread runs Python here
                )
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
        for child in self._children:
            if child.process is not None and (code := child.process.poll()) is not None:
                pid, child.process = child.process.pid, None
                self._on_end(child, pid, code)

    def _on_end(self, child: _Child, pid: int, code: int) -> None:
        how = f"{how_ended(code)} after {child.age:.1f} s (pid {pid})"
        if code == 0 or (code == RECYCLED and self._kill_at is not None):
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
        elif code in (-signal.SIGTERM, -signal.SIGINT):
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
        for child in self._children:
            child.due = None
            if child.process is not None:
                child.process.send_signal(signum)

    def _kill_all(self) -> None:
        for child in self._children:
            if child.process is not None:
                # With the processes that handlers started. The child is not reaped, so its id is valid.
                signal_group(child.process.pid, signal.SIGKILL)


def _death_signal() -> Callable[[], None] | None:
    """Called in the child before it becomes a worker, so that it stops gracefully if the supervisor dies (Linux)."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    supervisor = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != supervisor:  # the supervisor died before this call
            os._exit(0)

    return ask


@contextlib.contextmanager
def _wakes() -> Iterator[int]:
    """A pipe with the numbers of received signals, so that no code runs inside a signal handler."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    before = {signum: signal.signal(signum, _caught) for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)}
    wakeup_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(wakeup_before)
        for signum, handler in before.items():
            signal.signal(signum, handler)
        os.close(reader)
        os.close(writer)


def _caught(signum: int, frame: object) -> None:
    """Python writes a signal to the wake-up pipe only if it has a handler; the handler has nothing to do."""


async def _woken(wakes: int, timeout: float | None) -> bytes:
    """Wait for signals. Return their numbers; empty if the timeout has passed."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(wakes, ready.set)
    try:
        async with asyncio.timeout(timeout):
            await ready.wait()
        return os.read(wakes, 4096)
    except TimeoutError:
        return b""
    finally:
        loop.remove_reader(wakes)


def _short_folder() -> str | None:
    return None if len(tempfile.gettempdir()) <= MAX_FOLDER else "/tmp"
