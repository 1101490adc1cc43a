"""Hooks: functions of the application that are called on events and moments of this process.

An error in a hook is logged and never affects a job.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from jobmill.core.events import EVENT_TYPES, Event
from jobmill.core.values import NewJob, Receipt
from jobmill.errors import InvalidValue
from jobmill.handlers.around import Around, async_manager
from jobmill.handlers.observers import Observers
from jobmill.runtime.tasks import being_cancelled

log = logging.getLogger("jobmill")
F = TypeVar("F", bound=Callable[..., Any])
Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
LifespanT = TypeVar("LifespanT", bound=Callable[[], AsyncIterator[Any] | AbstractAsyncContextManager[Any]])

#: Moments of a worker. Hooks get the worker; "error" hooks get the error and the job (None outside of jobs).
Moment: TypeAlias = Literal["start", "stop", "idle", "error"]
MOMENTS: tuple[str, ...] = get_args(Moment)


class Hooks:
    """The hooks of one application, by event type and moment; and its other functions that are not handlers."""

    def __init__(self) -> None:
        self._hooks: dict[str, list[Callable[..., Any]]] = {}
        self.observers = Observers()
        self.around = Around()
        #: Each worker opens them when it starts.
        self.lifespans: list[Lifespan] = []
        #: Whether any hook is called on events; if not, no events are made.
        self.wants_events = False
        #: Called with the new jobs and their receipts after each enqueue of this process.
        self.count_enqueued: list[Callable[[Sequence[NewJob], Sequence[Receipt]], None]] = []

    def add(self, what: str, hook: F) -> F:
        """Call `hook` at a moment ("start"), on an event ("succeeded") or on every event ("*")."""
        if what not in (*MOMENTS, *EVENT_TYPES, "*"):
            raise InvalidValue("hook", "one of " + ", ".join((*MOMENTS, *EVENT_TYPES, "*")), what)
        self._hooks.setdefault(what, []).append(hook)
        self.wants_events = self.wants_events or what not in MOMENTS
        return hook

    def add_lifespan(self, function: LifespanT) -> LifespanT:
        """Open what `function` yields when a worker starts, and close it when the worker stops."""
        made = async_manager(function)
        if made is None:
            raise InvalidValue("lifespan", "an async generator function, with one yield", function)
        self.lifespans.append(made)
        return function

    def has(self, what: str) -> bool:
        """Whether any hook is called at this moment."""
        return what in self._hooks

    async def call_event(self, event: Event) -> None:
        """Call the hooks of an event, in order."""
        for hook in (*self._hooks.get(event.type, ()), *self._hooks.get("*", ())):
            await _call(hook, event)

    async def call_moment(self, what: str, *args: Any) -> None:
        """Call the hooks of a moment, in order."""
        for hook in self._hooks.get(what, ()):
            await _call(hook, *args)


async def _call(hook: Callable[..., Any], *args: Any) -> None:
    try:
        answer = hook(*args)
        if inspect.isawaitable(answer):
            await answer
    except (Exception, asyncio.CancelledError) as error:
        if being_cancelled(error):
            raise
        log.exception("the hook %r raised an error; no job is affected", hook)
