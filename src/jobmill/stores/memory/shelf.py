"""The shelf: jobs by id, and the orders in which the memory store looks at them."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import TypeAlias

from msgspec import structs

from jobmill.core.job import LIVE, Job, Keep

#: A waiting job's place in claim order: priority, due time, order of enqueueing, id.
Place: TypeAlias = tuple[int, int, int, str]


class Entry:
    """One job and what the store knows beside it."""

    __slots__ = ("job", "keep", "lease_until_ms", "seq", "token")

    def __init__(self, seq: int, job: Job) -> None:
        self.seq = seq
        self.job = job
        self.token: str | None = None
        self.lease_until_ms = 0
        self.keep = Keep()

    @property
    def place(self) -> Place:
        """Where the job stands in claim order."""
        return (self.job.priority, self.job.due_ms, self.seq, self.job.id)


class Shelf:
    """All jobs, with the waiting ones in claim order, the running ones by queue, and the owners of unique keys."""

    def __init__(self) -> None:
        self._seq = 0
        self.entries: dict[str, Entry] = {}
        self.owners: dict[tuple[str, str, str], str] = {}
        self.waiting: dict[str, dict[str, list[Place]]] = {}
        self.running: dict[str, dict[str, Entry]] = {}

    def add(self, job: Job) -> Entry:
        """Put a new job on the shelf."""
        self._seq += 1
        entry = self.entries[job.id] = Entry(self._seq, job)
        self._index(entry)
        return entry

    def write(self, entry: Entry, **changed: object) -> Job:
        """Put another value in the job's place."""
        self._unindex(entry)
        entry.job = structs.replace(entry.job, **changed)
        self._index(entry)
        return entry.job

    def remove(self, entry: Entry) -> None:
        """Take a job off the shelf."""
        self._unindex(entry)
        del self.entries[entry.job.id]

    def owner(self, job: Job) -> str | None:
        """The live job that has this job's unique key."""
        return None if job.unique_key is None else self.owners.get((job.queue, job.name, job.unique_key))

    def due(self, queue: str, name: str, most: int, now_ms: int) -> list[Place]:
        """The first `most` jobs in claim order that are due: within one priority all that are due stand in front."""
        line = self.waiting.get(queue, {}).get(name, [])
        found: list[Place] = []
        at = 0
        while at < len(line) and len(found) < most:
            if line[at][1] <= now_ms:
                found.append(line[at])
                at += 1
            else:
                at = _next_priority(line, at)
        return found

    def next_due(self, queue: str, names: Iterator[str]) -> int | None:
        """The earliest due time of waiting jobs with these names."""
        lines = self.waiting.get(queue, {})
        return min((due for name in names for due in _first_dues(lines.get(name, []))), default=None)

    def _index(self, entry: Entry) -> None:
        job = entry.job
        if job.state == "waiting":
            bisect.insort(self.waiting.setdefault(job.queue, {}).setdefault(job.name, []), entry.place)
        elif job.state == "running":
            self.running.setdefault(job.queue, {})[job.id] = entry
        if job.unique_key is not None and job.state in LIVE:
            self.owners[job.queue, job.name, job.unique_key] = job.id

    def _unindex(self, entry: Entry) -> None:
        job = entry.job
        if job.state == "waiting":
            line = self.waiting[job.queue][job.name]
            del line[bisect.bisect_left(line, entry.place)]
        elif job.state == "running":
            del self.running[job.queue][job.id]
        if job.unique_key is not None and job.state in LIVE:
            del self.owners[job.queue, job.name, job.unique_key]


def _first_dues(line: list[Place]) -> Iterator[int]:
    """The earliest due time of each priority in a line."""
    at = 0
    while at < len(line):
        yield line[at][1]
        at = _next_priority(line, at)


def _next_priority(line: list[Place], at: int) -> int:
    return bisect.bisect_left(line, (line[at][0] + 1,), at)
