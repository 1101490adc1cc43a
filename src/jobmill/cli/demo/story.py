"""What happens in `jobmill demo`, collected from events and from the store: a row a job, and lines in their order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from jobmill.cli.demo.handlers import QUEUE, nothing
from jobmill.cli.output import lasting, one_line
from jobmill.core.events import Event
from jobmill.core.job import Job
from jobmill.handlers.enqueued import Enqueued

#: One sign an attempt.
SIGNS = {"waiting": "○", "running": "●", "errored": "!", "succeeded": "✔", "failed": "✘", "cancelled": "⊘"}


@dataclass
class Row:
    """One job of the story."""

    kind: str
    name: str
    id: str
    note: str = ""
    job: Job | None = None
    #: What its attempts came to, in words of SIGNS.
    attempts: list[str] = field(default_factory=list)

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.job is not None and self.job.is_final


@dataclass(frozen=True)
class StoryLine:
    """Something that happened."""

    at_s: float
    kind: str
    name: str
    text: str

    def __str__(self) -> str:
        """As the trace prints it."""
        return f"{self.at_s:5.1f} s  {self.kind:<12} {self.name:<14} {self.text}"


class Story:
    """Rows and lines; `on_line` is told each line as it comes."""

    def __init__(self, on_line: Callable[[StoryLine], None] = lambda line: None) -> None:
        self.rows: dict[str, Row] = {}
        self.lines: list[StoryLine] = []
        #: Set when every job is final, once it is known that there will be no more rows.
        self.over = asyncio.Event()
        self.is_complete = False
        #: How many jobs the burst has; None before it. Told by events, so that nobody has to count meanwhile.
        self.burst: int | None = None
        self.burst_done = 0
        self.burst_over = asyncio.Event()
        self._on_line = on_line
        self._began = time.monotonic()
        self._early: dict[str, list[Event]] = {}

    @property
    def seconds(self) -> float:
        """How long it has been going on."""
        return time.monotonic() - self._began

    def say(self, kind: str, name: str, text: str) -> None:
        """Add a line."""
        line = StoryLine(self.seconds, kind, name, text)
        self.lines.append(line)
        self._on_line(line)

    def add(self, kind: str, name: str, enqueued: Enqueued[Any], note: str) -> None:
        """A job was enqueued."""
        self.rows[enqueued.id] = Row(kind, name, enqueued.id)
        self.say(kind, name, f"{enqueued.status}{note and ', '}{note}")
        # A fast worker has claimed it before we have heard that it exists.
        for event in self._early.pop(enqueued.id, ()):
            self.on_event(event)

    # ------------------------------------------------------------------------------------------------ what happens

    def on_event(self, event: Event) -> None:
        """A hook: something happened to a job."""
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
            self.say(row.kind, row.name, text)

    def _count_burst(self, event: Event) -> None:
        if event.type == "succeeded" and event.name == nothing.name:
            self.burst_done += 1
            if self.burst_done == self.burst:
                self.burst_over.set()

    def on_jobs(self, jobs: Iterable[Job]) -> None:
        """How the store has them now."""
        for job in jobs:
            row = self.rows.get(job.id)
            if row is None:
                continue
            before, row.job = row.job, job
            # Cancelling is the client's act: no worker tells of it.
            if job.state == "cancelled" and (before is None or before.state != "cancelled"):
                _keep_attempt(row.attempts, "cancelled")
                self.say(row.kind, row.name, "cancelled while it ran")
        if self.is_complete and all(row.is_final for row in self.rows.values()):
            self.over.set()


def _keep_attempt(attempts: list[str], type: str) -> None:
    if type == "claimed":
        attempts.append("running")
    elif type in SIGNS:
        # errored and failed are told of the same attempt; the last word counts.
        attempts[-1:] = [type]


def _text(event: Event) -> str:
    """What a line says about an event; nothing where it would only repeat."""
    data = event.data
    if event.type == "claimed":
        return f"running, attempt {event.attempt}"
    if event.type == "progress":
        return f"progress {data['value']:.0f} %" if data["value"] % 25 == 0 else ""
    if event.type == "errored":
        return f"attempt {event.attempt} errored: {one_line(str(data['error']), 60)}"
    if event.type == "retrying":
        return f"retrying in {lasting(data['delay_ms'])}"
    if event.type == "failed":
        return f"failed: no attempts left after {event.attempt}"
    if event.type == "succeeded":
        return f"succeeded: {data['result']}"
    return ""
