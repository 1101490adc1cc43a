"""The process of an isolated job: reads the request, finds and runs the handler, and answers; and the protocol.

Both sides send frames through pipes: a kind (one byte), a length (four bytes) and a body. The worker sends one request
and keeps its pipe open as long as it lives. The child sends the reports of the handler and then one outcome. Payload
and result are sent as the JSON that they already are.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import fcntl
import functools
import importlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from jobmill.core.job import Job, Progress
from jobmill.core.lifecycle import Errored, Outcome, Snoozed, Succeeded
from jobmill.errors import InvalidValue, JobmillError
from jobmill.handlers.context import Context
from jobmill.handlers.handler import Handler
from jobmill.handlers.hooks import Hooks
from jobmill.handlers.logs import current_run
from jobmill.worker import outcomes, stderr_log

#: The `__name__` of a main file that runs again in the child, so that `if __name__ == "__main__"` is false. It is the
#: name that multiprocessing uses.
MAIN_AGAIN = "__mp_main__"

# More than the largest result with its escapes: a larger length means that the stream is corrupt.
_MAX_BODY = 256 * 1024 * 1024

#: What the child sends, by the kind of its frame.
_ANSWERS: dict[bytes, Any] = {b"l": str, b"p": Progress, b"s": Succeeded, b"e": Errored, b"z": Snoozed}

#: True while an isolated process imports its handler. A worker must not start then.
finding = False


class Where(Struct, frozen=True, kw_only=True):
    """Where another process finds a handler."""

    module: str
    qualname: str
    name: str
    #: For a handler in `__main__`: the module that was run with `python -m`, or the file of the script.
    main_module: str | None = None
    main_file: str | None = None


class Request(Struct, frozen=True, kw_only=True):
    """What the child needs to run one job."""

    where: Where
    job: Job
    trace_id: str | None = None
    #: How a command logs; empty if the worker's process has its own logging configuration.
    log_options: dict[str, Any] = {}


class IsolatedRun(Struct, frozen=True):
    """The only run of this process."""

    context: Context


# ---------------------------------------------------------------------------------------------------- frames


def request_frame(request: Request) -> bytes:
    """A request as bytes."""
    return _frame(b"r", msgspec.json.encode(request))


def read_answer(answers: BinaryIO) -> Outcome | Progress | str | None:
    """The next answer of a child; None at its end. ValueError if the frame is invalid."""
    frame = _read_frame(answers)
    if frame is None:
        return None
    kind, body = frame
    if kind not in _ANSWERS:
        raise ValueError(f"a frame of the unknown kind {kind!r}")
    answer: Outcome | Progress | str = msgspec.msgpack.decode(body, type=_ANSWERS[kind])
    return answer


def _answer_frame(answer: Outcome | Progress | str) -> bytes:
    kind = next(kind for kind, type in _ANSWERS.items() if isinstance(answer, type))
    return _frame(kind, msgspec.msgpack.encode(answer))


def write_all(fd: int, data: bytes) -> None:
    """Write all data, even if the pipe takes only a part of it at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _frame(kind: bytes, body: bytes) -> bytes:
    return b"".join((kind, len(body).to_bytes(4, "big"), body))


def _read_frame(file: BinaryIO) -> tuple[bytes, bytes] | None:
    header = file.read(5)
    if len(header) < 5:
        return None
    length = int.from_bytes(header[1:], "big")
    if length > _MAX_BODY:
        raise ValueError(f"a frame of {length} bytes")
    body = file.read(length)
    return (header[:1], body) if len(body) == length else None


# ---------------------------------------------------------------------------------------------------- the child


def main(requests: BinaryIO, answers_fd: int, crash_fd: int) -> int:
    """Run one job. `requests` must stay open until the end: its end of file means that the worker has died."""
    for fd in (requests.fileno(), answers_fd, crash_fd):
        # Processes that the handler starts must not keep the pipes open.
        os.set_inheritable(fd, False)
    # After a segfault, the file holds the traceback.
    faulthandler.enable(crash_fd, all_threads=False)
    frame = _read_frame(requests)
    if frame is None:
        return 0
    _die_with_worker(requests.fileno())
    _run(msgspec.json.decode(frame[1], type=Request), Channel(answers_fd))
    return 0


