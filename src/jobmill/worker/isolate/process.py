"""The worker's end of the connection to a process that the fork server has forked, read by the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket

import msgspec

from jobmill.core.flows import Step
from jobmill.core.job import LogEntry, Progress
from jobmill.core.lifecycle import Errored, Outcome
from jobmill.handlers.context import ReportFunction
from jobmill.worker.isolate.attempt import GRACE_S
from jobmill.worker.isolate.death import End, OutOfMemoryKills, why_ended
from jobmill.worker.isolate.protocol import (
    LOST,
    RECORDED,
    Answer,
    Idle,
    RecordFunction,
    Request,
    request_frame,
    take_answers,
)
from jobmill.worker.isolate.server_link import ServerLink
from jobmill.worker.outcomes import TRACEBACK_KEPT

_READ_BYTES = 256 * 1024


class ForkedProcess:
    """One process. It runs one attempt, or in a pool one after the other."""

    outcome: asyncio.Future[Outcome]
    over: asyncio.Future[None]

    def __init__(self, link: ServerLink, kind: bytes, kills: OutOfMemoryKills) -> None:
        """Fork it; OSError if that is not possible."""
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._kills = kills
        self._answers = bytearray()
        self._unsent = memoryview(b"")
        #: Done when the process has ended and its children have been killed.
        self.ended: asyncio.Future[None] = self._loop.create_future()
        #: The number of attempts that it was given.
        self.attempts = 0
        self.is_signalled = False
        #: What it said after its last attempt, and its memory after the first one.
        self.idle: Idle | None = None
        self.first_bytes = 0
        self._is_closed = False
        self._is_orphan = False
        self._record: RecordFunction | None = None
        self._recording: asyncio.Task[None] | None = None
        self._socket, theirs = socket.socketpair()
        self._crash_fd = -1
        try:
            # faulthandler writes a traceback there when the process crashes.
            self._crash_fd = os.memfd_create("jobmill-crash")
            self._key = link.fork(self, kind, [theirs.fileno(), self._crash_fd])
        except BaseException:
            self._close()
            raise
        finally:
            theirs.close()
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._read)

    def start(self, request: Request, report: ReportFunction, record: RecordFunction | None = None) -> None:
        """Start an attempt: from now on this is an `IsolatedAttempt`."""
        self._record = record
        self.attempts += 1
        self.idle = None
        self._report = report
        self._killed_before = self._kills.recent_count()
        self.outcome = self._loop.create_future()
        self.over = self._loop.create_future()
        self._unsent = memoryview(request_frame(request))
        self._on_writable()
        if self._unsent:
            self._loop.add_writer(self._socket, self._on_writable)

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal to the process and its children; it cannot be used again."""
        self.is_signalled = True
        self._link.signal(self._key, signum)

    def is_alive(self) -> bool:
        """Whether its end of the connection is open."""
        if self.ended.done():
            return False
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def retire(self) -> None:
        """Send it no more attempts: it ends, and is killed if it does not."""
        self.is_signalled = True
        if not self.ended.done():
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            self._loop.call_later(GRACE_S, self._link.signal, self._key, signal.SIGKILL)

    # ------------------------------------------------------------------------------------------------ the connection

    def _on_writable(self) -> None:
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            # If the process died before it read everything, its exit code says more than the broken pipe.
            self._unsent = memoryview(b"")
        if not self._unsent:
            self._loop.remove_writer(self._socket)

    def _read(self) -> bool:
        """Read what has arrived; False if nothing has."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._on_closed()
            return False
        self._answers += data
        try:
            for answer in take_answers(self._answers):
                self._on_answer(answer)
        except (ValueError, msgspec.MsgspecError) as error:
            self._set_outcome(Errored(error=f"process sent a response that cannot be read: {error}"))
            self.signal(signal.SIGKILL)
            self._loop.remove_reader(self._socket)
            return False
        return True

    def _on_closed(self) -> None:
        """The process has ended, or is about to."""
        self._is_closed = True
        self._loop.remove_reader(self._socket)
        if self._is_orphan:
            self._end()

    def _on_answer(self, answer: Answer) -> None:
        if isinstance(answer, Progress | LogEntry):
            if not self.outcome.done():
                self._report(answer)
        elif isinstance(answer, Step):
            self._recording = self._loop.create_task(self._record_step(answer), name="jobmill step")
        elif isinstance(answer, Idle):
            self.idle = answer
            self.first_bytes = self.first_bytes or answer.resident_bytes
            if not (answer.has_left_overs or self.is_signalled or self.over.done()):
                self.over.set_result(None)
        else:
            self._set_outcome(answer)

    async def _record_step(self, step: Step) -> None:
        """Store a step, and send its receipt. The process waits for that, so that there is one at a time."""
        try:
            is_recorded = self._record is not None and await self._record(step)
        except Exception as error:  # whether the step is recorded is not known
            self._set_outcome(Errored(error=f"a step could not be recorded: {error}"))
            self.signal(signal.SIGKILL)
            return
        with contextlib.suppress(OSError):
            self._socket.send(RECORDED if is_recorded else LOST)

    def _set_outcome(self, outcome: Outcome) -> None:
        if self.attempts and not self.outcome.done():
            self.outcome.set_result(outcome)

    # ------------------------------------------------------------------------------------------------ the end

    def on_refused(self, error: OSError) -> None:
        """The server could not fork it."""
        self._set_outcome(Errored(error=f"process could not be started: {error}"))
        self._end()

    def on_ended(self, end: End) -> None:
        """The server has reaped it."""
        self._read_rest()
        if self.attempts and not self.outcome.done():
            is_out = end.code == -signal.SIGKILL and self._kills.count() > self._killed_before
            # If the process crashed, faulthandler has written a traceback.
            traceback = os.pread(self._crash_fd, TRACEBACK_KEPT, 0).decode(errors="replace") or None
            self._set_outcome(Errored(error=why_ended(end, out_of_memory=is_out), traceback=traceback))
        self._end()

    def on_server_died(self, how: str) -> None:
        """The kernel kills the process. Nothing of an attempt runs any more when the connection is closed."""
        self._read_rest()
        self._set_outcome(Errored(error=f"process killed, because the fork server ended ({how})"))
        self._is_orphan = True
        if self._is_closed:
            self._end()
        else:
            self._loop.call_later(GRACE_S, self._end)

    def _read_rest(self) -> None:
        while not self._is_closed and self._read():
            pass

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
            if self.attempts and not self.over.done():
                self.over.set_result(None)
            self._close()

    def _close(self) -> None:
        if self._crash_fd >= 0:
            os.close(self._crash_fd)
            self._crash_fd = -1
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
