"""The story of `jobmill demo`, collected from events and the store: one row per job, and lines in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from jobmill.cli.demo.handlers import QUEUE, nothing
from jobmill.cli.output import duration_text, one_line
from jobmill.core.events import Event
from jobmill.core.job import Job
from jobmill.handlers.enqueued import Enqueued

#: One sign per attempt.
SIGNS = {"waiting": "○", "running": "●", "errored": "!", "succeeded": "✔", "failed": "✘", "cancelled": "⊘"}


@dataclass
class StoryRow:
    """One job of the story."""

    kind: str
    name: str
    id: str
    note: str = ""
    job: Job | None = None
    #: The outcomes of its attempts, as keys of SIGNS.
    attempts: list[str] = field(default_factory=list)

    @property
    def is_final(self) -> bool:
        """Whether the job is final."""
        return self.job is not None and self.job.is_final


@dataclass(frozen=True)
class StoryLine:
    """One event."""

    at_s: float
    kind: str
    name: str
    text: str

    def __str__(self) -> str:
        """The line as it is printed without a terminal."""
        return f"{self.at_s:5.1f} s  {self.kind:<12} {self.name:<14} {self.text}"


class Story:
    """Rows and lines. `on_line` is called with each new line."""

    def __init__(self, on_line: Callable[[StoryLine], None] = lambda line: None) -> None:
        self.rows: dict[str, StoryRow] = {}
        self.lines: list[StoryLine] = []
        #: Set when all rows are added and all jobs are final.
        self.over = asyncio.Event()
        self.is_complete = False
        #: The number of jobs of the burst; None before it. Events count them, which is cheaper than queries.
        self.burst: int | None = None
        self.burst_done = 0
        self.burst_over = asyncio.Event()
        self._on_line = on_line
        self._began = time.monotonic()
        self._early: dict[str, list[Event]] = {}

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def add_line(self, kind: str, name: str, text: str) -> None:
        """Add a line."""
        line = StoryLine(self.seconds, kind, name, text)
        self.lines.append(line)
        self._on_line(line)

    def add(self, kind: str, name: str, enqueued: Enqueued[Any], note: str) -> None:
        """A job was enqueued."""
        self.rows[enqueued.id] = StoryRow(kind, name, enqueued.id)
        self.add_line(kind, name, f"{enqueued.status}{note and ', '}{note}")
        # A fast worker may have claimed the job before `enqueue` returned.
        for event in self._early.pop(enqueued.id, ()):
            self.on_event(event)

    # ------------------------------------------------------------------------------------------------ what happens

    def on_event(self, event: Event) -> None:
        """The hook for all events."""
        row = self.rows.get(event.job_id)
        if event.queue != QUEUE:
            self._count_burst(event)
            return
        if row is None:
            self._early.setdefault(event.job_id, []).append(event)
            return
        _keep_attempt(row.attempts, event.type)
        text = _text(event)
        if text:
            self.add_line(row.kind, row.name, text)

    def _count_burst(self, event: Event) -> None:
        if event.type == "succeeded" and event.name == nothing.name:
            self.burst_done += 1
            if self.burst_done == self.burst:
                self.burst_over.set()

    def on_jobs(self, jobs: Iterable[Job]) -> None:
        """Update the rows with the jobs of the store."""
        for job in jobs:
            row = self.rows.get(job.id)
            if row is None:
                continue
            before, row.job = row.job, job
            # The client cancels the job, so no worker reports an event.
            if job.state == "cancelled" and (before is None or before.state != "cancelled"):
                _keep_attempt(row.attempts, "cancelled")
                self.add_line(row.kind, row.name, "cancelled while it ran")
        if self.is_complete and all(row.is_final for row in self.rows.values()):
            self.over.set()


def _keep_attempt(attempts: list[str], type: str) -> None:
    if type == "claimed":
        attempts.append("running")
    elif type in SIGNS:
        # One attempt may have the events errored and failed; the last one counts.
        attempts[-1:] = [type]


def _text(event: Event) -> str:
    """The text of a line for an event; empty if the event adds nothing."""
    data = event.data
    if event.type == "claimed":
        return f"running, attempt {event.attempt}"
    if event.type == "progress":
        return f"progress {data['value']:.0f} %" if data["value"] % 25 == 0 else ""
    if event.type == "errored":
        return f"attempt {event.attempt} errored: {one_line(str(data['error']), 60)}"
    if event.type == "retrying":
        return f"retrying in {duration_text(data['delay_ms'])}"
    if event.type == "failed":
        return f"failed: no attempts left after {event.attempt}"
    if event.type == "succeeded":
        return f"succeeded: {data['result']}"
    return ""