class Channel:
    """Sends answers to the worker, from any thread, until the outcome is sent."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._open = True
        # A forked process would keep the pipe open after this one has died, and could write into its frames.
        os.register_at_fork(after_in_child=self._forked)

    def send(self, answer: Outcome | Progress | str) -> None:
        """Send a report, or the outcome. Nothing can be sent after the outcome."""
        frame = _answer_frame(answer)
        with self._lock:
            if not self._open:
                return
            self._open = isinstance(answer, Progress | str)
            # A worker that has closed its end is about to stop this process.
            with contextlib.suppress(BrokenPipeError):
                write_all(self._fd, frame)

    def _forked(self) -> None:
        # Another thread may have held the lock at the fork; in this process it would never be released.
        self._lock = threading.Lock()
        if self._open:
            self._open = False
            os.close(self._fd)


def _die_with_worker(fd: int) -> None:
    """Kill this process and all processes that it starts when the worker's end of the pipe is closed.

    On Linux the kernel does it: it sends a signal to the process group when the file changes. That works while C code
    holds the GIL, and includes grandchildren. PR_SET_PDEATHSIG would kill only the child, and already when the thread
    that started it ends.
    """
    if sys.platform == "linux":
        fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if poll.poll(0):  # the worker died before the signal was requested
            _end_group()
    else:
        threading.Thread(target=_watch, args=(fd,), daemon=True).start()


def _watch(fd: int) -> None:
    os.read(fd, 1)
    _end_group()


def _end_group() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _run(request: Request, channel: Channel) -> None:
    context = Context(request.job, channel.send)
    context.trace_id = request.trace_id
    current_run.set(IsolatedRun(context))
    if request.log_options:
        stderr_log.log_to_stderr(**request.log_options)
    try:
        handler = _handler(request.where)
    except BaseException as error:
        text = f"the handler was not found in the isolated process: {outcomes.described(error)}"
        kind, traceback = outcomes.type_name(error), outcomes.printed(error)
        channel.send(Errored(error=text, error_type=kind, traceback=traceback))
        return
    try:
        arguments = handler.arguments.decode(request.job.payload_json)
    except InvalidValue as error:
        # The payload will not fit at the next attempt either.
        channel.send(Errored(error=error.without_value(), final=True))
        return
    call = functools.partial(handler.fn, *((context,) if handler.arguments.takes_context else ()), **arguments)
    hooks = handler.client.hooks
    if hooks.lifespans or hooks.around.functions:
        _run_inside(hooks, handler, context, call, channel)
    elif handler.is_async:
        with asyncio.Runner() as runner:
            # Send the outcome before the loop closes: tasks that the handler left running must not change it.
            channel.send(_outcome(handler, lambda: runner.run(call()), request.job.attempt))
    else:
        channel.send(_outcome(handler, call, request.job.attempt))


def _run_inside(
    hooks: Hooks, handler: Handler[..., Any], context: Context, call: Callable[[], Any], channel: Channel
) -> None:
    from jobmill.worker.isolate.inside import Inside

    inside = Inside(hooks)
    try:
        context._state = inside.open()
    except JobmillError as error:
        channel.send(Errored(error=str(error), error_type=outcomes.type_name(error), traceback=outcomes.printed(error)))
    else:
        # Send the outcome before the lifespans close: it counts, however they end.
        channel.send(inside.run(handler, context, call))
    inside.close()


def _outcome(handler: Handler[..., Any], call: Callable[[], Any], attempt: int) -> Outcome:
    try:
        value = call()
    except BaseException as error:
        return outcomes.raised(error, handler, attempt)
    return outcomes.returned(value, handler)


# ---------------------------------------------------------------------------------------------------- finding


def _handler(where: Where) -> Handler[..., Any]:
    global finding  # noqa: PLW0603 - process-wide: code that is imported now must not start a worker
    finding = True
    try:
        module = _run_main_again(where) if where.module == "__main__" else importlib.import_module(where.module)
    finally:
        finding = False
    handler = look_up(module, where.qualname, where.name)
    if handler is None:
        raise InvalidValue("isolate", f"a handler named {where.name} in {where.module}", where.qualname)
    return handler


def look_up(module: ModuleType, qualname: str, name: str) -> Handler[..., Any] | None:
    """The handler in a module, by the name of its function, else by any name."""
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    for one in (found, *vars(module).values()):
        if isinstance(one, Handler) and one.name == name:
            return one
    return None


def _run_main_again(where: Where) -> ModuleType:
    """Run the worker's main module again under another name, as multiprocessing does."""
    import runpy

    if where.main_module is not None:
        content = runpy.run_module(where.main_module, run_name=MAIN_AGAIN, alter_sys=True)
    else:
        content = runpy.run_path(str(where.main_file), run_name=MAIN_AGAIN)
    module = ModuleType(MAIN_AGAIN)
    vars(module).update(content)
    sys.modules["__main__"] = sys.modules[MAIN_AGAIN] = module
    return module
