"""The process of an isolated job, however it was started: finds and runs the handler, and dies with the worker."""

from __future__ import annotations

import asyncio
import faulthandler
import fcntl
import functools
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

from msgspec import Struct

from jobmill.core.lifecycle import Errored, Outcome
from jobmill.errors import InvalidValue, JobmillError
from jobmill.handlers.context import Context
from jobmill.handlers.handler import Handler
from jobmill.handlers.hooks import Hooks
from jobmill.handlers.logs import current_run
from jobmill.worker import outcomes, stderr_log
from jobmill.worker.isolate.find import import_handler
from jobmill.worker.isolate.past import RequestAccess, end_of, run_at_once
from jobmill.worker.isolate.protocol import Channel, Reports, Request, read_request

if TYPE_CHECKING:
    from jobmill.worker.isolate.inside import Inside


class IsolatedRun(Struct, frozen=True):
    """The run of this process."""

    context: Context


def main(requests: BinaryIO, answers_fd: int, crash_fd: int, receipts_fd: int) -> int:
    """Run one job in a new interpreter. The end of `requests` means that the worker has died."""
    for fd in (requests.fileno(), answers_fd, crash_fd, receipts_fd):
        # Processes that the handler starts must not keep the pipes open.
        os.set_inheritable(fd, False)
    # After a segfault, the file holds the traceback.
    faulthandler.enable(crash_fd, all_threads=False)
    request = read_request(requests)
    if request is None:
        return 0
    die_with_worker(requests.fileno())
    surroundings = Surroundings()
    run_attempt(request, Channel(answers_fd, receipts_fd).attempt(), surroundings)
    surroundings.close()
    return 0


def run_attempt(request: Request, reports: Reports, surroundings: Surroundings) -> None:
    """Run the handler, and send its reports and its outcome."""
    context = Context(request.job, reports.send)
    context.trace_id = request.trace_id
    context.access, context.wait = RequestAccess(request, reports), run_at_once
    current_run.set(IsolatedRun(context))
    if request.log_options:
        stderr_log.configure(**request.log_options)
    try:
        handler = import_handler(request.where)
    except BaseException as error:
        text = f"the handler was not found in the isolated process: {outcomes.described(error)}"
        kind, traceback = outcomes.type_name(error), outcomes.printed(error)
        reports.send(Errored(error=text, error_type=kind, traceback=traceback))
        return
    try:
        arguments = handler.arguments.decode(request.job.payload_json)
    except InvalidValue as error:
        reports.send(outcomes.unfit(error))
        return
    call = functools.partial(handler.fn, *((context,) if handler.arguments.takes_context else ()), **arguments)
    try:
        inside = surroundings.enter(handler.client.hooks)
    except JobmillError as error:
        reports.send(Errored(error=str(error), error_type=outcomes.type_name(error), traceback=outcomes.printed(error)))
        return
    if inside is not None:
        # Send the outcome before the lifespans close: it counts, however they end.
        context._state = inside.state
        reports.send(inside.run(handler, context, call))
    elif handler.is_async:
        with asyncio.Runner() as runner:
            # Send the outcome before the loop closes: tasks that the handler left running must not change it.
            reports.send(_outcome(handler, lambda: runner.run(call()), context))
    else:
        reports.send(_outcome(handler, call, context))


def _outcome(handler: Handler[..., Any], call: Callable[[], Any], context: Context) -> Outcome:
    try:
        return end_of(handler, context, call())
    except BaseException as error:
        return outcomes.raised(error, handler, context.attempt)


class Surroundings:
    """The lifespans and `jobs.around` functions of the applications whose handlers run in this process."""

    def __init__(self) -> None:
        self._insides: dict[int, Inside] = {}
        self._inside: Inside | None = None
        self._threads = threading.active_count()

    def enter(self, hooks: Hooks) -> Inside | None:
        """Begin an attempt: open the lifespans, unless they are open. None if the application has no such function."""
        self._inside = self._insides.get(id(hooks))
        if self._inside is None and (hooks.lifespans or hooks.around.functions):
            from jobmill.worker.isolate.inside import Inside

            self._inside = Inside(hooks)
            try:
                self._inside.open()
            except BaseException:
                self._inside.close()
                raise
            self._insides[id(hooks)] = self._inside
        self._threads = threading.active_count()
        return self._inside

    def has_left_overs(self) -> bool:
        """Whether the last attempt has left threads or tasks running."""
        has_tasks = self._inside is not None and self._inside.has_left_tasks
        return has_tasks or threading.active_count() > self._threads

    def close(self) -> None:
        """Close the lifespans."""
        for inside in self._insides.values():
            inside.close()


def die_with_worker(fd: int, checked_fd: int | None = None) -> None:
    """Kill this process and all processes that it starts when the worker's end of the pipe is closed.

    On Linux the kernel does it: it sends a signal to the process group when the file changes. That works while C code
    holds the GIL, and includes grandchildren. PR_SET_PDEATHSIG would kill only the child, and already when the thread
    that started it ends. `checked_fd` shows whether the pipe is closed already, if `fd` cannot.
    """
    if sys.platform == "linux":
        fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
        poll = select.poll()
        poll.register(fd if checked_fd is None else checked_fd, select.POLLIN)
        if poll.poll(0):  # the worker died before the signal was requested
            _end_group()
    else:
        threading.Thread(target=_watch, args=(fd,), daemon=True).start()


def _watch(fd: int) -> None:
    os.read(fd, 1)
    _end_group()


def _end_group() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)
