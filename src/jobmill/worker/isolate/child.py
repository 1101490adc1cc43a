"""What the process of an isolated job does: read the request, find the handler, run it, answer; how both sides talk.

Frames go through pipes: a kind (one byte), a length (four), a body. The worker sends one request and keeps that pipe
open for as long as it lives. The child sends what the handler reports, and then one outcome. Payload and result travel
as the JSON that they already are.
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
from types import ModuleType
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from jobmill.core.job import Job, Progress
from jobmill.core.lifecycle import Errored, Outcome, Snoozed, Succeeded
from jobmill.errors import InvalidValue
from jobmill.handlers.context import Context
from jobmill.handlers.handler import Handler
from jobmill.worker import outcomes

#: The name that a main file runs under a second time, so that `if __name__ == "__main__"` does not; multiprocessing's.
MAIN_AGAIN = "__mp_main__"

# No answer is larger than the largest result with its escapes; a length beyond it is a stream gone wrong.
_LARGEST_BODY = 256 * 1024 * 1024

_LOG = b"l"
_PROGRESS = b"p"
_SUCCEEDED = b"s"
_ERRORED = b"e"
_SNOOZED = b"z"
_REQUEST = b"r"

#: Whether this is an isolated process that is still importing its handler: a worker must not start then.
finding = False


class Where(Struct, frozen=True, kw_only=True):
    """How another process finds a handler."""

    module: str
    qualname: str
    name: str
    #: Of a handler in `__main__`: the module that was run with `python -m`, or the file of the script.
    main_module: str | None = None
    main_file: str | None = None


class Request(Struct, frozen=True, kw_only=True):
    """What the child needs to run one job."""

    where: Where
    job: Job


# ---------------------------------------------------------------------------------------------------- frames


def request_frame(request: Request) -> bytes:
    """A request as bytes; the payload goes in as the JSON that it is."""
    return _frame(_REQUEST, msgspec.json.encode(request))


def read_answer(answers: BinaryIO) -> Outcome | Progress | str | None:
    """The next thing that a child says; None when it has no more to say. ValueError when it cannot be understood."""
    said = _read_frame(answers)
    if said is None:
        return None
    kind, body = said
    if kind == _LOG:
        return body.decode()
    if kind == _SUCCEEDED:
        return Succeeded(body)
    if kind not in _STRUCTS:
        raise ValueError(f"a frame of the unknown kind {kind!r}")
    answer: Outcome | Progress = msgspec.json.decode(body, type=_STRUCTS[kind])
    return answer


_STRUCTS: dict[bytes, Any] = {_PROGRESS: Progress, _ERRORED: Errored, _SNOOZED: Snoozed}


def _answer_frame(said: Outcome | Progress | str) -> bytes:
    if isinstance(said, str):
        return _frame(_LOG, said.encode("utf-8", "replace"))
    if isinstance(said, Succeeded):
        return _frame(_SUCCEEDED, said.result_json)
    kind = next(kind for kind, struct in _STRUCTS.items() if isinstance(said, struct))
    return _frame(kind, msgspec.json.encode(said))


def write_all(fd: int, data: bytes) -> None:
    """Write everything, however little the pipe takes at a time."""
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
    if length > _LARGEST_BODY:
        raise ValueError(f"a frame of {length} bytes")
    body = file.read(length)
    return (header[:1], body) if len(body) == length else None


# ---------------------------------------------------------------------------------------------------- the child


def main(requests: BinaryIO, answers_fd: int, crash_fd: int) -> int:
    """Run one job; `requests` must stay open until the end, for its end of file says that the worker has died."""
    for fd in (requests.fileno(), answers_fd, crash_fd):
        # What the handler starts must not hold our pipes open.
        os.set_inheritable(fd, False)
    # A segfault leaves the line where it happened.
    faulthandler.enable(crash_fd, all_threads=False)
    said = _read_frame(requests)
    if said is None:
        return 0
    _die_with_worker(requests.fileno())
    _run(msgspec.json.decode(said[1], type=Request), Channel(answers_fd))
    return 0


class Channel:
    """The way back to the worker, from any thread, until the outcome was told."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._open = True
        # A forked process would keep the pipe open after this one has died, and write into the middle of its frames.
        os.register_at_fork(after_in_child=self._forked)

    def tell(self, said: Progress | str) -> None:
        """Progress, or a log line."""
        self._send(_answer_frame(_printable(said)))

    def answer(self, outcome: Outcome) -> None:
        """How it ended; nothing is told after that."""
        self._send(_answer_frame(outcome), last=True)

    def _send(self, frame: bytes, *, last: bool = False) -> None:
        with self._lock:
            if not self._open:
                return
            self._open = not last
            # A worker that does not listen any more is about to end this process.
            with contextlib.suppress(BrokenPipeError):
                write_all(self._fd, frame)

    def _forked(self) -> None:
        # Another thread may have held the lock at the fork; nobody will ever give it back.
        self._lock = threading.Lock()
        if self._open:
            self._open = False
            os.close(self._fd)


