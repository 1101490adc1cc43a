"""Waking workers: a bell for those who sleep in this process, and a watcher that hears other processes.

Nothing is polled while nothing happens. On Linux the kernel tells when the write-ahead log is written to (inotify);
`PRAGMA data_version` then says when that became a commit. Elsewhere it is asked every 5 ms while somebody sleeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import select
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

POLL_SECONDS = 0.005

# The log is written before the disk has it and others may see it: after the kernel's word the commit may still be on
# its way, for as long as the disk takes. Asking costs 25 us; these pauses cover a quarter of a second.
_PAUSES = (*[0.001] * 4, *[0.002] * 3, *[0.004] * 25, *[0.016] * 10)

_IN_MODIFY = 0x2


class Bell:
    """Wakes all who sleep. `rings` counts, so that nobody misses a ring between a last look and lying down."""

    def __init__(self) -> None:
        self.rings = 0
        self._lock = threading.Lock()
        self._sleepers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    @property
    def sleepers(self) -> int:
        """How many sleep."""
        return len(self._sleepers)

    def ring(self) -> None:
        """From any thread."""
        with self._lock:
            self.rings += 1
            sleepers, self._sleepers = self._sleepers, []
        for loop, future in sleepers:
            with contextlib.suppress(RuntimeError):  # its loop has ended
                loop.call_soon_threadsafe(_wake, future)

    async def sleep(self, seen: int | None, seconds: float, lying_down: Callable[[], None]) -> None:
        """Until the next ring; not at all if there were rings after the first `seen`."""
        loop = asyncio.get_running_loop()
        sleeper = (loop, loop.create_future())
        with self._lock:
            if seen is not None and self.rings != seen:
                return
            self._sleepers.append(sleeper)
        try:
            lying_down()
            await asyncio.wait((sleeper[1],), timeout=seconds)
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._sleepers.remove(sleeper)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Watcher:
    """A thread that calls `changed` when a commit of any connection to the file may have happened; while some sleep."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, bell: Bell, changed: Callable[[], None], *, poll: bool = False
    ) -> None:
        self._connection = connection
        self._bell = bell
        self._changed = changed
        self._version = self._data_version()
        self._closed = False
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        self._log = None if poll else _watch(f"{path}-wal")
        self._thread = threading.Thread(target=self._serve, name="jobmill-sqlite-watcher", daemon=True)
        self._thread.start()

    def poke(self) -> None:
        """Somebody lies down."""
        with contextlib.suppress(BlockingIOError):  # it is full of pokes that are still to be read
            os.write(self._write_end, b".")

    def close(self) -> None:
        """End the thread and give the descriptors and the connection back."""
        self._closed = True
        self.poke()
        self._thread.join()
        for descriptor in (self._read_end, self._write_end, self._log):
            if descriptor is not None:
                os.close(descriptor)
        self._connection.close()

    def _serve(self) -> None:
        pauses: Iterator[float] = iter(())
        while not self._closed:
            # Nobody sleeps: the next poke. Somebody does: also the log, or the next pause after it was written to.
            told = self._wait(next(pauses, None) if self._bell.sleepers else None)
            if told:
                pauses = iter(_PAUSES)
            if self._bell.sleepers and not self._closed:
                with contextlib.suppress(sqlite3.Error):  # the writer will meet the same, and say so
                    if self._look():
                        pauses = iter(())

    def _wait(self, seconds: float | None) -> bool:
        """Wait for a poke, and while somebody sleeps for the log too; whether the log was written to."""
        poller = select.poll()
        poller.register(self._read_end, select.POLLIN)
        if self._bell.sleepers:
            if self._log is None:
                seconds = POLL_SECONDS
            else:
                poller.register(self._log, select.POLLIN)
        ready = [descriptor for descriptor, _ in poller.poll(None if seconds is None else seconds * 1000)]
        for descriptor in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(descriptor, 65_536)
        return self._log in ready

    def _look(self) -> bool:
        """Whether there was a commit; `changed` is then called."""
        version = self._data_version()
        if version == self._version:
            return False
        self._version = version
        self._changed()
        return True

    def _data_version(self) -> int:
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return version


def _watch(file: str) -> int | None:
    """A descriptor that becomes readable when the file is written to; None where the system cannot do that."""
    if not sys.platform.startswith("linux"):
        return None
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
