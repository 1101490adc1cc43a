"""How a supervisor starts worker processes: each as a new interpreter, or each as a fork of the supervisor."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from jobmill.worker import forking

_PR_SET_PDEATHSIG = 1


class StartedProcess(Protocol):
    """A process that this one has started."""

    pid: int

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended."""


class InChild(BaseException):
    """This process is a fork. Every context manager of the parent ends, and then `work` runs."""

    def __init__(self, work: Callable[[], int]) -> None:
        self.work = work


def spawn(command: Sequence[str], die_with_us: Callable[[], None] | None) -> StartedProcess:
    """Start a new interpreter."""
    # In a new session, so that Ctrl-C reaches only the supervisor, which passes the signal on once.
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with_us,  # noqa: PLW1509 - no other thread runs Python here
    )


def fork(work: Callable[[], int], die_with_us: Callable[[], None] | None) -> StartedProcess:
    """Fork this process. The fork raises InChild, with the signal handlers that the supervisor has found."""
    # Blocked until the child has its own handlers: a signal that comes before must not be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, _signals())
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid != 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _signals())
    if pid != 0:
        return _Fork(pid)
    os.setsid()
    if die_with_us is not None:
        die_with_us()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    forking.new_random_numbers()
    raise InChild(work)


class _Fork:
    """A fork of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def send_signal(self, sig: int) -> None:
        # It is not reaped, so its id is valid.
        if self._code is None:
            os.kill(self.pid, sig)


@contextlib.contextmanager
def wakes() -> Iterator[int]:
    """A pipe with the numbers of received signals, so that no code runs inside a signal handler. Yields its read end.

    At the end, the handlers from before are installed, and signals are no longer blocked.
    """
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    before = {signum: signal.signal(signum, _caught) for signum in _signals()}
    wakeup_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(wakeup_before)
        for signum, handler in before.items():
            # None: the handler was not installed by Python.
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        os.close(reader)
        os.close(writer)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _signals() -> tuple[signal.Signals, ...]:
    """The signals that a supervisor handles; a function, because Windows has no SIGCHLD."""
    return signal.SIGTERM, signal.SIGINT, signal.SIGCHLD


def _caught(signum: int, frame: object) -> None:
    """Python writes a signal to the wake-up pipe only if it has a handler; the handler has nothing to do."""


def death_signal() -> Callable[[], None] | None:
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
