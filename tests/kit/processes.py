"""What all servers share: processes that start, stop, can be tormented, and end with the one that started them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from tests.kit.places import PrivateDirectory, User, held_port, unprivileged

LAUNCH = Path(__file__).with_name("launch.py")

#: A server that takes longer is broken, also on a busy machine.
PATIENCE_S = 120.0


class NoServer(Exception):
    """A server cannot be had or did not start; the message says what to do or what it said."""


class Member(NamedTuple):
    """A process of a family. The start time tells it from a later one with the same id."""

    pid: int
    parent: int
    state: str
    started: str


def run_as(user: User | None, command: Sequence[str | Path], directory: Path, environment: Mapping[str, str]) -> None:
    """Run a command to its end in a directory, or fail with what it said."""
    ran = subprocess.run(
        launched(user, signal.SIGKILL, command), cwd=directory, env=environment, capture_output=True, check=False
    )
    if ran.returncode:
        said = (ran.stdout + ran.stderr).decode(errors="replace").strip()
        raise NoServer(f"{command[0]} ended with {ran.returncode}: {said[-2_000:]}")


def launched(user: User | None, death_signal: signal.Signals, command: Sequence[str | Path]) -> list[str]:
    """The command, as this user, tied to the life of this process."""
    uid, gid = map(str, user) if user is not None else ("-", "-")
    parent, number = str(os.getpid()), str(int(death_signal))
    return [sys.executable, "-I", "-S", str(LAUNCH), parent, number, uid, gid, *map(str, command)]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Block until something is so."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise NoServer(f"not within {PATIENCE_S:g} s: {what}")
        time.sleep(0.002)


def look_up(pid: int) -> Member | None:
    """A process as it now is; None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold anything
    return Member(pid, int(fields[1]), fields[0], fields[19])


def family(pid: int) -> list[Member]:
    """A process and all that descend from it, parents first; without those that have ended."""
    if not Path("/proc/self/stat").exists():
        raise NoServer("finding a server's children needs /proc, as Linux has it")
    known = [member for name in os.listdir("/proc") if name.isdigit() and (member := look_up(int(name)))]
    found = [member for member in known if member.pid == pid]
    for one in found:
        found += [member for member in known if member.parent == one.pid]
    return [member for member in found if member.state not in "ZX"]


def is_gone(member: Member) -> bool:
    """Whether a process has ended. One that waits for its parent's attention has."""
    now = look_up(member.pid)
    return now is None or now.started != member.started or now.state in "ZX"


class Server(ABC):
    """A server of ours: one process with its children, a port, a directory. As a context manager it starts and closes.

    It ends when the thread that started it ends, so start it from the main thread.
    """

    #: How it is asked to stop without waiting for its clients, and how to stop at once when we are gone.
    stop_signal: signal.Signals
    death_signal: signal.Signals

    def __init__(self, *, durable: bool = False) -> None:
        self._directories = [PrivateDirectory(durable=durable)]
        self.directory = self._directories[0].path
        self.port, self._holder = held_port()
        self.user = unprivileged()
        self.log = self.directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._is_paused = False

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """What to run; called before each start."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it serves; asked while it starts."""

    def environment(self) -> dict[str, str]:
        """Ours, without what would tell a PostgreSQL program to work elsewhere."""
        return {name: value for name, value in os.environ.items() if not name.startswith("PG")}

    @property
    def pid(self) -> int:
        """Of the process that is the parent of all others."""
        if self._process is None:
            raise NoServer(f"{type(self).__name__} at port {self.port} is not running: start() it first")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def pids(self) -> list[int]:
        """Of all its processes, the parent first."""
        return [member.pid for member in family(self.pid)]

    def start(self) -> None:
        """Start and block until it serves, on the same port and with the same data as before."""
        if self._process is not None:
            raise NoServer(f"{type(self).__name__} at port {self.port} runs already")
        command = launched(self.user, self.death_signal, self.command())
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                process_group=0,  # ctrl-c is for us; and one that is paused when we die goes on, to end as well
                cwd=self.directory,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._process = process
        wait_until(lambda: self._is_up(process), f"{type(self).__name__} serves")

    def _is_up(self, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() is not None:
            self._forget()
            said = self.log.read_text(errors="replace")[-2_000:]
            raise NoServer(f"{type(self).__name__} ended with {process.returncode} while it started: {said}")
        return self.is_ready()

    def stop(self) -> None:
        """Have it end in order, its clients' connections too; nothing happens when it does not run."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self.resume()
            self._process.send_signal(self.stop_signal)
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._forget()

    def kill(self) -> None:
        """End it with -9, all of its processes, as when the machine dies; none is left when this returns."""
        pid = self.pid
        self._freeze(pid)  # so that it cannot make another while we look for them
        members = family(pid)
        for member in members:
            _signal(member.pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait(PATIENCE_S)
        self._forget()
        wait_until(lambda: all(map(is_gone, members)), "all processes of the killed server are gone")

    def restart(self) -> None:
        """Stop in order, if it runs, and start."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze all of its processes: connections stay open, and nobody answers."""
        self._is_paused = True
        self._freeze(self.pid)  # first, so that it makes no more while the others follow
        for pid in self.pids()[1:]:
            self._freeze(pid)

    def resume(self) -> None:
        """End a pause; nothing happens when there is none."""
        if self._is_paused:
            self._is_paused = False
            for pid in reversed(self.pids()):
                _signal(pid, signal.SIGCONT)

    def _freeze(self, pid: int) -> None:
        def is_frozen() -> bool:
            member = look_up(pid)
            return member is None or member.state in "TZX"

        _signal(pid, signal.SIGSTOP)
        wait_until(is_frozen, f"process {pid} of {type(self).__name__} is frozen")

    def close(self) -> None:
        """Stop, and remove what it kept."""
        self.stop()
        for directory in self._directories:
            directory.remove()
        self._directories.clear()
        self._holder.close()

    def room_for_programs(self) -> Path:
        """A directory for copies of programs that its user cannot reach. What is in memory may not be executable."""
        self._directories.append(PrivateDirectory(durable=True))
        return self._directories[-1].path

    def _forget(self) -> None:
        self._process = None
        self._is_paused = False

    def __enter__(self) -> Self:
        """Start."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


class Group:
    """Servers that start and close together."""

    servers: Sequence[Server]

    def start(self) -> None:
        """Start all and block until they serve as one."""
        for server in self.servers:
            server.start()

    def close(self) -> None:
        """Stop those that still run, and remove what they kept."""
        for server in self.servers:
            server.close()

    def __enter__(self) -> Self:
        """Start."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
