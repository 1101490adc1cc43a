"""Forks: no connection is in use while this process forks, and the child closes the connections of its parent.

SQLite notes for each process and file which locks it holds. A child inherits these notes, but not the locks. While it
has a connection of its parent, each new connection to the same file would rely on locks that the child does not hold.
Closing the inherited connections in the child removes the notes, and does not touch the locks of the parent.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from weakref import WeakSet


class ForkGuard:
    """Knows the connections of one open file, each with a lock that is held while a thread uses the connection."""

    def __init__(self) -> None:
        self._connections: list[tuple[sqlite3.Connection, threading.Lock]] = []
        # The locks that are held at this moment, because the process forks. Another thread may add one meanwhile.
        self._held: list[threading.Lock] = []
        #: Whether this process is a forked child: the threads are gone, and the connections are closed.
        self.forked = False
        _guards.add(self)

    def add(self, connection: sqlite3.Connection) -> threading.Lock:
        """The lock that a thread must hold while it uses this connection."""
        lock = threading.Lock()
        self._connections.append((connection, lock))
        return lock

    def before(self) -> None:
        """Wait until no thread uses a connection."""
        for _, lock in list(self._connections):
            lock.acquire()
            self._held.append(lock)

    def in_parent(self) -> None:
        """The threads continue."""
        while self._held:
            self._held.pop().release()

    def in_child(self) -> None:
        """The threads are gone."""
        self.forked = True
        for connection, _ in self._connections:
            connection.close()


_guards: WeakSet[ForkGuard] = WeakSet()
#: The guards whose locks are held at this moment.
_held: list[ForkGuard] = []


def _before() -> None:
    _held[:] = _guards
    for guard in _held:
        guard.before()


def _in_parent() -> None:
    for guard in _held:
        guard.in_parent()
    _held.clear()


def _in_child() -> None:
    for guard in _held:
        guard.in_child()
    _held.clear()
    _guards.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
