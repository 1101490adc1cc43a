"""Events and hooks: functions of the user's own that are told what happens in this process.

A hook never harms a job: what it raises is logged and goes no further.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from jobmill.core.events import EVENT_TYPES, Event, EventType
from jobmill.errors import InvalidValue
from jobmill.runtime.tasks import being_cancelled

__all__ = ["EVENT_TYPES", "MOMENTS", "Event", "EventType", "Hooks", "Moment"]

log = logging.getLogger("jobmill")
F = TypeVar("F", bound=Callable[..., Any])

#: Moments of a worker: they get the worker; on_error gets the error and the job (None outside of jobs).
Moment: TypeAlias = Literal["start", "stop", "idle", "error"]
MOMENTS: tuple[str, ...] = get_args(Moment)


class Hooks:
    """Who wants to be told what."""

    def __init__(self) -> None:
        self._wanting: dict[str, list[Callable[..., Any]]] = {}
        #: Whether anybody listens to facts: if not, nobody needs to make them.
        self.wants_events = False

    def add(self, what: str, hook: F) -> F:
        """Tell `hook` about a moment ("start"), a fact ("succeeded") or every fact ("*")."""
        if what not in (*MOMENTS, *EVENT_TYPES, "*"):
            raise InvalidValue("hook", "one of " + ", ".join((*MOMENTS, *EVENT_TYPES, "*")), what)
        self._wanting.setdefault(what, []).append(hook)
        self.wants_events = self.wants_events or what not in MOMENTS
        return hook

    async def tell(self, event: Event) -> None:
        """Tell a fact."""
        for hook in (*self._wanting.get(event.type, ()), *self._wanting.get("*", ())):
            await _call(hook, event)

    async def moment(self, what: str, *args: Any) -> None:
        """Tell a moment."""
        for hook in self._wanting.get(what, ()):
            await _call(hook, *args)


async def _call(hook: Callable[..., Any], *args: Any) -> None:
    try:
        answer = hook(*args)
        if inspect.isawaitable(answer):
            await answer
    except (Exception, asyncio.CancelledError) as error:
        if being_cancelled(error):
            raise
        log.exception("the hook %r raised; its job is not affected", hook)
