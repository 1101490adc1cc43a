"""Waking workers: a watcher that notices commits of other processes.

On Linux nothing is polled: the kernel reports writes to the write-ahead log (inotify), and `PRAGMA data_version` then
shows when a write has become a commit. On other systems it is queried every 5 ms while a worker sleeps.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from jobmill.stores.common.bell import Bell

POLL_SECONDS = 0.005

# The kernel reports the write to the log, but others see the commit only when the disk has it. These pauses between
# queries cover a quarter of a second; the first are the shortest.
_PAUSES = (*[0.001] * 4, *[0.002] * 3, *[0.004] * 25, *[0.016] * 10)

_IN_MODIFY = 0x2


class CommitWatcher:
    """A thread that calls `changed` after a commit of any connection to the file, while a worker sleeps."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        bell: Bell,
        changed: Callable[[], None],
        in_use: threading.Lock,
    ) -> None:
        self._connection = connection
        self._in_use = in_use
        self._bell = bell
        self._changed = changed
        self._version = self._data_version()
        self._closed = False
        self._watch = watch(f"{path}-wal")
        self._thread = threading.Thread(target=self._serve, name="jobmill-sqlite-watcher", daemon=True)
        self._thread.start()

    def wake_up(self) -> None:
        """Check again whether a worker sleeps."""
        self._watch.wake_up()

    def close(self) -> None:
        """End the thread and close everything."""
        self._closed = True
        self._watch.wake_up()
        self._thread.join()
        self._watch.close()
        self._connection.close()

    def _serve(self) -> None:
        pauses: Iterator[float] = iter(())
        while not self._closed:
            if not self._bell.sleepers:
                self._watch.wait_for_wake_up()
            elif self._watch.wait_for_write(next(pauses, None)):
                pauses = iter(_PAUSES)
            if self._bell.sleepers and not self._closed:
                # The writer meets the same error, and raises it.
                with contextlib.suppress(sqlite3.Error), self._in_use:
                    self._notice_commits()

    def _notice_commits(self) -> None:
        """Another commit, written at the same time, may follow: noticing one does not end the pauses."""
        version = self._data_version()
        if version != self._version:
            self._version = version
            self._changed()

    def _data_version(self) -> int:
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return version


class InotifyWatch:
    """How the watcher waits for writes to a file where the kernel reports them: Linux."""

    def __init__(self, inotify: int) -> None:
        self._inotify = inotify
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake_ups, self._both = select.poll(), select.poll()
        self._wake_ups.register(self._read_end, select.POLLIN)
        self._both.register(self._read_end, select.POLLIN)
        self._both.register(inotify, select.POLLIN)

    def wait_for_wake_up(self) -> None:
        """Wait until `wake_up` is called. Writes in the meantime are reported afterwards."""
        self._wake_ups.poll()
        _drain(self._read_end)

    def wait_for_write(self, seconds: float | None) -> bool:
        """Wait for a write, a wake-up or the end of the time; whether it was a write."""
        ready = [descriptor for descriptor, _ in self._both.poll(None if seconds is None else seconds * 1000)]
        for descriptor in ready:
            _drain(descriptor)
        return self._inotify in ready

    def wake_up(self) -> None:
        """End the present wait, or the next one, through a pipe, which can be polled together with inotify."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full of wake-ups that nobody has read so far
            os.write(self._write_end, b".")

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in (self._read_end, self._write_end, self._inotify):
            os.close(descriptor)


class PollingWatch:
    """The same where the kernel does not report writes: each wait for a write ends after 5 ms."""

    def __init__(self) -> None:
        self._woken = threading.Event()

    def wait_for_wake_up(self) -> None:
        """Wait until `wake_up` is called."""
        self._woken.wait()
        self._woken.clear()

    def wait_for_write(self, seconds: float | None) -> bool:
        """Wait for a moment; another process may have written meanwhile."""
        if self._woken.wait(POLL_SECONDS):
            self._woken.clear()
        return False

    def wake_up(self) -> None:
        """End a wait."""
        self._woken.set()

    def close(self) -> None:
        """There are no descriptors."""


def watch(file: str) -> InotifyWatch | PollingWatch:
    """The best watch for writes to a file that this system has."""
    if not sys.platform.startswith("linux"):
        return PollingWatch()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return PollingWatch()
    if descriptor < 0:
        return PollingWatch()
    if libc.inotify_add_watch(descriptor, os.fsencode(file), _IN_MODIFY) < 0:
        os.close(descriptor)
        return PollingWatch()
    return InotifyWatch(descriptor)


def _drain(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(descriptor, 65_536)
