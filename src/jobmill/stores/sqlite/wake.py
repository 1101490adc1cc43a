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
from typing import Protocol

POLL_SECONDS = 0.005

# The log is written before the disk has it and others may see it: after the kernel's word the commit may still be on
# its way, for as long as the disk takes. These pauses cover a quarter of a second, at first finely.
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

    def __init__(self, path: Path, connection: sqlite3.Connection, bell: Bell, changed: Callable[[], None]) -> None:
        self._connection = connection
        self._bell = bell
        self._changed = changed
        self._version = self._data_version()
        self._closed = False
        self._ear = listen(f"{path}-wal")
        self._thread = threading.Thread(target=self._serve, name="jobmill-sqlite-watcher", daemon=True)
        self._thread.start()

    def poke(self) -> None:
        """Somebody lies down."""
        self._ear.poke()

    def close(self) -> None:
        """End the thread and give everything back."""
        self._closed = True
        self._ear.poke()
        self._thread.join()
        self._ear.close()
        self._connection.close()

    def _serve(self) -> None:
        pauses: Iterator[float] = iter(())
        while not self._closed:
            if not self._bell.sleepers:
                self._ear.wait_for_poke()
            elif self._ear.listen(next(pauses, None)):
                pauses = iter(_PAUSES)
            if self._bell.sleepers and not self._closed:
                with contextlib.suppress(sqlite3.Error):  # the writer will meet the same, and say so
                    self._look()

    def _look(self) -> None:
        """A commit that is seen does not end the pauses: another, written at the same time, may still be on its way."""
        version = self._data_version()
        if version != self._version:
            self._version = version
            self._changed()

    def _data_version(self) -> int:
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return version


class Ear(Protocol):
    """What a watcher waits with."""

    def wait_for_poke(self) -> None:
        """Wait until somebody pokes."""

    def listen(self, seconds: float | None) -> bool:
        """Wait for a write to the log, a poke or the end of the time; whether it was a write."""

    def poke(self) -> None:
        """End the waiting, now or when it begins."""

    def close(self) -> None:
        """Give everything back."""


class KernelEar:
    """Hears from the kernel when the log is written to: Linux."""

    def __init__(self, inotify: int) -> None:
        self._inotify = inotify
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._pokes, self._both = select.poll(), select.poll()
        self._pokes.register(self._read_end, select.POLLIN)
        self._both.register(self._read_end, select.POLLIN)
        self._both.register(inotify, select.POLLIN)

    def wait_for_poke(self) -> None:
        """Writes in the meantime are heard afterwards."""
        self._pokes.poll()
        _drain(self._read_end)

    def listen(self, seconds: float | None) -> bool:
        """Until a write, a poke or the end of the time."""
        ready = [descriptor for descriptor, _ in self._both.poll(None if seconds is None else seconds * 1000)]
        for descriptor in ready:
            _drain(descriptor)
        return self._inotify in ready

    def poke(self) -> None:
        """Through a pipe, the one thing that can be waited for together with inotify."""
        with contextlib.suppress(BlockingIOError):  # it is full of pokes that are still to be read
            os.write(self._write_end, b".")

    def close(self) -> None:
        """Give the descriptors back."""
        for descriptor in (self._read_end, self._write_end, self._inotify):
            os.close(descriptor)


class PollingEar:
    """Hears nothing and asks every 5 ms: wherever the kernel cannot be asked to tell."""

    def __init__(self) -> None:
        self._poked = threading.Event()

    def wait_for_poke(self) -> None:
        """As long as it takes."""
        self._poked.wait()
        self._poked.clear()

    def listen(self, seconds: float | None) -> bool:
        """A pause before the next look."""
        if self._poked.wait(POLL_SECONDS):
            self._poked.clear()
        return False

    def poke(self) -> None:
        """End the pause."""
        self._poked.set()

    def close(self) -> None:
        """Nothing to give back."""


def listen(file: str) -> Ear:
    """The best ear that this system has for writes to a file."""
    if not sys.platform.startswith("linux"):
        return PollingEar()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return PollingEar()
    if descriptor < 0:
        return PollingEar()
    if libc.inotify_add_watch(descriptor, os.fsencode(file), _IN_MODIFY) < 0:
        os.close(descriptor)
        return PollingEar()
    return KernelEar(descriptor)


def _drain(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(descriptor, 65_536)