def _printable(said: Progress | str) -> Progress | str:
    """Lone surrogates are no UTF-8: no pipe and no store takes them."""
    if isinstance(said, str) or said.message is None:
        return said
    return Progress(said.value, said.message.encode("utf-8", "replace").decode())


def _die_with_worker(fd: int) -> None:
    """Have this process and all that it starts killed when the worker's end of the pipe is closed.

    On Linux by the kernel itself (a signal to the process group for what happens on a file), so that it works while C
    code holds the GIL, and grandchildren go too. PR_SET_PDEATHSIG would kill the child alone, and already when the
    thread that started it ends.
    """
    if sys.platform == "linux":
        fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if poll.poll(0):  # the worker died before the signal was asked for
            _end_group()
    else:
        threading.Thread(target=_watch, args=(fd,), daemon=True).start()


def _watch(fd: int) -> None:
    os.read(fd, 1)
    _end_group()


def _end_group() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _run(request: Request, channel: Channel) -> None:
    try:
        handler = _handler(request.where)
    except BaseException as error:
        text = f"the handler was not found in its own process: {outcomes.described(error)}"
        channel.answer(Errored(error=text, traceback=outcomes.printed(error)))
        return
    try:
        arguments = handler.arguments.decode(request.job.payload_json)
    except InvalidValue as error:
        # It will not fit at the next attempt either.
        channel.answer(Errored(error=str(error), final=True))
        return
    call = functools.partial(handler.fn, **arguments)
    if handler.arguments.takes_context:
        call = functools.partial(handler.fn, Context(request.job, channel.tell), **arguments)
    attempt = request.job.attempt
    if handler.is_async:
        asyncio.run(_answer_async(handler, call, attempt, channel))
    else:
        channel.answer(_called(handler, call, attempt))


def _called(handler: Handler[..., Any], call: functools.partial[Any], attempt: int) -> Outcome:
    try:
        value = call()
    except BaseException as error:
        return outcomes.raised(error, handler, attempt)
    return outcomes.returned(value)


async def _answer_async(
    handler: Handler[..., Any], call: functools.partial[Any], attempt: int, channel: Channel
) -> None:
    """The answer goes out before the loop is closed: what the handler left running has no say in it."""
    try:
        value = await call()
    except BaseException as error:
        channel.answer(outcomes.raised(error, handler, attempt))
    else:
        channel.answer(outcomes.returned(value))


# ---------------------------------------------------------------------------------------------------- finding


def _handler(where: Where) -> Handler[..., Any]:
    global finding  # noqa: PLW0603 - a fact of this process: code that is imported now must not start a worker
    finding = True
    try:
        module = _main_again(where) if where.module == "__main__" else importlib.import_module(where.module)
    finally:
        finding = False
    handler = look_up(module, where.qualname, where.name)
    if handler is None:
        raise InvalidValue("isolate", f"a handler named {where.name} in {where.module}", where.qualname)
    return handler


def look_up(module: ModuleType, qualname: str, name: str) -> Handler[..., Any] | None:
    """The handler in a module: under its function's name, else under any."""
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    for one in (found, *vars(module).values()):
        if isinstance(one, Handler) and one.name == name:
            return one
    return None


def _main_again(where: Where) -> ModuleType:
    """The worker's main module, run a second time under another name, as multiprocessing does it."""
    import runpy

    if where.main_module is not None:
        content = runpy.run_module(where.main_module, run_name=MAIN_AGAIN, alter_sys=True)
    else:
        content = runpy.run_path(str(where.main_file), run_name=MAIN_AGAIN)
    module = ModuleType(MAIN_AGAIN)
    vars(module).update(content)
    sys.modules["__main__"] = sys.modules[MAIN_AGAIN] = module
    return module
