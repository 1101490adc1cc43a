"""THE PORT: what every store promises. One contract suite (`jobmill.testing.contract`) holds all stores to it.

Rules for all verbs:

- **One guard.** `exchange` (its settlements), `extend` and `report` apply to a lease only while the job is running, its
  token matches **and** the lease has not ended by the store's clock. Otherwise the answer is "lost": a value, no error.
- **Recovery is a claim.** A running job whose lease has ended may be claimed again; that claim counts `crashes` up.
  If the lost lease was of a claim ahead (`Claim.is_ahead`), the job may not have started: the first such loss counts
  `unstarted` up instead, and `Claimed.uncounted` says so. Every later loss of the job is a crash.
- **Applied, not decided.** A store writes what the core decided. It may not import `core.lifecycle` or `core.retry`.
- **Time** is whole milliseconds in UTC, by the store's own clock.
- **Races are values.** An exception means that something is broken: `errors.StoreUnavailable` when a later retry may
  work.
- **Nothing is optional.** A store has every verb.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from jobmill.core.announcing import Orders, WorkerCard
from jobmill.core.audit import AuditEntry, AuditFilter, AuditPage
from jobmill.core.changes import Change, Changed
from jobmill.core.events import Event
from jobmill.core.findings import Finding
from jobmill.core.flows import Dependency, Dependent, Recorded, Signal, Signalled, Step
from jobmill.core.job import Job
from jobmill.core.queue_settings import LaneChange, LaneSettings
from jobmill.core.tallies import Tally
from jobmill.core.usage import Usage
from jobmill.core.values import (
    DEPTH_LIMIT,
    FLOW_COUNT_LIMIT,
    Claim,
    Count,
    CountUpTo,
    Depth,
    Exchanged,
    Filter,
    FlowCount,
    Lane,
    Lease,
    LogLine,
    NewJob,
    Page,
    Purged,
    QueueChange,
    QueueSettings,
    Receipt,
    Report,
    Settlement,
    Stats,
)
from jobmill.errors import StoreBusy


class Store(Protocol):
    """A database behind the port."""

    #: The name of the store in messages: "sqlite".
    name: ClassVar[str]
    #: How many exchanges a worker keeps in flight: 1 for a store in this process, 2 where round trips can overlap.
    exchanges_in_flight: ClassVar[int]

    @property
    def address(self) -> str:
        """Where the jobs are, without secrets. Two stores with the same name and address hold the same jobs."""

    async def open(self) -> None:
        """Connect, check the schema, measure the clock. Opening twice is harmless."""

    async def close(self) -> None:
        """Close all connections. Closing twice is harmless; the store may be opened again."""

    async def migrate(self) -> list[str]:
        """Bring the schema up to date; returns the names of the migrations that ran. A newer schema is refused."""

    def now(self) -> int:
        """The store's time in milliseconds, as far as this process knows it without a request."""

    def new_id(self) -> str:
        """A new id, unique in this store, made without a request. Later ids sort later where the store can do that."""

    async def enqueue(self, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        """Insert many jobs in one step; returns a receipt for each, in order. Atomic about ids and live unique keys.

        The status is "exists" where a job has the id. It is "duplicate", with the id of that job, where a live job of
        the same queue and name has the unique key. It is "updated" where a live recurring job has the key: that job
        takes over recurrence (with the next revision), payload and due time; where the rule is the same and the new job
        `keeps_due`, it takes over the payload and `declared` only. It is "pinned" where a person has edited the rule of
        that job (`Recurrence.restated`): it takes over the payload only. Within one call the first job wins.

        A new job with a policy says what happens if its key is taken. If a live job has the key,
        `core.unique_policy.when_taken` decides. A key that was taken for a time (`UniquePolicy.for_ms`) is taken until
        then, or as long as its job is live, for jobs with such a policy: also if the job was removed by its retention.
        It is free again when the job is cancelled, or removed by `change`. What an enqueue without such a policy does
        meanwhile is up to the store. Jobs of flows and recurring jobs have no policy.

        A job with a lane gets a slot, or is held by its lane (`core.lanes`). A live job that takes over from a new one
        keeps its own lane.
        """

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        """Settle finished jobs, then claim due jobs, in one step; never a job that the same call settles.

        Claim order: smaller priority first; within a priority, jobs without a delay as enqueued and delayed jobs by due
        time. Claims respect `claim.n`, the room per name, and pause, rate limit and running limit of each queue. For a
        lost lease nothing is written; the other settlements stand. Whether the same call may claim the job of a lost
        lease is up to the store. A job whose lease had ended names the worker that had it: `Claimed.recovered_from`.

        Where the call claims nothing, `next_due_ms` is not later than the first end of a lease that holds now, of due
        jobs that this claim asks for: a worker that sleeps until then takes the job over at once. It is never an end
        that has passed, so that a job that nobody may take keeps no worker awake. A store may learn of a lease of
        another process late, but not later than half of `claim.lease_ms` after it was given: workers claim that often.

        A job that becomes final sets the edges that lead to it, and releases the jobs that wait for no other job, in
        the same step (`core.changes.resolved`). Whether edges lead to it is read then: they may be younger than the
        lease. A call releases at most `MAX_RELEASED` jobs; the others are released by `flush_outbox`. A job with edges
        that lead to it stays in the store as long as those jobs, whatever its retention says.

        A job with a lane that ends its slot gives it to the next job of its lane in the same step; `core.lanes` has the
        rules. Before a claim, jobs of lanes that have become due stand in their lanes, and a lane whose rate allows
        more gives slots. So `next_due_ms` is also not later than the next of these times.

        A suspended run is Refused, and nothing of it is stored, if it cannot wait for its children: one is recurring,
        waits for an unknown job, or waits for the suspended job itself.
        """

    async def extend(self, leases: Sequence[Lease], for_ms: int) -> list[str]:
        """Extend leases to now + `for_ms`; returns the ids of lost leases."""

    async def report(self, reports: Sequence[Report]) -> list[str]:
        """Store progress and log lines (the last 1,000 per job); returns the ids of lost leases.

        Several reports of one lease in one call apply in their order.
        """

    async def wait_for_work(self, queues: Sequence[str], until_ms: int) -> None:
        """Sleep until a job may be claimable, at most until `until_ms`. A hint: it may come early or be missed."""

    async def wait_for_cancel(self, ids: Collection[str], until_ms: int) -> None:
        """Sleep until one of these running jobs may have been cancelled, at most until `until_ms`. A hint as well.

        `ids` may change while this sleeps, as the keys of a dictionary: the jobs that it holds at each moment count.
        """

    async def wait_for_end(self, id: str, queue: str, until_ms: int) -> None:
        """Sleep until this job may be final or removed, at most until `until_ms`. A hint as well.

        Where nobody waits, it must not make settling more expensive. A store may rely on workers: it need not give
        hints of jobs that a process settles which does not wait for cancels.
        """

    async def change(self, which: Sequence[str] | Filter, change: Change, limit: int = 1_000) -> Changed:
        """Change jobs without a lease (`core.changes` has all changes), at most `limit` jobs per call.

        `core.changes.decide` decides what is written to each job, or why it is refused; a refusal concerns that job
        alone. An unknown id is refused as well, and so is a requeue that would make a second live owner of a unique
        key. A filter selects only jobs in a state that allows the change.

        A seized job runs under the lease that `Seize` describes, until now + `lease_ms`; its former owner has lost it.
        The caller makes that lease, without a locator: every verb that takes a lease then finds its job by id.

        A job that is cancelled sets the edges that lead to it, as a settlement does. A live job that is removed is
        cancelled first. A job that is requeued opens the edges that lead to it again (`core.changes.reopens`).
        """

    async def flush_outbox(self, limit: int = 1_000) -> int:
        """Release jobs whose dependencies have ended, where the call that ended these could not do so; how many.

        It also finishes what a process has begun that ended meanwhile, and gives free slots of lanes to jobs that
        wait for them, where a process ended before it could. Workers call it now and then, and after an
        exchange with `has_outbox`; calling it at any time, and several times at once, is harmless.
        """

    async def dependencies(self, id: str, first: int = 0, limit: int = 1_000) -> list[Dependency]:
        """The edges of a job with these numbers, in order, and what the dependencies have returned."""

    async def dependents(self, id: str, limit: int = 100) -> list[Dependent]:
        """The jobs that wait for this job, or have waited for it; at most `limit`, in no certain order."""

    async def flows(self, before: str | None = None, limit: int = 50) -> list[str]:
        """The ids of flows that have jobs in the store, in descending order: those before this id, at most `limit`.

        An id that Jobmill has made comes before older ones, where the ids of the store sort by time.
        """

    async def flow_counts(self, ids: Sequence[str], limit: int = FLOW_COUNT_LIMIT) -> dict[str, FlowCount]:
        """How many jobs of these flows are in each state, by flow. Of a flow, it counts at most `limit` jobs."""

    async def edges(self, ids: Sequence[str]) -> set[tuple[str, str]]:
        """Which of these jobs wait for others of them, or have waited: pairs of a job and its dependency.

        The jobs are in the store.
        """

    async def record_step(self, lease: Lease, step: Step) -> bool:
        """Store a step of a running job, under the guard; False if the lease is lost. The first one of a number counts.

        Steps stay over errors, crashes and suspensions. They go with the job, and with a requeue that clears them.
        """

    async def recorded(self, id: str) -> Recorded:
        """The steps of a job by their numbers, and its signals."""

    async def signal(self, id: str, signal: Signal) -> Signalled:
        """Store a signal for a live job, if it has none of this name. A job that waits for it is due at once."""

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """The jobs with these ids, in order; None for an unknown id."""

    async def lease_ends(self, ids: Sequence[str]) -> list[int | None]:
        """When the leases of these jobs end, or have ended; in order. None for a job without a lease.

        A store that knows only that a lease has ended answers with the present time.
        """

    async def find(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        """One page of the jobs that match. On a quiet store, following `next` returns each of them exactly once.

        For one queue and one state, the order is fixed (`core.values.order_of`). Waiting jobs: due jobs as they will be
        claimed, and jobs of the same priority that are due later after them, by due time. Running jobs: those that
        were claimed first. Final jobs: those that finished last. Any other filter: the store's own order.

        Where no index of the store answers the filter, a call examines no more than about `SEARCHED_PER_PAGE` jobs (for
        several states of a queue, `SEARCHED_FOR_QUEUE`) and returns what it has found among them. Such a page may be
        short or empty, and its cursor continues the search. A store always finds by an index: jobs of a queue and a
        state, jobs that are due later, and live recurring jobs. A store without an index of running jobs may search
        more than one page for them; then each page has its own order.
        """

    async def count(self, filter: Filter) -> list[Count]:
        """How many jobs match, by queue, name and state; without zeros."""

    async def count_up_to(self, filter: Filter, limit: int) -> CountUpTo:
        """How many jobs match, at most `limit`: the store stops counting there.

        As in `find`, a store examines no more than about `SEARCHED_PER_PAGE` jobs for a filter that no index answers.
        """

    async def depths(self, queues: Sequence[str] | None = None, limit: int = DEPTH_LIMIT) -> list[Depth]:
        """How many jobs these queues have in each state, or all queues with jobs or settings; by name.

        For each queue and state at most `limit` index entries are read. With 0, only the names of the queues count.
        """

    async def announce(self, card: WorkerCard, tallies: Sequence[Tally], *, leaves: bool = False) -> Orders:
        """A worker says that it lives and what it has counted, in tallies of a minute; the answer is what it must do.

        The store adds each tally to those of its minute, its ten minutes and its hour (`core.tallies`), once per
        `card.announcement`: a worker without an answer sends the same again. With `leaves`, the card is removed.
        """

    async def workers(self) -> list[WorkerCard]:
        """The workers that announced themselves in the last `ANNOUNCED_MS`, by start; and those of other systems."""

    async def order_stop(self, ids: Sequence[str]) -> list[str]:
        """Order workers to stop gracefully, by the ids of their cards; returns the ids of those that are there.

        A worker learns it with the answer to its next announcement.
        """

    async def tallies(
        self, since_ms: int, until_ms: int, step_ms: int, queue: str | None = None, name: str | None = None
    ) -> list[Tally]:
        """Tallies that start in [since, until), in steps of `step_ms`, a multiple of a minute; by start, queue, name.

        They are made of the longest stored step that divides `step_ms`, as long as that is kept (`TALLIES_KEPT_MS`).
        """

    async def audit(self, entries: Sequence[AuditEntry]) -> None:
        """Add entries to the audit log, each once by its id, with the time of the store. Kept for `AUDIT_KEPT_MS`."""

    async def audit_log(self, filter: AuditFilter, cursor: str | None = None, limit: int = 100) -> AuditPage:
        """One page of the entries that match, newest first."""

    async def stats(self, queue: str | None = None, name: str | None = None) -> list[Stats]:
        """Statistics by queue and name, of jobs and of the runs of recurring jobs.

        A settlement with `runs` after which the job waits leaves a record in the same step: queue, name, `run_state`
        and how long the run took. Such records count as succeeded or failed jobs until a purge.
        """

    async def logs(self, id: str, limit: int = 1_000) -> list[LogLine]:
        """The last log lines of a job, oldest first."""

    async def purge(self, limit: int = 1_000) -> Purged:
        """Remove final jobs that are past their own retention (`Keep`), at most `limit`; and runs past `KEEP_RUN`.

        Tallies, cards and audit entries past their time go as well, here or by themselves. There may be more to remove
        if a job went that had waited for others, which stayed because of it.
        """

    async def configure(self, queue: str, change: QueueChange) -> QueueSettings:
        """Change the settings of a queue; returns the settings after it. Atomic about the queue."""

    async def settings(self, queues: Sequence[str] | None = None) -> dict[str, QueueSettings]:
        """The settings of these queues, or of all queues that have settings."""

    async def configure_lane(self, queue: str, lane: str, change: LaneChange) -> LaneSettings:
        """Change the settings of one lane; returns the settings after it. Atomic about the lane.

        A lane that is paused, or whose limit is lower, takes back slots of jobs that have not begun. Jobs that run keep
        theirs. The rule for all lanes of a queue is one of its settings (`QueueSettings.lanes`). After a change of the
        rule, the slots of the first 1,000 lanes are right when `configure` returns; those of the others follow.
        """

    async def lanes(
        self, queue: str, names: Sequence[str] | None = None, after: str | None = None, limit: int = 100
    ) -> list[Lane]:
        """Lanes of a queue with live jobs or settings, by name: these, or those after `after`; at most `limit`.

        Lanes in `names` that have neither are left out, and so are lanes of which every job is held by others as well.
        For each lane and kind of job, at most `LANE_LIMIT` jobs are counted.
        """

    async def publish(self, events: Sequence[Event]) -> None:
        """Add events to the feeds of their queues, where a feed is on."""

    async def events(self, queue: str, after: str | None = None, limit: int = 1_000) -> list[Event]:
        """The feed after the event with this id (None: from the oldest one), oldest first."""

    async def diagnose(self) -> list[Finding]:
        """How the database is set up and how it is doing, one finding for each check that this store has.

        One of them is that the store answers, with the facts about it: `core.findings.reachable`.
        For example settings of the server that endanger jobs, the size of files, missing indexes. It changes nothing.
        """

    async def fsck(self, *, repair: bool = False) -> list[Finding]:
        """Whether the stored data is consistent, one finding for each check that this store has.

        Without `repair` it changes nothing. With it, damage of findings that say `can_repair` is repaired, each under a
        guard: a record that has changed since it was found is left alone. It may run beside workers.
        """


@runtime_checkable
class EnqueuesWithin(Protocol):
    """A store with transactions: the job exists if and only if the caller's transaction commits."""

    async def enqueue_within(self, connection: Any, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        """Like `enqueue`, in the transaction of the caller's connection or session."""

    def check_unlocked(self) -> None:
        """Raise StoreBusy where the next write would wait for a lock that the caller's own transaction holds."""


class WouldWait(StoreBusy):
    """Nothing was stored: another transaction has enqueued one of the unique keys, and has not ended."""


@runtime_checkable
class EnqueuesShared(Protocol):
    """A store in which an open transaction holds up others that enqueue the same unique key."""

    async def enqueue_shared(self, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        """Like `enqueue`, for several callers with unique keys. Jobs of callers without keys are never in such a call.

        A store that can raises WouldWait instead of waiting. Each caller then calls `enqueue`, so that only those with
        the key wait.
        """


@runtime_checkable
class RecordsUsage(Protocol):
    """A store with a table for usage, or any other object that takes usage records in batches."""

    async def record_usage(self, records: Sequence[Usage]) -> None:
        """Add all records or none. After StoreUnavailable the caller tries again; after another error it drops them."""
