"""Where a server lives: a port, a user that is not root, a directory that nobody else may enter."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import random
import shutil
import socket
import stat
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

#: Below the range that client sockets take theirs from, so that none takes a port between our probe and the server.
PORTS = range(12_000, 22_000)

#: Room that a server may fill in memory. Containers have a /dev/shm of 64 MB by default, which is too little.
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 2 << 30

#: The path of a unix socket has at most 107 bytes, 103 on macOS.
LONGEST_PARENT = 60

PREFIX = "jobmill-"
OWNER = "owner"


class User(NamedTuple):
    """Whom a server runs as."""

    uid: int
    gid: int


def free_port() -> int:
    """A port on loopback that nothing listens on."""
    port, holder = held_port()
    holder.close()
    return port


def held_port() -> tuple[int, socket.socket]:
    """A port on loopback, and a socket: while it is open, only a server of ours takes the port.

    Other runs of tests look for theirs at the same time, and a server may be started late, or again.
    """
    while True:
        port, holder = random.choice(PORTS), socket.socket()
        try:
            holder.bind(("127.0.0.1", port))
        except OSError:
            holder.close()
            continue
        # After the bind, which therefore fails where another holds the port. Servers all ask for it before theirs, and
        # Linux lets them have a port that has no listener; elsewhere nothing is held.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform != "linux":
            holder.close()
        return port, holder


def at_port(url: str, port: int) -> str:
    """The same URL, but for a server at this port of loopback."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}{at}127.0.0.1:{port}").geturl()


def port_of(url: str) -> int:
    """The port that a URL names."""
    port = urlsplit(url).port
    if port is None:
        raise ValueError(f"url: expected one that names a port, got {url}")
    return port


def unprivileged() -> User | None:
    """Who runs servers that refuse to run as root, when we are root; None when we are not."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return User(entry.pw_uid, entry.pw_gid)
    return User(65_534, 65_534)


def is_reachable(path: Path, user: User | None) -> bool:
    """Whether a user may go to this path; only root may to what lies under root's home."""
    real = path.resolve()
    return user is None or all(_may_enter(step.stat(), user) for step in (real, *real.parents))


def _may_enter(status: os.stat_result, user: User) -> bool:
    if status.st_uid == user.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == user.gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


class PrivateDirectory:
    """A directory with a short path for one server's user: on a disk, or in memory where there is room.

    Those of processes that were killed before they could remove theirs are removed when the next one is made.
    """

    def __init__(self, *, durable: bool = False) -> None:
        parent = _parent(durable)
        _sweep(parent)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock = _lock(self.path)
        user = unprivileged()
        if user is not None:
            os.chown(self.path, user.uid, user.gid)

    def remove(self) -> None:
        """With all that is in it."""
        shutil.rmtree(self.path)
        os.close(self._lock)


def has_room_in_memory() -> bool:
    """Whether tests may write to memory instead of a disk."""
    return MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_BYTES


def _parent(durable: bool) -> Path:
    usual = Path(tempfile.gettempdir())
    if durable:
        parent = usual if "TMPDIR" in os.environ else Path("/var/tmp")  # /tmp may be in memory
    else:
        parent = MEMORY if has_room_in_memory() else usual
    is_fit = len(str(parent)) <= LONGEST_PARENT and is_reachable(parent, unprivileged())
    return parent if is_fit else Path("/tmp")


def _lock(directory: Path) -> int:
    """Hold a file's lock for as long as this process lives. The file appears when it is held already."""
    new = directory / "new"
    lock = os.open(new, os.O_CREAT | os.O_WRONLY, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    new.rename(directory / OWNER)
    return lock


def _sweep(parent: Path) -> None:
    """Remove directories that have no owner any more. A process id would not tell: containers may share the place."""
    for owner in parent.glob(f"{PREFIX}*/{OWNER}"):
        with contextlib.suppress(OSError):  # another user's, or gone
            file = os.open(owner, os.O_WRONLY)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(owner.parent, ignore_errors=True)
            finally:
                os.close(file)
