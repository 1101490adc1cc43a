"""`isolate=True`: runs one attempt of a job in a separate process, so that a crash is an error of this job only.

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
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, BinaryIO

import msgspec

from jobmill.core.job import Job, Progress
from jobmill.core.lifecycle import Errored, Outcome
from jobmill.errors import InvalidValue
from jobmill.handlers.context import ReportFunction
from jobmill.handlers.handler import Handler
from jobmill.worker import stderr_log
from jobmill.worker.isolate import child
from jobmill.worker.isolate.child import Request, Where, look_up, read_answer, request_frame, write_all
from jobmill.worker.outcomes import TRACEBACK_KEPT, raised

#: How long a process may take to end after SIGTERM, or after its outcome.
GRACE_S = 2.0

# The parent sends sys.path first, because without it the child may not find this package. It uses marshal, which is
# built into Python.
_BOOT = (
    "import marshal, sys; requests = open(int(sys.argv[1]), 'rb'); fds = map(int, sys.argv[2:4]); "
    "sys.path[:], sys.argv[:] = marshal.load(requests); "
    "from jobmill.worker.isolate.child import main; sys.exit(main(requests, *fds))"
)


def check_isolatable(handler: Handler[..., Any]) -> None:
    """Refuse a handler that a separate process could not find, before any job is claimed for it."""
    if child.finding:
        raise InvalidValue(
            "isolate",
            'a main file that starts its worker under `if __name__ == "__main__":`',
            handler,
            "the process of an isolated job runs that file again to find the handler",
        )
    _where(handler)


async def run_isolated(
    handler: Handler[..., Any], job: Job, report: ReportFunction, trace_id: str | None = None
) -> Outcome:
    """Run one attempt of a job in a separate process and return its outcome.

    When this returns or raises, the process and all its children have ended, also after a cancellation.
    """
    try:
        where = _where(handler)
    except InvalidValue as error:
        return raised(error, handler, job.attempt)
    process = _Process(Request(where=where, job=job, trace_id=trace_id, log_options=stderr_log.options), report)
    threading.Thread(target=process.run, name=f"jobmill-isolated-{job.id}", daemon=True).start()
    outcome: Outcome | None = None
    try:
        outcome = await process.outcome
    except asyncio.CancelledError:
        process.signal(signal.SIGTERM)
        raise
    finally:
        cancelled = await _wait(process.ended, GRACE_S)
        while not process.ended.done():
            process.signal(signal.SIGKILL)
            cancelled = await _wait(process.ended) or cancelled
        # An outcome that has arrived counts, even if the wait for the end of the process was cancelled.
        if cancelled and outcome is None:
            raise asyncio.CancelledError
    return outcome


async def _wait(future: asyncio.Future[None], timeout: float | None = None) -> bool:
    """Wait; True if this task was cancelled meanwhile."""
    try:
        await asyncio.wait([future], timeout=timeout)
    except asyncio.CancelledError:
        return True
    return False


class _Process:
    """One process, from its start to its end. A thread does all the work except `signal`."""

    def __init__(self, request: Request, report: ReportFunction) -> None:
        self._loop = asyncio.get_running_loop()
        #: The outcome of the attempt; it may arrive a little before the process ends.
        self.outcome: asyncio.Future[Outcome] = self._loop.create_future()
        #: Done when the process has been reaped and its children have been killed.
        self.ended: asyncio.Future[None] = self._loop.create_future()
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
        self._post(self.ended, self.ended.set_result, None)

    def _post(self, future: asyncio.Future[Any], resolve: Callable[[Any], object], value: object) -> None:
        # If the loop is closed, nothing waits for the future.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: future.done() or resolve(value))

    def _run_process(self, stack: ExitStack) -> Outcome:
        try:
            crash: BinaryIO = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
            request_end, requests = _pipe(stack)
            answers, answer_end = _pipe(stack)
            process = self._start_process((request_end.fileno(), answer_end.fileno(), crash.fileno()))
        except OSError as error:
            return Errored(error=f"process could not be started: {error}")
        try:
            request_end.close()
            answer_end.close()
            outcome = self._converse(requests, answers)
        except BaseException:
            self.signal(signal.SIGKILL)
            raise
        finally:
            # `requests` stays open until here: closing it would kill the process.
            code = self._reap(process)
        # If the process crashed, faulthandler has written a traceback.
        crash.seek(0)
        return outcome or Errored(
            error=_why(code), traceback=crash.read(TRACEBACK_KEPT).decode(errors="replace") or None
        )

    def _start_process(self, fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
        # The flags of this process, such as -O, -W and -X. multiprocessing gets them the same way.
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        # In a new session, so that Ctrl-C in a terminal reaches only the worker, and a signal reaches all children.
        process = subprocess.Popen(
            [sys.executable, *flags, "-c", _BOOT, *map(str, fds), self._request.where.name],
            stdin=subprocess.DEVNULL,
            pass_fds=fds,
            start_new_session=True,
        )
        with self._lock:
            self._running = process
            if self._signal is not None:
                signal_group(process.pid, self._signal)
        return process

    def _converse(self, requests: BinaryIO, answers: BinaryIO) -> Outcome | None:
        """Send the request and pass on the child's reports, up to its outcome; None if it ended without one."""
        # If the child died before it read everything, its exit code says more than the broken pipe.
        with contextlib.suppress(BrokenPipeError):
            write_all(requests.fileno(), marshal.dumps((_plain(sys.path), _plain(sys.argv))))
            write_all(requests.fileno(), request_frame(self._request))
        try:
            while (answer := read_answer(answers)) is not None:
                if not isinstance(answer, Progress | str):
                    self._post(self.outcome, self.outcome.set_result, answer)
                    return answer
                self._report(answer)
        except (ValueError, msgspec.MsgspecError) as error:
            self.signal(signal.SIGKILL)
            return Errored(error=f"process sent a response that cannot be read: {error}")
        return None

    def _reap(self, process: subprocess.Popen[bytes]) -> int:
        _wait_for_end(process)
        with self._lock:
            # Kill the children that the process left running. It has not been reaped, so its id is still valid.
            signal_group(process.pid, signal.SIGKILL)
            self._running = None
            return process.wait()


