"""The jobs by id, and the indexes that claims, pages, counts and unique keys need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct, field, structs

from jobmill.core.due import in_lane
from jobmill.core.job import LIVE, Job, Keep, State
from jobmill.core.lanes import LanePosition
from jobmill.core.values import Lease
from jobmill.stores.memory.sorted_list import SortedList

#: Where a waiting job stands in the order of claims: priority, due time, order of enqueueing, id.
ClaimPosition: TypeAlias = tuple[int, int, int, str]
#: Where a running or final job stands: when it started or finished, order of enqueueing, id.
TimePosition: TypeAlias = tuple[int, int, str]

K = TypeVar("K")


class StoredJob(Struct):
    """One job, and what the store knows about it that a Job does not show."""

    seq: int
    job: Job
    token: str | None = None
    lease_until_ms: int = 0
    #: Of a final job. It is set before the job becomes final, and then stays.
    keep: Keep = Keep()
    #: Of a job with a lane: when it joined the lane, or when it may run. It stays while the job has a slot.
    joined_ms: int = 0

    def claim_position(self) -> ClaimPosition:
        """Where the job stands in the order of claims."""
        return (self.job.priority, self.job.due_ms, self.seq, self.job.id)

    def lane_position(self) -> LanePosition:
        """Where the job stands in its lane. A job that was seized before it joined the lane stands where it is due."""
        return (self.job.priority, self.joined_ms or self.job.due_ms, self.seq, self.job.id)

    def run_position(self) -> TimePosition:
        """Where the job stands among running jobs."""
        return (self.job.started_ms or 0, self.seq, self.job.id)

    def final_position(self) -> TimePosition:
        """Where the job stands among final jobs."""
        return (self.job.finished_ms or 0, self.seq, self.job.id)


class LaneJobs(Struct):
    """The live jobs of one lane, except those that others hold as well."""

    ready: SortedList[LanePosition] = field(default_factory=SortedList)
    later: SortedList[LanePosition] = field(default_factory=SortedList)
    admitted: SortedList[LanePosition] = field(default_factory=SortedList)
    running: int = 0


def _ranges() -> defaultdict[str, defaultdict[Any, SortedList[Any]]]:
    return defaultdict(lambda: defaultdict(SortedList))


class JobTable(Struct):
    """All jobs: by id, and in indexes by queue and state. A purge deletes index ranges without jobs."""

    by_id: dict[str, StoredJob] = field(default_factory=dict)
    owners: dict[tuple[str, str, str], str] = field(default_factory=dict)
    #: Of each queue: all jobs by seq.
    enqueued: defaultdict[str, SortedList[tuple[int, str]]] = field(default_factory=lambda: defaultdict(SortedList))
    #: Of each queue: by priority and name, the waiting jobs in the order in which they are due.
    waiting: defaultdict[str, defaultdict[tuple[int, str], SortedList[ClaimPosition]]] = field(default_factory=_ranges)
    running: defaultdict[str, dict[str, StoredJob]] = field(default_factory=lambda: defaultdict(dict))
    #: Of each queue: by state, name and retention, the final jobs in the order in which they finished.
    final: defaultdict[str, defaultdict[tuple[State, str, Keep], SortedList[TimePosition]]] = field(
        default_factory=_ranges
    )
    #: Recurring jobs, by unique key the jobs that have or had it, and the jobs of each flow: few among many.
    recurring: dict[str, StoredJob] = field(default_factory=dict)
    keyed: defaultdict[str, dict[str, StoredJob]] = field(default_factory=lambda: defaultdict(dict))
    flows: defaultdict[str, dict[str, StoredJob]] = field(default_factory=lambda: defaultdict(dict))
    last_seq: int = 0
    #: By queue and lane; by queue, the jobs of lanes that are due later, by time; and the lanes with changes.
    lanes: defaultdict[tuple[str, str], LaneJobs] = field(default_factory=lambda: defaultdict(LaneJobs))
    later: defaultdict[str, SortedList[TimePosition]] = field(default_factory=lambda: defaultdict(SortedList))
    changed_lanes: set[tuple[str, str]] = field(default_factory=set)

    def add(self, job: Job) -> None:
        """Store a new job."""
        self.last_seq += 1
        stored = self.by_id[job.id] = StoredJob(self.last_seq, job)
        self.enqueued[job.queue].add((stored.seq, job.id))
        if job.recurrence is not None:
            self.recurring[job.id] = stored
        if job.unique_key is not None:
            self.keyed[job.unique_key][job.id] = stored
        if job.flow is not None:
            self.flows[job.flow][job.id] = stored
        self._index(stored)

    def write(self, stored: StoredJob, **fields: object) -> Job:
        """Give a job new values for these fields. Queue and name stay, and whether it is recurring."""
        self._unindex(stored)
        stored.job = structs.replace(stored.job, **fields)
        self._index(stored)
        return stored.job

    def free_key(self, stored: StoredJob) -> None:
        """A live job has no unique key any more: another job takes it."""
        if stored.job.unique_key is not None:
            del self.keyed[stored.job.unique_key][stored.job.id]
        self.write(stored, unique_key=None)

    def remove(self, stored: StoredJob) -> None:
        """Delete a job."""
        job = stored.job
        self._unindex(stored)
        del self.by_id[job.id]
        self.enqueued[job.queue].remove((stored.seq, job.id))
        self.recurring.pop(job.id, None)
        if job.unique_key is not None:
            del self.keyed[job.unique_key][job.id]
        if job.flow is not None:
            del self.flows[job.flow][job.id]

    def prune(self) -> None:
        """Forget index ranges that have no jobs any more. A claim should not have to do that."""
        indexes: list[dict[Any, SortedList[Any]]] = [
            *(self.enqueued, self.later),
            *self.waiting.values(),
            *self.final.values(),
        ]
        for ranges in indexes:
            _prune(ranges, [key for key, positions in ranges.items() if not positions.chunks[0]])
        _prune(self.lanes, [key for key, lane in self.lanes.items() if lane == LaneJobs()])
        parents: list[dict[str, Any]] = [self.waiting, self.running, self.final, self.keyed, self.flows]
        for parts in parents:
            _prune(parts, [key for key, part in parts.items() if not part])

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
            self.waiting[job.queue][job.priority, job.name].add(stored.claim_position())
        elif job.state == "running":
            self.running[job.queue][job.id] = stored
        else:
            self.final[job.queue][job.state, job.name, stored.keep].add(stored.final_position())
        if job.unique_key is not None and job.state in LIVE:
            self.owners[job.queue, job.name, job.unique_key] = job.id
        if job.lane is not None:
            if job.held is not None and in_lane(job.held):
                stored.joined_ms = job.held.due.at_ms or 0
            self._index_lane(stored, 1)

    def _unindex(self, stored: StoredJob) -> None:
        job = stored.job
        if job.state == "waiting":
            self.waiting[job.queue][job.priority, job.name].remove(stored.claim_position())
        elif job.state == "running":
            del self.running[job.queue][job.id]
        else:
            self.final[job.queue][job.state, job.name, stored.keep].remove(stored.final_position())
        if job.unique_key is not None and job.state in LIVE:
            del self.owners[job.queue, job.name, job.unique_key]
        if job.lane is not None:
            self._index_lane(stored, -1)

    def _index_lane(self, stored: StoredJob, change: int) -> None:
        """Add a job to its lane, or remove it (-1). A job is later if it was not due when it was last written."""
        job = stored.job
        key = (job.queue, job.lane or "")
        self.changed_lanes.add(key)
        lane = self.lanes[key]
        if job.state == "running":
            lane.running += change
        elif job.state == "waiting" and (job.held is None or in_lane(job.held)):
            is_later = job.held is not None and stored.joined_ms > job.updated_ms
            positions = lane.admitted if job.held is None else lane.later if is_later else lane.ready
            (positions.add if change > 0 else positions.remove)(stored.lane_position())
            if is_later:
                later = self.later[job.queue]
                (later.add if change > 0 else later.remove)((stored.joined_ms, stored.seq, job.id))


def _prune(parts: dict[K, Any], keys: Iterable[K]) -> None:
    for key in keys:
        del parts[key]
