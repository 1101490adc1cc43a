"""The fork server: a process with a single thread that has imported the handlers, and forks a copy for an attempt.

A fork copies only the thread that forks; locks that other threads hold stay locked for ever. So the worker, which has
an event loop and threads, never forks. This process has neither, and none of the worker's files and sockets. It forks,
signals and reaps. It learns from the end of its connection that the worker has died or has closed it.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import socket
from collections.abc import Sequence
from typing import Any, NoReturn

from msgspec import Raw

from jobmill.core.job import Job
from jobmill.core.lifecycle import Succeeded
from jobmill.handlers.handler import Handler
from jobmill.worker import forking
from jobmill.worker.isolate import (
    forked,
    inside,  # noqa: F401 - here, so that no attempt has to import it
)
from jobmill.worker.isolate.death import max_bytes, signal_group
from jobmill.worker.isolate.find import Where, import_handler
from jobmill.worker.isolate.protocol import (
    CONTROL_BYTES,
    ENDED,
    FORK_POOLED,
    READY,
    REFUSED,
    SIGNAL,
    Control,
    Request,
    answer_frame,
    read_request,
    request_frame,
)

#: The signals that the server handles in its own way. A forked process gets back the handlers from before.
_OWN_SIGNALS = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM)


def serve(control_fd: int, life_fd: int, wheres: Sequence[Where]) -> NoReturn:
    """Import the handlers, then fork on request, until the worker closes the connection."""
    for fd in (control_fd, life_fd):
        os.set_inheritable(fd, False)
    control = socket.socket(fileno=control_fd)
    threaded = _import_all(wheres)
    forking.prepare()
    control.send(Control(READY, text=threaded or "").encode())
    _Server(control, life_fd).run()


class _Server:
    def __init__(self, control: socket.socket, life_fd: int) -> None:
        self._control = control
        self._life_fd = life_fd
        self._keys: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        # SIGTERM to all processes of a service is for the worker, which ends its attempts in order.
        self._handlers_before = {
            signal.SIGCHLD: signal.signal(signal.SIGCHLD, lambda *_: None),
            signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
            signal.SIGTERM: signal.signal(signal.SIGTERM, signal.SIG_IGN),
        }

    def run(self) -> NoReturn:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._woken:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._woken, 4096)
                else:
                    self._obey()
            self._reap()

    def _obey(self) -> None:
        try:
            packet, fds, _, _ = socket.recv_fds(self._control, CONTROL_BYTES, 4, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            packet, fds = b"", []
        if not packet:
            for pid in self._keys:
                self._signal(pid, signal.SIGKILL)
            os._exit(0)
        command = Control.decode(packet)
        if command.kind == SIGNAL:
            if command.key in self._pids:  # otherwise it has ended meanwhile
                self._signal(self._pids[command.key], signal.Signals(command.number))
            return
        try:
            self._fork(command, fds)
        except OSError as error:
            self._send(Control(REFUSED, command.key, error.errno or 0))
        finally:
            for fd in fds:
                os.close(fd)

    def _fork(self, command: Control, fds: list[int]) -> None:
        # Blocked until the child has its own handlers: a signal that comes before must not be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _OWN_SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                self._become_child(command, fds)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _OWN_SIGNALS)
        self._keys[pid], self._pids[command.key] = command.key, pid

    def _become_child(self, command: Control, fds: list[int]) -> NoReturn:
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for signum, handler in self._handlers_before.items():
                # None: the handler was not installed by Python.
                signal.signal(signum, signal.SIG_DFL if handler is None else handler)
            self._control.close()
            os.close(self._woken)
            os.close(self._wake)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _OWN_SIGNALS)
            connection_fd, crash_fd = fds
            forked.run(connection_fd, crash_fd, self._life_fd, is_pooled=command.kind == FORK_POOLED)
        finally:
            # Whatever happened: a second fork server must never run.
            os._exit(1)

    def _reap(self) -> None:
        while True:
            try:
                # It is not reaped yet, so that its id is still valid.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            key = self._keys.pop(pid, None)
            if key is not None:
                signal_group(pid, signal.SIGKILL)  # the processes that it has left running
            _, status, used = os.wait4(pid, 0)
            if key is not None:
                del self._pids[key]
                self._send(Control(ENDED, key, os.waitstatus_to_exitcode(status), max_bytes(used.ru_maxrss)))

    def _signal(self, pid: int, signum: signal.Signals) -> None:
        # PermissionError: the handler has changed its user.
        with contextlib.suppress(PermissionError):
            try:
                os.killpg(pid, signum)
            except ProcessLookupError:
                os.kill(pid, signum)  # it does not lead its group yet; it is not reaped, so its id is valid

    def _send(self, answer: Control) -> None:
        # If the worker has closed the connection, the next turn sees it.
        with contextlib.suppress(ConnectionError):
            self._control.send(answer.encode())


def _import_all(wheres: Sequence[Where]) -> str | None:
    """Import the handlers. Return the name of the module whose import started the first thread, if any did."""
    threaded: str | None = None
    with forking.watched_imports() as found:
        for where in wheres:
            # An attempt imports the module again, and reports the error.
            with contextlib.suppress(BaseException):
                _warm_up(import_handler(where), where)
            if threaded is None and forking.thread_count() > 1:
                threaded = found[0] if found else where.module
    return threaded


def _warm_up(handler: Handler[..., Any], where: Where) -> None:
    """Decode and encode once what every attempt does: msgspec prepares a type at its first use."""
    job = Job(
        id="",
        name="",
        queue="",
        payload_json=Raw(b"{}"),
        state="running",
        priority=0,
        due_ms=0,
        created_ms=0,
        updated_ms=0,
    )
    read_request(io.BytesIO(request_frame(Request(where=where, job=job))))
    answer_frame(Succeeded())
    handler.arguments.decode(job.payload_json)
