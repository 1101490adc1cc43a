"""One run of one job in this worker, and the running on which all of them stand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from jobmill.core.lifecycle import Policy
from jobmill.core.values import Claimed
from jobmill.handlers.context import Context, ReportFunction
from jobmill.handlers.handler import Handler

#: Why a run is stopped from outside. lost: the store says it is not ours any more (or our own lease time ran out).
Why: TypeAlias = Literal["timeout", "lost", "shutdown"]


class Run:
    """A claimed job, what runs it, and until when it is ours by our own clock."""

    __slots__ = (
        "_context",
        "_reporting",
        "claimed",
        "expires",
        "handler",
        "in_thread",
        "over",
        "rules",
        "started",
        "task",
        "why",
    )

    def __init__(
        self,
        claimed: Claimed,
        handler: Handler[..., Any],
        rules: Policy,
        expires: float,
        reporting: Callable[[Claimed], ReportFunction],
    ) -> None:
        self.claimed = claimed
        self.handler = handler
        self.rules = rules
        self._reporting = reporting
        self._context: Context | None = None
        self.expires = expires
        self.task: asyncio.Task[None] | None = None
        self.why: Why | None = None
        self.started = False
        self.over = False
        # A thread cannot be stopped: while it runs on, it keeps its slot.
        self.in_thread = False

    @property
    def report(self) -> ReportFunction:
        """Takes progress and log lines of this run."""
        return self._reporting(self.claimed)

    @property
    def context(self) -> Context:
        """The context for the handler; made only for handlers that take one."""
        if self._context is None:
            self._context = Context(self.claimed.job, self.report)
        return self._context

    def stop(self, why: Why) -> None:
        """Stop it from outside, once; the first reason counts, but what is lost after that is not settled either."""
        if self.why is not None and why == "lost" and not self.over:
            self.why = why
        if self.why is None and not self.over:
            self.why = why
            if self._context is not None:
                self._context.cancel()
            if self.started:
                self._cancel()
            else:
                # A task that is cancelled before its first step never runs a line, and nobody would hear of its end.
                asyncio.get_running_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class RunningJobs:
    """All runs whose lease this worker holds, until their settlement is written."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        #: How many of each name run, for the handlers that limit it.
        self.of_name: dict[str, int] = {}
        #: Whom to wake when room of a name becomes free: any exchanger may have use for it.
        self.wakes: list[Callable[[], None]] = []

    def add(self, run: Run) -> Run | None:
        """A run begins; an older one of the same job, whose lease must have ended, makes place for it."""
        older = self.runs.get(run.claimed.job.id)
        self.runs[run.claimed.job.id] = run
        return older

    def drop(self, run: Run) -> None:
        """Its lease is not ours any more: settled, or lost."""
        if self.runs.get(run.claimed.job.id) is run:
            del self.runs[run.claimed.job.id]

    def take_room(self, name: str, count: int = 1) -> None:
        """Use (or give back, with a negative count) room of a name."""
        self.of_name[name] = self.of_name.get(name, 0) + count

    def free_room(self, name: str) -> None:
        """A run of a name that is limited has ended."""
        self.take_room(name, -1)
        for wake in self.wakes:
            wake()
