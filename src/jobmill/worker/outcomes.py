"""Outcomes: turns what a handler returned or raised into a value from which the core decides."""

from __future__ import annotations

import logging
import traceback
from typing import Any

import msgspec

from jobmill.core.durations import to_ms
from jobmill.core.lifecycle import Errored, Outcome, Snoozed, Succeeded
from jobmill.core.limits import storable
from jobmill.core.payload import check_size
from jobmill.errors import Fail, JobmillError, Snooze
from jobmill.handlers.handler import Handler
from jobmill.handlers.signature import to_plain

log = logging.getLogger("jobmill")

TRACEBACK_KEPT = 16_000
ERROR_KEPT = 4_000


def returned(value: Any) -> Outcome:
    """The handler returned. A result that is not JSON is an error of the attempt."""
    if value is None:
        return _NOTHING
    try:
        encoded = msgspec.json.encode(to_plain(value, "result"))
        check_size(encoded)
    except JobmillError as error:
        return Errored(error=f"the handler's result cannot be stored: {error}")
    return Succeeded(encoded)


_NOTHING = Succeeded()


def raised(error: BaseException, handler: Handler[..., Any], attempt: int) -> Outcome:
    """The handler raised. Snooze runs the job later, Fail ends its attempts, and anything else is an error."""
    if isinstance(error, Snooze):
        try:
            return Snoozed(to_ms(error.delay, "delay"))
        except Exception as wrong:
            error = wrong
    return Errored(
        error=described(error),
        traceback=printed(error),
        final=isinstance(error, Fail),
        delay_ms=own_delay(error, handler, attempt),
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
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and _is_ours(frames.tb_frame.f_globals.get("__name__")):
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, frames))
    except Exception:
        text = f"{type(error).__name__} (its traceback cannot be printed)"
    return storable(text[-TRACEBACK_KEPT:])


def own_delay(error: BaseException, handler: Handler[..., Any], attempt: int) -> int | None:
    """The delay from the user's own backoff function; None for the default backoff, also when the function raises."""
    if handler.own_backoff is None:
        return None
    try:
        return to_ms(handler.own_backoff(attempt, error), "backoff")
    except BaseException:  # also SystemExit: no function of the user may stop the worker
        log.exception("the backoff function of handler %r raised an error; the default backoff is used", handler.name)
        return None


def _is_ours(module: object) -> bool:
    # In an isolated process, the frames of asyncio are above those of the handler.
    return isinstance(module, str) and module.startswith(("jobmill.", "asyncio."))
