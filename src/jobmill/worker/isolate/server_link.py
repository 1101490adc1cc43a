"""The worker's end of the connection to its fork server: starts the server, sends commands, and notices its death."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import marshal
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from jobmill.worker.isolate.death import End, how_ended
from jobmill.worker.isolate.find import Where
from jobmill.worker.isolate.protocol import CONTROL_BYTES, ENDED, READY, SIGNAL, Control
from jobmill.worker.isolate.spawn import interpreter, plain

log = logging.getLogger("jobmill")

#: After this time without an answer to a SIGKILL, the fork server itself is killed.
STUCK_S = 30.0

# The file holds sys.path, because without it the server may not find this package. marshal is built into Python.
_BOOT = (
    "import marshal, sys; control, life = map(int, sys.argv[1:3]); boot = open(int(sys.argv[3]), 'rb'); "
    "sys.path[:], sys.argv[:], wheres = marshal.load(boot); boot.close(); "
    "import msgspec; from jobmill.worker.isolate import find, server; "
    "server.serve(control, life, msgspec.json.decode(wheres, type=list[find.Where]))"
)


class ServerDied(Exception):
    """The fork server ended; the message says how."""


class Forked(Protocol):
    """A process of the server."""

    def on_refused(self, error: OSError) -> None:
        """It could not be forked."""

    def on_ended(self, end: End) -> None:
        """It has ended, and the server has reaped it and killed its children."""

    def on_server_died(self, how: str) -> None:
        """The server has ended. The kernel kills the process and its children."""


class _Started(Struct):
    process: subprocess.Popen[bytes]
    control: socket.socket
    #: The write end of a pipe that only this process has: when it is closed, the server's processes are killed.
    life_fd: int


class ServerLink:
    """A fork server. It is closed when the server has died."""

    def __init__(self, started: _Started) -> None:
        self._loop = asyncio.get_running_loop()
        self._started = started
        #: The name of the module that has started threads, or an empty string; ServerDied if the server died first.
        self.ready: asyncio.Future[str] = self._loop.create_future()
        self.is_open = True
        self._processes: dict[int, Forked] = {}
        self._last_key = 0
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        self._ended: asyncio.Task[None] | None = None
        self._loop.add_reader(started.control, self._on_readable)

    @classmethod
    async def start(cls, wheres: Sequence[Where]) -> ServerLink:
        """Start a server that imports these handlers; OSError if that is not possible."""
        return cls(await asyncio.to_thread(_start, wheres))

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        return self._started.process.pid

    # ------------------------------------------------------------------------------------------------ commands

    def fork(self, process: Forked, kind: bytes, fds: Sequence[int]) -> int:
        """Fork a process that gets these files. Return its key; OSError if the server has died."""
        if not self.is_open:
            raise ConnectionResetError("the fork server has ended")
        self._last_key += 1
        self._processes[self._last_key] = process
        self._send(Control(kind, self._last_key), fds)
        return self._last_key

    def signal(self, key: int, signum: signal.Signals) -> None:
        """Send a signal to a process and its children, unless it has ended."""
        if key in self._processes and self.is_open:
            self._send(Control(SIGNAL, key, signum))
            if signum == signal.SIGKILL:
                self._loop.call_later(STUCK_S, self._check_killed, key)

    def _check_killed(self, key: int) -> None:
        if key in self._processes and self.is_open:
            log.error(
                "the fork server (pid %d) did not end a process within %g s; killing the server", self.pid, STUCK_S
            )
            self.kill()

    def kill(self) -> None:
        """Kill the server and its processes."""
        self._started.process.kill()

    def _send(self, command: Control, fds: Sequence[int] = ()) -> None:
        packet = command.encode()
        if not self._unsent and self._try_send(packet, fds):
            return
        if not self._unsent:
            self._loop.add_writer(self._started.control, self._on_writable)
        # The caller closes its files.
        self._unsent.append((packet, [os.dup(fd) for fd in fds]))

    def _try_send(self, packet: bytes, fds: Sequence[int]) -> bool:
        try:
            socket.send_fds(self._started.control, [packet], fds)
        except BlockingIOError:
            return False
        except ConnectionError:
            pass  # the server has died, which the reader notices too
        return True

    def _on_writable(self) -> None:
        while self._unsent:
            packet, fds = self._unsent[0]
            if not self._try_send(packet, fds):
                return
            self._unsent.popleft()
            _close_all(fds)
        self._loop.remove_writer(self._started.control)

    # ------------------------------------------------------------------------------------------------ answers

    def _on_readable(self) -> None:
        while self.is_open:
            try:
                packet = self._started.control.recv(CONTROL_BYTES)
            except BlockingIOError:
                return
            except ConnectionError:
                packet = b""
            if not packet:
                self._close_files()
                self._ended = self._loop.create_task(self._on_death())
                return
            self._on_answer(Control.decode(packet))

    def _on_answer(self, answer: Control) -> None:
        if answer.kind == READY:
            self.ready.set_result(answer.text)
            return
        process = self._processes.pop(answer.key)
        if answer.kind == ENDED:
            process.on_ended(End(answer.number, answer.max_bytes))
        else:
            process.on_refused(OSError(answer.number, os.strerror(answer.number)))

    # ------------------------------------------------------------------------------------------------ the end

    async def close(self) -> None:
        """End the server and its processes. When this returns, the server has ended."""
        if self.is_open:
            self._close_files()
            self._ended = self._loop.create_task(self._on_death())
        if self._ended is not None:
            await self._ended

    def _close_files(self) -> None:
        """Close the connection, which ends the server, and the pipe, which kills its processes."""
        self.is_open = False
        self._loop.remove_reader(self._started.control)
        self._loop.remove_writer(self._started.control)
        self._started.control.close()
        os.close(self._started.life_fd)
        for _, fds in self._unsent:
            _close_all(fds)
        self._unsent.clear()

    async def _on_death(self) -> None:
        code = await asyncio.to_thread(self._started.process.wait)
        how = how_ended(code) + (": out of memory?" if code == -signal.SIGKILL else "")
        if not self.ready.done():
            self.ready.set_exception(ServerDied(how))
            self.ready.exception()  # retrieved, so that asyncio does not log it
        for process in self._processes.values():
            process.on_server_died(how)
        self._processes.clear()


def _start(wheres: Sequence[Where]) -> _Started:
    with contextlib.ExitStack() as stack:
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.callback(theirs.close)
        life_end, life_fd = os.pipe()
        stack.callback(os.close, life_end)
        boot = stack.enter_context(os.fdopen(os.memfd_create("jobmill-boot"), "wb+"))
        boot.write(marshal.dumps((plain(sys.path), plain(sys.argv), msgspec.json.encode(wheres))))
        boot.flush()
        boot.seek(0)
        fds = (theirs.fileno(), life_end, boot.fileno())
        try:
            # In a new session, so that Ctrl-C in a terminal reaches only the worker.
            process = subprocess.Popen(
                interpreter(_BOOT, *map(str, fds), "jobmill-fork-server"),
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                start_new_session=True,
            )
        except BaseException:
            control.close()
            os.close(life_fd)
            raise
    control.setblocking(False)
    return _Started(process, control, life_fd)


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