def _wait_for_end(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "waitid"):
        # ChildProcessError: the application ignores SIGCHLD, so the system reaps its children.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:  # macOS before Python 3.13
        process.wait()


def signal_group(pid: int, signum: signal.Signals) -> None:
    """Send a signal to a process and its children, unless they have ended."""
    # PermissionError: the answer of macOS for a group whose processes have all ended.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signum)


def _pipe(stack: ExitStack) -> tuple[BinaryIO, BinaryIO]:
    reader, writer = os.pipe()
    return stack.enter_context(open(reader, "rb")), stack.enter_context(open(writer, "wb"))


def _plain(values: list[str]) -> list[str]:
    return [value for value in values if type(value) is str]


# ---------------------------------------------------------------------------------------------------- why it ended


def how_ended(code: int) -> str:
    """An exit code in words: ended by SIGSEGV, killed by SIGKILL, exited with code 3."""
    if code >= 0:
        return f"exited with code {code}"
    if code == -signal.SIGKILL:
        return "killed by SIGKILL"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


def _why(code: int) -> str:
    if code == -signal.SIGKILL:
        # Only the system's out-of-memory killer does this, and it leaves no message.
        return f"process {how_ended(code)} (out of memory?)"
    return f"process {how_ended(code)}" + (" without an outcome" if code >= 0 else "")


# ---------------------------------------------------------------------------------------------------- where it is


def _where(handler: Handler[..., Any]) -> Where:
    """Where another process finds the handler; InvalidValue if it cannot."""
    if os.name != "posix":
        raise InvalidValue("isolate", "a POSIX system (process groups and inherited pipes)", os.name)
    name = getattr(handler.fn, "__module__", None) or ""
    qualname = getattr(handler.fn, "__qualname__", None) or ""
    module = sys.modules.get(name)
    if module is None or look_up(module, qualname, handler.name) is not handler:
        raise InvalidValue(
            "isolate",
            "a handler that another process can import",
            handler,
            f"define it at the top level of a module, not inside a function, and under one name in {name or 'it'}",
        )
    main_module = main_file = None
    if name == "__main__":
        # `python -m app` has a spec, `python app.py` a file. The spec of a directory or an archive is named __main__.
        spec_name = getattr(module.__spec__, "name", "__main__")
        main_module = None if spec_name == "__main__" else spec_name
        main_file = getattr(module, "__file__", None)
        if main_module is None and main_file is None:
            raise InvalidValue("isolate", "a handler in a file, which another process can import", handler)
    return Where(
        module=name,
        qualname=qualname,
        name=handler.name,
        main_module=main_module,
        main_file=None if main_file is None else os.path.abspath(main_file),
    )
