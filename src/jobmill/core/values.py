"""The values that cross the port: new jobs, claims, settlements, queries and the settings of queues.

A store checks one guard per value and writes; it decides nothing. Data goes one way: NewJob > Job > Outcome >
Settlement.

Values that are made by the thousand are `gc=False`: they are frozen and made of plain values, so they cannot be part of
a cycle. The garbage collector, which took a sixth of a worker's time per job, skips them.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct, structs

from jobmill.core.due import NOW as NOW
from jobmill.core.due import Due as Due
from jobmill.core.due import after as after
from jobmill.core.due import at as at
from jobmill.core.flows import After
from jobmill.core.job import NO_OPTIONS, Attempt, Job, JobOptions, Keep, LogLevel, Progress, State
from jobmill.core.queue_settings import LaneSettings
from jobmill.core.queue_settings import Pause as Pause
from jobmill.core.queue_settings import QueueChange as QueueChange
from jobmill.core.queue_settings import QueueSettings as QueueSettings
from jobmill.core.queue_settings import RateLimit as RateLimit
from jobmill.core.recurrence import Recurrence
from jobmill.core.unique_policy import UniquePolicy

# ---------------------------------------------------------------------------------------------------- enqueue


class NewJob(Struct, frozen=True, gc=False, kw_only=True):
    """A validated job to be enqueued."""

    id: str
    name: str
    queue: str
    payload_json: bytes
    due: Due = NOW
    priority: int = 0
    unique_key: str | None = None
    tenant: str | None = None
    options: JobOptions = NO_OPTIONS
    recurrence: Recurrence | None = None
    #: The caller gave no due time: a live job with the same rule keeps its own due time and occurrence.
    keeps_due: bool = False
    #: The jobs that it waits for. The position of each is the number of its edge.
    after: tuple[After, ...] = ()
    #: The flow that it belongs to.
    flow: str | None = None
    #: What happens if its unique key is taken. None: it is a duplicate while a live job has the key.
    policy: UniquePolicy | None = None
    #: The jobs of its queue with the same lane share limits.
    lane: str | None = None


class Receipt(Struct, frozen=True, gc=False):
    """The result of enqueueing one NewJob; `id` is the job that it became, or that was there already.

    created: a new job. exists: a job with this id is in the store. duplicate: this unique key is taken, by a live job
    or for a time. updated: a live recurring job with this key took over recurrence, payload and (see keeps_due) due
    time; or a job that waits took over the payload, because the policy of the new job says so.
    pinned: a person has edited the rule of that job. It keeps its rule, stores the new one beside it, and takes over
    the payload.
    """

    id: str
    status: Literal["created", "exists", "duplicate", "updated", "pinned"]

    @property
    def created(self) -> bool:
        """Whether this call created the job."""
        return self.status == "created"


# ---------------------------------------------------------------------------------------------------- claim


class Lease(Struct, frozen=True, gc=False):
    """Ownership of one running job. With this token a worker may extend, report and settle until `until_ms`."""

    id: str
    token: str
    queue: str
    name: str
    until_ms: int
    # How the store finds the row again without a query by id; only the store reads it.
    locator: Any = None
    #: The lane of the job. A settlement that ends its slot must know it, also if the job cannot be read.
    lane: str | None = None

    def __repr__(self) -> str:
        """Without the token: it must not reach a log."""
        return f"Lease(id={self.id!r}, queue={self.queue!r}, name={self.name!r}, until_ms={self.until_ms})"


#: How the token of a claim begins that asks for more jobs than there are free slots: a claim ahead.
AHEAD = "ahead-"


class Claim(Struct, frozen=True, kw_only=True):
    """A request for up to `n` due jobs of these queues, with at most `names[name]` of each name.

    Queues are tried in the order given. `token` is fresh for this call: job id and token together are the guard. If it
    begins with `AHEAD`, the worker may not start all of these jobs at once. So the mark is stored with the lease, and
    ends with it.
    """

    queues: tuple[str, ...]
    names: dict[str, int]
    n: int
    lease_ms: int
    worker: str
    token: str

    @property
    def is_ahead(self) -> bool:
        """Whether the worker may not start all of these jobs at once."""
        return self.token.startswith(AHEAD)

    def __repr__(self) -> str:
        """Without the token: it must not reach a log."""
        return f"Claim(queues={self.queues!r}, n={self.n}, worker={self.worker!r})"


class Claimed(Struct, frozen=True, gc=False):
    """A job under a lease."""

    job: Job
    lease: Lease
    #: The worker whose lease on this job had ended; "" if it left no name, None if the job waited.
    recovered_from: str | None = None
    #: The lost lease was the job's first one of a claim ahead: it may not have started, so no crash was counted.
    uncounted: bool = False


class Broken(Struct, frozen=True, gc=False):
    """A job under a lease whose stored form cannot be read, and why. It fails, or it is left to another program."""

    lease: Lease
    why: str
    #: A job that another program made and may be able to read, as far as the store can read it; None for a job of ours.
    foreign: Job | None = None


# ---------------------------------------------------------------------------------------------------- settle


#: How one attempt ended.
Ended: TypeAlias = Literal["succeeded", "errored", "crashed", "snoozed", "released", "suspended"]


class Runs(Struct, frozen=True, gc=False, kw_only=True):
    """The counts of a recurring job after a run; the store adds when the run finished.

    `revision` is the revision of the recurrence that the settlement was decided from. Where the job has another one by
    now, the store writes `Settlement.overtaken()` instead.
    """

    runs: int
    failed_runs: int
    last_error: str | None
    revision: int
    #: When the run began.
    started_ms: int


class Rearm(Struct, frozen=True, gc=False, kw_only=True):
    """A recurring job waits for this occurrence."""

    occurrence_ms: int


class Settlement(Struct, frozen=True, gc=False, kw_only=True):
    """The decided end of one lease. All values are absolute: the guard ensures that no other write came in between.

    `outcome` is how the attempt ended, `state` is the new state of the job: waiting, succeeded or failed.
    """

    lease: Lease
    outcome: Ended
    state: State
    #: The number of the attempt that ended.
    attempt: int
    errors: int
    crashes: int
    #: While waiting: when it is due; None keeps due time and position.
    due: Due | None = None
    error: str | None = None
    #: The attempts that did not succeed; None keeps the stored ones.
    attempts: tuple[Attempt, ...] | None = None
    result_json: bytes = b"null"
    #: When final: how long the job stays.
    keep: Keep | None = None
    #: Of a recurring job whose run is over.
    runs: Runs | None = None
    rearm: Rearm | None = None
    #: Of a suspended run: jobs that the store enqueues in the same step, and that the job waits for. Those whose ids
    #: exist already are only waited for. The numbers of the new edges follow those that the job has.
    children: tuple[NewJob, ...] = ()
    #: Of a suspended run: the signal that the job waits for, at most until `due`. If the job has got it already, it is
    #: due at once.
    waits_for: str | None = None

    @property
    def run_state(self) -> State:
        """How a run of a recurring job ended, as the state that counts it in the statistics."""
        return "succeeded" if self.outcome == "succeeded" else "failed"

    def overtaken(self) -> Settlement:
        """This settlement for a job whose recurrence was updated while it ran: it waits as the update decided."""
        return structs.replace(self, state="waiting", errors=0, crashes=0, due=None, keep=None, rearm=None)


class Refused(Struct, frozen=True):
    """The store cannot hold the values of a settlement; the lease still holds. `of_result`: because of the result."""

    why: str
    of_result: bool = False
    #: The job may succeed at another attempt: a job that it waits for is not finished.
    is_temporary: bool = False

    @property
    def error(self) -> str:
        """The error of the job, which fails."""
        what = "handler finished, but its result cannot be stored" if self.of_result else "store refused the settlement"
        return f"the {what}: {self.why}"


Settled: TypeAlias = Literal["done", "lost"] | Refused


class Exchanged(Struct, frozen=True, kw_only=True):
    """The result of one exchange: one answer per settlement, in order, the claimed jobs, and the store's time.

    `next_due_ms`: when the next claim may find a job; now or earlier if more may be claimable at once, None when no job
    waits, or all queues are paused or full. Where nothing was claimed, the end of a lease counts as well.
    """

    settled: list[Settled]
    claimed: list[Claimed | Broken]
    next_due_ms: int | None
    now_ms: int
    #: More jobs wait for the settled jobs than one call may release: `flush_outbox` releases the others.
    has_outbox: bool = False


class LogLine(Struct, frozen=True):
    """One log line of a handler."""

    at_ms: int
    text: str
    #: The attempt that wrote it. None if an older version or another program stored the line.
    attempt: int | None = None
    level: LogLevel = "info"


class Report(Struct, frozen=True, kw_only=True):
    """Progress and log lines of one running job. All lines of a report are of one attempt and have one level."""

    lease: Lease
    progress: Progress | None = None
    lines: tuple[str, ...] = ()
    attempt: int | None = None
    level: LogLevel = "info"


# ---------------------------------------------------------------------------------------------------- look


class Filter(Struct, frozen=True, kw_only=True):
    """Which jobs: every field that is set must match. Instants: `after` is inclusive, `before` exclusive."""

    queue: str | None = None
    name: str | None = None
    states: tuple[State, ...] | None = None
    tenant: str | None = None
    unique_key: str | None = None
    created_after_ms: int | None = None
    created_before_ms: int | None = None
    due_after_ms: int | None = None
    due_before_ms: int | None = None
    finished_after_ms: int | None = None
    finished_before_ms: int | None = None
    #: Only recurring jobs that are declared by handlers. A store finds the live ones without reading other jobs.
    declared: bool = False
    #: Only held jobs, or only others.
    held: bool | None = None
    #: Only recurring jobs, or only others.
    recurring: bool | None = None
    #: Only jobs that had errors since they were enqueued or requeued, or only others.
    errored: bool | None = None
    name_prefix: str | None = None
    #: Only jobs of this flow.
    flow: str | None = None
    #: Only jobs of this lane.
    lane: str | None = None
    #: The class of the error of the last attempt that did not succeed, as `Attempt.error_type` has it.
    error_type: str | None = None
    #: Fields of the payload, which must have these values. A store need not search more than `PAYLOADS_SEARCHED` jobs,
    #: the newest ones.
    payload: dict[str, Any] | None = None


EVERYTHING = Filter()
#: A filter by payload is applied to this number of jobs at least, the newest ones.
PAYLOADS_SEARCHED = 100_000
#: If no index can answer a filter, one call of `find` or `count_up_to` examines at most about this number of jobs.
SEARCHED_PER_PAGE = 10_000
#: The same where a filter asks only for a queue, or for several states of it. They are compared quickly, and the first
#: page of a large queue should not be empty.
SEARCHED_FOR_QUEUE = 100_000


def max_searched(wanted: Filter) -> int:
    """How many jobs one call examines where no index answers a filter."""
    is_of_queue = wanted.queue is not None and structs.replace(wanted, queue=None, states=None) == EVERYTHING
    is_of_one_state = wanted.states is not None and len(wanted.states) == 1
    return SEARCHED_FOR_QUEUE if is_of_queue and not is_of_one_state else SEARCHED_PER_PAGE


#: The order in which `find` returns jobs.
#: claim: as they will be claimed. longest: those that have run longest first. latest: those that finished last first.
#: own: as the store likes, usually the newest first.
Order: TypeAlias = Literal["claim", "longest", "latest", "own"]


def order_of(wanted: Filter) -> Order:
    """The order of jobs of one queue and one state; every other filter leaves it to the store."""
    if wanted.queue is None or wanted.states is None or len(wanted.states) != 1:
        return "own"
    orders: dict[str, Order] = {"waiting": "claim", "running": "longest"}
    return orders.get(wanted.states[0], "latest")


class Page(Struct, frozen=True):
    """Some of the jobs that match, in the order that `order_of` gives.

    A page may be short, or empty, and still have a cursor: the call has examined `SEARCHED_PER_PAGE` jobs.
    """

    jobs: list[Job]
    next: str | None = None
    previous: str | None = None
    #: Whether older jobs were left out, because a filter by payload searches only the newest ones.
    partial: bool = False


class Count(Struct, frozen=True):
    """How many jobs of one queue, name and state there are."""

    queue: str
    name: str
    state: State
    count: int


#: `flow_counts` counts at most this number of jobs of a flow.
FLOW_COUNT_LIMIT = 1_000


class FlowCount(Struct, frozen=True):
    """How many jobs of a flow are in each state, without zeros. Not `exact`: it may have more jobs."""

    states: dict[State, int]
    exact: bool

    @staticmethod
    def of(states: dict[State, int], limit: int) -> FlowCount:
        """The states of at most `limit` jobs of a flow."""
        return FlowCount(states, exact=sum(states.values()) < limit)


class CountUpTo(Struct, frozen=True):
    """The number of jobs that match. If it is not `exact`, more jobs may match."""

    count: int
    exact: bool


#: `depths` counts at most this many jobs of each queue and state.
DEPTH_LIMIT = 10_000


class Depth(Struct, frozen=True, kw_only=True):
    """How many jobs of one queue there are in each state: waiting jobs that are due, due later, or held, and others.

    Where a count has reached the limit there may be more, and `exact` is False.
    """

    queue: str
    due: int = 0
    later: int = 0
    held: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    #: The due time of the waiting job that has been due longest; None if no job is due.
    oldest_due_ms: int | None = None
    #: When the rate limit of the queue allows the next claim; None if it allows one now.
    limited_until_ms: int | None = None
    exact: bool = True


#: `lanes` counts at most this number of jobs of each lane and kind.
LANE_LIMIT = 1_000


class Lane(Struct, frozen=True, kw_only=True):
    """One lane of a queue: its settings and its live jobs. Where a count has reached the limit, there may be more."""

    queue: str
    name: str
    settings: LaneSettings = LaneSettings()
    #: Jobs that have a slot: those that run, and those that a worker may claim.
    running: int = 0
    admitted: int = 0
    #: Jobs that the lane holds: those that could run, and those that are due later.
    ready: int = 0
    later: int = 0
    #: When its rate allows the next job; None if it allows one now, or if the lane has no rate.
    limited_until_ms: int | None = None


class Stats(Struct, frozen=True, kw_only=True):
    """Statistics of one queue and name. Durations are those of succeeded jobs that are still in the store.

    `succeeded`, `failed` and the durations include the runs of recurring jobs that ended in the last day (`KEEP_RUN`).
    """

    queue: str
    name: str
    waiting: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    # How long the oldest due job has waited.
    oldest_waiting_ms: int | None = None
    average_ms: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None


class Purged(Struct, frozen=True):
    """How many final jobs were removed past their retention, and whether there may be more."""

    removed: int
    more: bool
