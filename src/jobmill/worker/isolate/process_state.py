"""What a process of a pool restores after each attempt, and the child processes that an attempt has left."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36


class ProcessState:
    """The working directory, the environment, the umask and the signal handlers of this process, as they are now."""

    def __init__(self) -> None:
        self._directory = os.getcwd()
        self._environment = dict(os.environ)
        self._umask = os.umask(0)
        os.umask(self._umask)
        self._handlers: dict[signal.Signals, Any] = {}
        for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if isinstance(signum, signal.Signals):
                self._handlers[signum] = signal.getsignal(signum)

    def restore(self) -> None:
        """Undo the changes of an attempt."""
        # If the directory was removed, there is no way back to it.
        with contextlib.suppress(OSError):
            os.chdir(self._directory)
        if os.environ != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        os.umask(self._umask)
        for signum, handler in self._handlers.items():
            if signal.getsignal(signum) != handler and handler is not None:
                signal.signal(signum, handler)


def adopt_orphans() -> None:
    """Become the parent of processes whose parent ends, so that `has_children` finds them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def has_children() -> bool:
    """Whether this process has child processes, also ones that have ended and were not waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
