"""`isolate="spawn"`: starts an interpreter for each attempt.

The process is a plain `python -c` with two pipes. We do not use multiprocessing: it runs the main module for every
handler, pickles values, keeps a resource tracker running, and does not stop the processes that a child has started. The
worker has one thread per process. This thread starts the process, reads from it and reaps it with blocking calls, so
that the event loop does not wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import marshal
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, BinaryIO

import msgspec

from jobmill.core.flows import Step
from jobmill.core.job import LogEntry, Progress
from jobmill.core.lifecycle import Errored, Outcome
from jobmill.handlers.context import ReportFunction
from jobmill.worker.isolate.attempt import outcome_of
from jobmill.worker.isolate.death import End, OutOfMemoryKills, max_bytes, signal_group, why_ended
from jobmill.worker.isolate.protocol import (
    LOST,
    RECORDED,
    Idle,
    RecordFunction,
    Request,
    read_answer,
    request_frame,
    write_all,
)
from jobmill.worker.outcomes import TRACEBACK_KEPT

# The parent sends sys.path first, because without it the child may not find this package. It uses marshal, which is
# built into Python.
_BOOT = (
    "import marshal, sys; requests = open(int(sys.argv[1]), 'rb'); fds = map(int, sys.argv[2:5]); "
    "sys.path[:], sys.argv[:] = marshal.load(requests); "
    "from jobmill.worker.isolate.child import main; sys.exit(main(requests, *fds))"
)


async def run_spawned(
    request: Request, report: ReportFunction, kills: OutOfMemoryKills, record: RecordFunction | None = None
) -> Outcome:
    """Run one attempt in a new interpreter and return its outcome."""
    process = _Process(request, report, kills, record)
    threading.Thread(target=process.run, name=f"jobmill-isolated-{request.job.id}", daemon=True).start()
    return await outcome_of(process)


def interpreter(boot: str, *arguments: str) -> list[str]:
    """A command that runs this code in an interpreter like ours."""
    # The flags of this process, such as -O, -W and -X. multiprocessing gets them the same way.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-c", boot, *arguments]


def plain(values: list[str]) -> list[str]:
    """Without strings of a subclass, which marshal cannot write."""
    return [value for value in values if type(value) is str]


class _Process:
    """One process, from its start to its end. A thread does all the work except `signal`."""

    def __init__(
        self, request: Request, report: ReportFunction, kills: OutOfMemoryKills, record: RecordFunction | None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._record = record
        self._kills = kills
        self._killed_before = kills.recent_count()
        #: The outcome of the attempt; it may arrive a little before the process ends.
        self.outcome: asyncio.Future[Outcome] = self._loop.create_future()
        #: Done when the process has been reaped and its children have been killed.
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._request = request
        self._report = report
        # Guards the process id: after the process is reaped, the system may reuse the number.
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._signal: signal.Signals | None = None

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal to the process and its children, now or as soon as it has started; never waits."""
        with self._lock:
            self._signal = signum
            if self._running is not None:
                signal_group(self._running.pid, signum)

    def run(self) -> None:
        """Start the process, pass on what it reports, and reap it; this blocks, in a thread of its own."""
        try:
            with ExitStack() as stack:
                outcome = self._run_process(stack)
        except BaseException as error:
            self._post(self.outcome, self.outcome.set_exception, error)
        else:
            self._post(self.outcome, self.outcome.set_result, outcome)
        self._post(self.over, self.over.set_result, None)

    def _post(self, future: asyncio.Future[Any], resolve: Callable[[Any], object], value: object) -> None:
        # If the loop is closed, nothing waits for the future.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: future.done() or resolve(value))

    def _run_process(self, stack: ExitStack) -> Outcome:
        try:
            crash: BinaryIO = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
            request_end, requests = _pipe(stack)
            answers, answer_end = _pipe(stack)
            # Not the pipe of the request: whatever happens to that one kills the process.
            receipt_end, receipts = _pipe(stack)
            ends = (request_end, answer_end, crash, receipt_end)
            process = self._start_process(tuple(one.fileno() for one in ends))
        except OSError as error:
            return Errored(error=f"process could not be started: {error}")
        try:
            request_end.close()
            answer_end.close()
            receipt_end.close()
            outcome = self._converse(requests, answers, receipts)
        except BaseException:
            self.signal(signal.SIGKILL)
            raise
        finally:
            # `requests` stays open until here: closing it would kill the process.
            end = self._reap(process)
        if outcome is not None:
            return outcome
        # If the process crashed, faulthandler has written a traceback.
        crash.seek(0)
        traceback = crash.read(TRACEBACK_KEPT).decode(errors="replace") or None
        is_out = self._kills.count() > self._killed_before
        return Errored(error=why_ended(end, out_of_memory=is_out), traceback=traceback)

    def _start_process(self, fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
        # In a new session, so that Ctrl-C in a terminal reaches only the worker, and a signal reaches all children.
        process = subprocess.Popen(
            interpreter(_BOOT, *map(str, fds), self._request.where.name),
            stdin=subprocess.DEVNULL,
            pass_fds=fds,
            start_new_session=True,
        )
        with self._lock:
            self._running = process
            if self._signal is not None:
                signal_group(process.pid, self._signal)
        return process

    def _converse(self, requests: BinaryIO, answers: BinaryIO, receipts: BinaryIO) -> Outcome | None:
        """Send the request and pass on the child's reports, up to its outcome; None if it ended without one."""
        # If the child died before it read everything, its exit code says more than the broken pipe.
        with contextlib.suppress(BrokenPipeError):
            write_all(requests.fileno(), marshal.dumps((plain(sys.path), plain(sys.argv))))
            write_all(requests.fileno(), request_frame(self._request))
        try:
            while (answer := read_answer(answers)) is not None:
                if isinstance(answer, Progress | LogEntry):
                    self._report(answer)
                elif isinstance(answer, Step):
                    self._record_step(answer, receipts)
                elif not isinstance(answer, Idle):
                    self._post(self.outcome, self.outcome.set_result, answer)
                    return answer
        except (ValueError, msgspec.MsgspecError) as error:
            self.signal(signal.SIGKILL)
            return Errored(error=f"process sent a response that cannot be read: {error}")
        return None

    def _record_step(self, step: Step, receipts: BinaryIO) -> None:
        is_recorded = False
        if self._record is not None:
            is_recorded = asyncio.run_coroutine_threadsafe(_awaited(self._record(step)), self._loop).result()
        with contextlib.suppress(BrokenPipeError):
            write_all(receipts.fileno(), RECORDED if is_recorded else LOST)

    def _reap(self, process: subprocess.Popen[bytes]) -> End:
        _wait_for_end(process)
        with self._lock:
            # Kill the children that the process left running. It has not been reaped, so its id is still valid.
            signal_group(process.pid, signal.SIGKILL)
            self._running = None
            return _reaped(process)


async def _awaited(call: Awaitable[bool]) -> bool:
    return await call


def _wait_for_end(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "waitid"):
        # ChildProcessError: the application ignores SIGCHLD, so the system reaps its children.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:  # macOS before Python 3.13
        process.wait()


def _reaped(process: subprocess.Popen[bytes]) -> End:
    try:
        _, status, used = os.wait4(process.pid, 0)
    except ChildProcessError:
        return End(process.wait())
    process.returncode = os.waitstatus_to_exitcode(status)
    return End(process.returncode, max_bytes(_own_maxrss(used.ru_maxrss)))


def _own_maxrss(ru_maxrss: int) -> int:
    """The memory that a process has used; 0 if that is unknown.

    Until the process loads its program, it has the memory of this one. Linux counts that as well.
    """
    import resource  # Windows has none

    return ru_maxrss if ru_maxrss > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss else 0


def _pipe(stack: ExitStack) -> tuple[BinaryIO, BinaryIO]:
    reader, writer = os.pipe()
    return stack.enter_context(open(reader, "rb")), stack.enter_context(open(writer, "wb"))
