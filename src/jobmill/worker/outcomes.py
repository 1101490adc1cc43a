"""Outcomes: turns what a handler returned or raised into a value from which the core decides."""

from __future__ import annotations

import contextlib
import os
import site
import traceback
from types import TracebackType
from typing import Any

import msgspec
from msgspec import structs

from jobmill.core.durations import shown_ms, to_ms
from jobmill.core.lifecycle import Errored, Outcome, Snoozed, Succeeded
from jobmill.core.limits import storable
from jobmill.core.payload import check_size
from jobmill.core.values import Refused
from jobmill.errors import Fail, InvalidValue, PayloadTooLarge, Snooze, StepsChanged
from jobmill.handlers.conversion import to_plain
from jobmill.handlers.durable import Suspend
from jobmill.handlers.handler import Handler

TRACEBACK_KEPT = 16_000
ERROR_KEPT = 4_000


def returned(value: Any, handler: Handler[..., Any]) -> Outcome:
    """The handler returned. If its result is not JSON, the job fails: another run would do everything once more."""
    if value is None or not handler.keep_result:
        return _NOTHING
    try:
        encoded = msgspec.json.encode(to_plain(value, "result"))
        check_size(encoded, field="result")
    except InvalidValue as error:
        why = str(error) if isinstance(error, PayloadTooLarge) else error.without_value()
        return Errored(error=Refused(why, of_result=True).error, error_type=type_name(error), final=True)
    return Succeeded(encoded)


_NOTHING = Succeeded()


def unfit(error: InvalidValue) -> Errored:
    """The payload does not fit the handler. It will not fit at the next attempt either."""
    return Errored(error=error.without_value(), error_type=type_name(error), final=True)


def raised(error: BaseException, handler: Handler[..., Any], attempt: int) -> Outcome:
    """The handler raised. Snooze runs the job later, and anything else is an error.

    Fail ends the attempts, and so does an error that the handler's `fail_on` names or its `retry_on` does not name.
    """
    if isinstance(error, Suspend):
        return error.outcome or Errored(error=str(error))
    if isinstance(error, Snooze):
        try:
            return Snoozed(to_ms(error.delay, "delay"))
        except Exception as wrong:
            error = wrong
    final = isinstance(error, Fail | StepsChanged) or not handler.retries(error)
    kind = type_name(error)
    outcome = Errored(
        error=described(error), error_type=kind, traceback=printed(error), location=location(error), final=final
    )
    return with_own_delay(outcome, error, handler, attempt)


def timed_out(timeout_ms: int, handler: Handler[..., Any], attempt: int) -> Errored:
    """The handler was stopped at its timeout. For `retry_on`, `fail_on` and the backoff this is a TimeoutError."""
    error = TimeoutError(f"timed out after {shown_ms(timeout_ms)}")
    outcome = Errored(error=str(error), error_type=type_name(error), final=not handler.retries(error))
    return with_own_delay(outcome, error, handler, attempt)


def type_name(error: BaseException) -> str:
    """The qualified name of the class of an error, without "builtins"."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return storable(name[:ERROR_KEPT])


def location(error: BaseException) -> str | None:
    """The innermost frame outside of libraries: file, line and function; the innermost one if all are in libraries."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if found is None or (not file.startswith(_LIBRARIES) and not file.startswith("<")):
            found = f"{os.path.basename(file)}:{line} in {frame.f_code.co_name}"
    return None if found is None else storable(found[:ERROR_KEPT])


#: Where the files of libraries are: Python's own, installed ones, and ours.
_LIBRARIES = (
    *(folder + os.sep for folder in (os.path.dirname(os.__file__), *site.getsitepackages())),
    os.path.dirname(os.path.dirname(__file__)) + os.sep,
)


def described(error: BaseException) -> str:
    """Type and message, as Python prints them; for Fail only the message."""
    try:
        text = str(error)
    except Exception:
        text = "(its message cannot be printed)"
    if not isinstance(error, Fail) or not text:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return storable(text[:ERROR_KEPT])


def printed(error: BaseException) -> str:
    """The traceback without the frames that lead to the handler; only its end if it is very long."""
    try:
        text = "".join(traceback.format_exception(type(error), error, frames_of_handler(error)))
    except Exception:
        text = f"{type(error).__name__} (its traceback cannot be printed)"
    return storable(text[-TRACEBACK_KEPT:])


def frames_of_handler(error: BaseException) -> TracebackType | None:
    """The traceback without the frames that lead to the handler."""
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and _is_ours(frames.tb_frame.f_globals.get("__name__")):
        frames = frames.tb_next
    return frames


def with_own_delay(outcome: Errored, error: BaseException, handler: Handler[..., Any], attempt: int) -> Errored:
    """The outcome with the delay from the user's own backoff function. If that returns None or raises, it is final."""
    if handler.own_backoff is None or outcome.final:
        return outcome
    try:
        delay = handler.own_backoff(attempt, error)
        delay_ms = None if delay is None else to_ms(delay, "backoff")
    except BaseException as raised:  # also SystemExit: no function of the user may stop the worker
        note = f"The backoff function raised an error too:\n{printed(raised)}"
        with contextlib.suppress(Exception):  # an error class may refuse attributes
            error.add_note(note)  # the log line about the job prints it after the traceback
        both = f"{outcome.error}; then the backoff function raised {described(raised)}"
        text = f"{outcome.traceback or ''}{note}"[-TRACEBACK_KEPT:]
        return structs.replace(outcome, error=both[:ERROR_KEPT], traceback=text, final=True)
    return structs.replace(outcome, delay_ms=delay_ms, final=delay_ms is None)


def _is_ours(module: object) -> bool:
    # In an isolated process the frames of asyncio are above those of the handler; of contextlib, above `jobs.around`.
    return isinstance(module, str) and module.startswith(("jobmill.", "asyncio.", "contextlib"))
