"""Forking: whether this process may fork, what it does before, and the first steps of a forked process.

A fork copies only the thread that forks; locks that other threads hold stay locked for ever. Connections and event
loops would be shared by all copies. So a process forks only while it has none of them.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import os
import stat
import sys
from collections.abc import Iterator
from typing import Any

#: Devices that processes may share.
_HARMLESS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts/")


def why_unsafe(threaded: str | None = None) -> str | None:
    """Why this process must not be forked; None if it may be. `threaded` is the module that has started threads."""
    if sys.platform != "linux":
        # Libraries of macOS start threads that Python does not know.
        return "only on Linux can a process be forked safely"
    if thread_count() > 1:
        return f"the import of {threaded} starts threads" if threaded else "this process has several threads"
    shared = next(_unshareable(), None)
    return None if shared is None else f"after the import of the application, this process has {shared} open"


def thread_count() -> int:
    """All threads of this process, also those that libraries in C have started."""
    return len(os.listdir("/proc/self/task"))


@contextlib.contextmanager
def watched_imports() -> Iterator[list[str]]:
    """Names of modules after whose import this process had more than one thread, the innermost one first."""
    found: list[str] = []
    do_import = builtins.__import__

    def watched(name: str, *args: Any, **kwargs: Any) -> Any:
        is_new = name not in sys.modules
        module = do_import(name, *args, **kwargs)
        if is_new and not found and thread_count() > 1:
            found.append(name)
        return module

    builtins.__import__ = watched
    try:
        yield found
    finally:
        builtins.__import__ = do_import


def _unshareable() -> Iterator[str]:
    """The open files that copies of this process must not use: connections, event loops, databases, devices."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd <= 2:
            continue
        try:
            mode = os.fstat(fd).st_mode
            target = os.readlink(f"/proc/self/fd/{fd}")
            is_read_write = _is_read_write(fd)
        except OSError:  # the descriptor of the folder itself, which is closed
            continue
        if stat.S_ISSOCK(mode):
            yield "a connection (a socket)"
        elif target.startswith("anon_inode:"):
            yield "an event loop" if "eventpoll" in target else target.removeprefix("anon_inode:")
        elif (stat.S_ISREG(mode) and is_read_write) or (
            (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) and not target.startswith(_HARMLESS)
        ):
            yield target


def _is_read_write(fd: int) -> bool:
    """Whether the file is open for reading and writing, as databases are and logs are not."""
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR


def prepare() -> None:
    """Before the first fork: what all copies share stays shared, and is not printed twice."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Objects that the garbage collector never visits stay shared with the children: a collection in a child takes
    # 1.9 ms instead of 14.8 ms.
    gc.collect()
    gc.freeze()
    if sys.version_info < (3, 12):  # later versions do not count the references to these names
        # The cache of attributes refers to their names. Where a child replaces an entry, it writes to the old name too,
        # and so copies one more page: measured for four workers, 0.7 of 60 MB.
        sys._clear_type_cache()


def new_random_numbers() -> None:
    """Python's generator has a new seed after a fork. The global generator of NumPy would repeat the same numbers."""
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
