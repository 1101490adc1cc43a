"""The story of `jobmill demo`, collected from events and the store: one row per job, and lines in order."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import click

from jobmill.cli.demo.handlers import QUEUE, nothing
from jobmill.cli.output import duration_text, one_line
from jobmill.core.events import Event
from jobmill.core.job import Job
from jobmill.handlers.enqueued import Enqueued

#: One sign per attempt.
SIGNS = {
    "waiting": "○",
    "running": "●",
    "errored": "!",
    "crashed": "†",
    "succeeded": "✔",
    "failed": "✘",
    "cancelled": "⊘",
}
#: Maximum width of the text in a line, so that the line fits into 80 columns.
TEXT_WIDTH = 47


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


@dataclass(frozen=True)
class StoryLine:
    """One event."""

    at_s: float
    kind: str
    name: str
    text: str

    def __str__(self) -> str:
        """The line as it is printed without a terminal."""
        return f"{self.at_s:4.1f} s  {self.kind:<10} {self.name:<13} {one_line(self.text, TEXT_WIDTH)}"


class Story:
    """Rows and lines. It prints each new line, unless a live view shows it."""

    def __init__(self, *, prints: bool) -> None:
        self.rows: dict[str, StoryRow] = {}
        self.lines: list[StoryLine] = []
        #: The number of jobs of the burst; None before the burst. Counting events is cheaper than queries.
        self.burst: int | None = None
        self.burst_done = 0
        self._prints = prints
        self._began = time.monotonic()
        self._early: dict[str, list[Event]] = {}

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    @property
    def is_over(self) -> bool:
        """Whether all jobs are final."""
        return all(row.job is not None and row.job.is_final for row in self.rows.values())

    def add_line(self, kind: str, name: str, text: str) -> None:
        """Add a line."""
        line = StoryLine(self.seconds, kind, name, text)
        self.lines.append(line)
        if self._prints:
            click.echo(str(line))

    def add(self, kind: str, name: str, enqueued: Enqueued[Any], note: str) -> None:
        """A job was enqueued."""
        self.rows[enqueued.id] = StoryRow(kind, name, enqueued.id)
        self.add_line(kind, name, f"{enqueued.status}{note and ', '}{note}")
        # A fast worker may have claimed the job before `enqueue` returned.
        for event in self._early.pop(enqueued.id, ()):
            self.on_event(event)

    def is_running(self, kind: str) -> bool:
        """Whether the job of this kind runs."""
        jobs = [row.job for row in self.rows.values() if row.kind == kind]
        return any(job is not None and job.state == "running" for job in jobs)

    # ------------------------------------------------------------------------------------------------ what happens

    def on_event(self, event: Event) -> None:
        """The hook for all events."""
        row = self.rows.get(event.job_id)
        if event.queue != QUEUE:
            self.burst_done += event.type == "succeeded" and event.name == nothing.name
        elif row is None:
            self._early.setdefault(event.job_id, []).append(event)
        else:
            _keep_attempt(row.attempts, event.type)
            if text := _text(event):
                self.add_line(row.kind, row.name, text)

    def on_other_worker(self, kind: str, what: str, text: str) -> None:
        """Something happened to a job in another process, whose events are not reported here."""
        for row in [row for row in self.rows.values() if row.kind == kind]:
            row.attempts[-1:] = [what]
            row.note = "worker was killed" if what == "crashed" else ""
            self.add_line(kind, row.name, text)

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
        return f"errored: {data['error']}"
    if event.type == "retrying":
        return f"retrying in {duration_text(data['delay_ms'])}"
    if event.type == "failed":
        return f"failed: no attempts left after {event.attempt}"
    if event.type == "succeeded":
        return f"succeeded: {data['result']}"
    return ""
