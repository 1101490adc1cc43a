"""Waking workers: a watcher that notices commits of other processes.

On Linux nothing is polled: the kernel reports writes to the write-ahead log (inotify), and `PRAGMA data_version` then
shows when a write has become a commit. On other systems it is queried every 5 ms while a worker sleeps.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
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
        self._watch = FileWatch(f"{path}-wal")
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


class FileWatch:
    """Waits for writes to a file, which the kernel reports on Linux; elsewhere each wait for a write takes 5 ms."""

    def __init__(self, file: str) -> None:
        self._inotify = inotify(file)
        self._woken, self._waker = socket.socketpair()
        self._wake_ups, self._both = selectors.DefaultSelector(), selectors.DefaultSelector()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        for selector in (self._wake_ups, self._both):
            selector.register(self._woken, selectors.EVENT_READ)
        if self._inotify is not None:
            self._both.register(self._inotify, selectors.EVENT_READ)

    def wait_for_wake_up(self) -> None:
        """Wait until `wake_up` is called. Writes in the meantime are reported afterwards."""
        self._wake_ups.select()
        self._woken.recv(65_536)

    def wait_for_write(self, seconds: float | None) -> bool:
        """Wait for a write, a wake-up or the end of the time; whether the kernel reported a write."""
        found = self._both.select(POLL_SECONDS if self._inotify is None else seconds)
        ready = {key.fileobj for key, _ in found}
        if self._woken in ready:
            self._woken.recv(65_536)
        if self._inotify is None or self._inotify not in ready:
            return False
        os.read(self._inotify, 65_536)
        return True

    def wake_up(self) -> None:
        """End the present wait, or the next one."""
        with contextlib.suppress(BlockingIOError):  # full of wake-ups that nobody has read so far
            self._waker.send(b".")

    def close(self) -> None:
        """Close everything."""
        for one in (self._wake_ups, self._both, self._woken, self._waker):
            one.close()
        if self._inotify is not None:
            os.close(self._inotify)


def inotify(file: str) -> int | None:
    """A descriptor that is readable after each write to a file; None where the kernel does not report writes."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes  # 1 ms, which only a process that waits for jobs needs

    try:
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return None
    if descriptor < 0:
        return None
    if libc.inotify_add_watch(descriptor, os.fsencode(file), _IN_MODIFY) < 0:
        os.close(descriptor)
        return None
    return descriptor
