"""The jobs by id, and the indexes that claims and unique keys need."""

from __future__ import annotations

import bisect
from collections import defaultdict
from typing import TypeAlias

from msgspec import Struct, field, structs

from jobmill.core.job import LIVE, Job, Keep
from jobmill.core.values import Lease

#: A waiting job's position in its index range: due time, order of enqueueing, id.
Position: TypeAlias = tuple[int, int, str]


class StoredJob(Struct):
    """One job, and what the store knows about it that a Job does not show."""

    seq: int
    job: Job
    token: str | None = None
    lease_until_ms: int = 0
    keep: Keep = Keep()

    @property
    def position(self) -> Position:
        """Where the job stands among the jobs of its queue, name and priority."""
        return (self.job.due_ms, self.seq, self.job.id)


class JobTable(Struct):
    """All jobs: by id, the waiting ones in index ranges, the running ones by queue, and the owners of unique keys."""

    by_id: dict[str, StoredJob] = field(default_factory=dict)
    owners: dict[tuple[str, str, str], str] = field(default_factory=dict)
    #: An index range is all waiting jobs of one queue, priority and name, in the order in which they are due.
    waiting: defaultdict[str, dict[tuple[int, str], list[Position]]] = field(default_factory=lambda: defaultdict(dict))
    running: defaultdict[str, dict[str, StoredJob]] = field(default_factory=lambda: defaultdict(dict))
    last_seq: int = 0

    def add(self, job: Job) -> None:
        """Store a new job."""
        self.last_seq += 1
        stored = self.by_id[job.id] = StoredJob(self.last_seq, job)
        self._index(stored)

    def write(self, stored: StoredJob, **fields: object) -> Job:
        """Give a job new values for these fields."""
        self._unindex(stored)
        stored.job = structs.replace(stored.job, **fields)
        self._index(stored)
        return stored.job

    def remove(self, stored: StoredJob) -> None:
        """Delete a job."""
        self._unindex(stored)
        del self.by_id[stored.job.id]

    def owner(self, queue: str, name: str, unique_key: str | None) -> StoredJob | None:
        """The live job that has a unique key."""
        id = None if unique_key is None else self.owners.get((queue, name, unique_key))
        return None if id is None else self.by_id[id]

    def held(self, lease: Lease, now_ms: int) -> StoredJob | None:
        """The guard: the job, while the token of this lease matches and the lease has not ended."""
        stored = self.by_id.get(lease.id)
        return stored if stored and stored.token == lease.token and stored.lease_until_ms > now_ms else None

    def _index(self, stored: StoredJob) -> None:
        job = stored.job
        if job.state == "waiting":
            bisect.insort(self.waiting[job.queue].setdefault((job.priority, job.name), []), stored.position)
        elif job.state == "running":
            self.running[job.queue][job.id] = stored
        if job.unique_key is not None and job.state in LIVE:
            self.owners[job.queue, job.name, job.unique_key] = job.id

    def _unindex(self, stored: StoredJob) -> None:
        job = stored.job
        if job.state == "waiting":
            positions = self.waiting[job.queue][job.priority, job.name]
            del positions[bisect.bisect_left(positions, stored.position)]
        elif job.state == "running":
            del self.running[job.queue][job.id]
        if job.unique_key is not None and job.state in LIVE:
            del self.owners[job.queue, job.name, job.unique_key]
