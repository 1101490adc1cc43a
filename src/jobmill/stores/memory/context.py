"""What a verb of the memory store works with."""

from __future__ import annotations

from collections import defaultdict, deque

from msgspec import Struct, field

from jobmill.core.flows import Dependency, EdgeState, Signal, Step
from jobmill.core.job import LOG_LINES_KEPT, Job
from jobmill.core.values import LogLine
from jobmill.stores.common.job_hints import JobHints
from jobmill.stores.common.operations import Operations
from jobmill.stores.common.taken_keys import TakenKeys
from jobmill.stores.memory.job_table import JobTable
from jobmill.stores.memory.queues import LaneState, QueueState
from jobmill.stores.memory.sorted_list import SortedList


def _log() -> deque[LogLine]:
    return deque(maxlen=LOG_LINES_KEPT)


class MemoryContext(Struct):
    """All that the store holds, and the instant at which the present verb runs. A lock lets one verb run at a time."""

    jobs: JobTable = field(default_factory=JobTable)
    #: Log lines by the id of their job.
    logs: defaultdict[str, deque[LogLine]] = field(default_factory=lambda: defaultdict(_log))
    #: The edges of jobs that wait or have waited for others; and by dependency, which edges lead to it.
    edges: dict[str, list[Dependency]] = field(default_factory=dict)
    edges_to: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    #: Jobs that have ended and have more dependents than one verb may release.
    outbox: dict[str, EdgeState] = field(default_factory=dict)
    #: Steps by job and number, and signals by job and name.
    steps: dict[str, dict[int, Step]] = field(default_factory=dict)
    signals: dict[str, dict[str, Signal]] = field(default_factory=dict)
    #: The queues that have settings; the others have the defaults.
    queues: dict[str, QueueState] = field(default_factory=dict)
    #: The lanes that have settings or a rate, by queue and lane.
    lanes: dict[tuple[str, str], LaneState] = field(default_factory=dict)
    #: By queue: when the rates of lanes allow more jobs, and the lanes.
    again: defaultdict[str, SortedList[tuple[int, str]]] = field(default_factory=lambda: defaultdict(SortedList))
    #: Unique keys that are taken by time.
    taken: TakenKeys = field(default_factory=TakenKeys)
    #: Finished runs of recurring jobs that wait again, for the statistics.
    runs: dict[str, Job] = field(default_factory=dict)
    #: Announced workers, tallies and the audit log.
    operations: Operations = field(default_factory=Operations)
    last_event: int = 0
    now_ms: int = 0
    #: Set by a verb that may have made work for a sleeping worker.
    wakes: bool = False
    #: Tasks that wait for a job to be cancelled, and for a job to end.
    cancels: JobHints = field(default_factory=JobHints)
    ends: JobHints = field(default_factory=JobHints)
