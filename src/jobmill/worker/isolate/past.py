"""What an isolated process knows of earlier runs of its job, and how it records steps."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import Any

from jobmill.core.flows import Dependency, Recorded, Step
from jobmill.core.lifecycle import Outcome
from jobmill.handlers.context import Context
from jobmill.handlers.handler import Handler
from jobmill.worker import outcomes
from jobmill.worker.durable import end, may_have_recorded
from jobmill.worker.isolate.protocol import Reports, Request


def end_of(handler: Handler[..., Any], context: Context, value: Any) -> Outcome:
    """The handler has returned a value: it must have taken the steps that earlier runs have recorded."""
    outcome = outcomes.returned(value, handler)
    if context.is_durable or (handler.arguments.takes_context and may_have_recorded(context.job)):
        outcome = run_at_once(end(context, outcome))
    return outcome


class RequestAccess:
    """How a run in this process knows its past, and records its steps: no method waits for an event loop."""

    def __init__(self, request: Request, reports: Reports) -> None:
        self._request = request
        self._reports = reports
        self._began = time.monotonic()

    async def recorded(self) -> Recorded:
        """What earlier runs have recorded."""
        return self._request.recorded

    async def dependencies(self) -> list[Dependency]:
        """The jobs that this job has waited for."""
        return self._request.dependencies

    async def record(self, step: Step) -> bool:
        """Let the worker store a step."""
        return self._reports.record(step)

    def now_ms(self) -> int:
        """The time of the store, as it was in the request, and what has passed since."""
        return self._request.now_ms + round((time.monotonic() - self._began) * 1000)


def run_at_once(call: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("a durable run in an isolated process must not wait for an event loop")
