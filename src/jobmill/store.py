"""THE PORT: what every store promises. One contract suite (`jobmill.testing.contract`) holds all stores to it.

The rules under which all verbs stand:

- **One guard.** `exchange` (its settlements), `extend` and `report` hold for a lease only while the job is running, its
  token matches **and** the lease has not ended by the store's clock. Otherwise the answer is "lost": a value, no error.
- **Recovery is a claim.** A running job whose lease has ended may be claimed again; that claim counts `crashes` up.
- **Applied, not decided.** A store writes what it is told. It may not import `core.lifecycle` or `core.retry`.
- **Time** is whole milliseconds in UTC, by the store's own clock.
- **Races are values**, exceptions mean broken: `errors.StoreUnavailable` when trying again later may work.
- **Nothing is optional.** There are no verbs that a store may leave out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from jobmill.core.changes import Change, Changed
from jobmill.core.events import Event
from jobmill.core.job import Job
from jobmill.core.usage import Usage
from jobmill.core.values import (
    Claim,
    Count,
    Exchanged,
    Filter,
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


class Store(Protocol):
    """A database behind the port."""

    #: What the store is called in messages: "sqlite".
    name: ClassVar[str]
    #: How many exchanges a worker keeps in flight: 1 in this process, 2 where a round trip can hide behind another.
    exchanges_in_flight: ClassVar[int]

    @property
    def address(self) -> str:
        """Where the jobs are, without secrets. Two stores with the same name and address hold the same jobs."""

    async def open(self) -> None:
        """Connect, check the schema, measure the clock. Opening twice is harmless."""

    async def close(self) -> None:
        """Give everything back. Closing twice is harmless; open again works."""

    async def migrate(self) -> list[str]:
        """Bring the schema up to date; the names of the migrations that ran. A newer schema is refused untouched."""

    def now(self) -> int:
        """The store's clock, in milliseconds, as well as this process knows it without asking."""

    def new_id(self) -> str:
        """A fresh id, unique in this store, without asking it. Ids made later sort later where the store can."""

    async def enqueue(self, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        """Insert many in one step; a receipt for each, in order. Atomic about ids and live unique keys.

        A job whose id is taken: "exists". A job whose unique key (within queue and name) a live job has: "duplicate",
        with that job's id. A job with a recurrence whose key is live: "updated"; it takes recurrence (its revision
        counted up), payload and due time over; where the rule is the same and the new job `keeps_due`, only payload.
        All of that holds within one call as well, first come first served.
        """

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        """Settle what is finished, then claim what is free, in one step; never a job that the same call settles.

        Claim order: smaller priority first; within one, undelayed jobs as enqueued and delayed ones by due time. Claims
        stay within `claim.n`, the room per name, pause, rate limit and running limit of each queue. With settlements of
        leases that are lost nothing is written for them, the others stand; whether the same call may claim such a job
        is left to the store.
        """

    async def extend(self, leases: Sequence[Lease], for_ms: int) -> list[str]:
        """Prolong leases to now + `for_ms`; the ids of those that are lost."""

    async def report(self, reports: Sequence[Report]) -> list[str]:
        """Keep progress and log lines (the last 1,000 a job); the ids of those whose lease is lost."""

    async def wait_for_work(self, queues: Sequence[str], until_ms: int) -> None:
        """Sleep until something may be claimable, `until_ms` at the latest. A hint: may come early, may be missed."""

    async def change(self, which: Sequence[str] | Filter, change: Change, limit: int = 1_000) -> Changed:
        """Cancel, requeue, reschedule, reprioritize, remove or seize without a lease, at most `limit` jobs a call.

        An id that is not there, or whose state does not allow the change (`CHANGES_FROM`), is refused with the reason,
        for that job alone; so is a requeue that would make a second live owner of a unique key. A filter only takes
        jobs in a state that allows the change. A cancelled job is kept as its `keep_failed` says, else for 30 days.

        A seized job runs under the lease that `Seize` describes, until now + `lease_ms`; whoever held it has lost it.
        The caller makes that lease, without a locator: every verb that takes a lease finds its job by id then.
        """

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """The jobs of these ids, in order; None where there is none."""

    async def find(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        """A page of matches. On a quiet store the pages, followed by `next`, hold every match exactly once."""

    async def count(self, filter: Filter) -> list[Count]:
        """How many match, by queue, name and state; without zeros."""

    async def stats(self, queue: str | None = None, name: str | None = None) -> list[Stats]:
        """How queues and names are doing."""

    async def logs(self, id: str, limit: int = 1_000) -> list[LogLine]:
        """The last lines that a job logged, oldest first."""

    async def purge(self, limit: int = 1_000) -> Purged:
        """Remove final jobs that are past their own retention (`Keep`), at most `limit`."""

    async def configure(self, queue: str, change: QueueChange) -> QueueSettings:
        """Change a queue's settings and tell what is set now. Atomic about the queue."""

    async def settings(self, queues: Sequence[str] | None = None) -> dict[str, QueueSettings]:
        """What is set, for these queues, or for all that have settings."""

    async def publish(self, events: Sequence[Event]) -> None:
        """Add events to the feeds of their queues, where a feed is on."""

    async def events(self, queue: str, after: str | None = None, limit: int = 1_000) -> list[Event]:
        """The feed after the event with this id (None: from the oldest kept on), oldest first."""


@runtime_checkable
class EnqueuesWithin(Protocol):
    """A store with transactions: the job exists exactly if the caller's transaction commits."""

    async def enqueue_within(self, connection: Any, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        """Like `enqueue`, in the transaction of the caller's own connection or session."""

    def check_unlocked(self) -> None:
        """Raise StoreBusy where the next write would wait for a lock that this very caller's transaction holds."""


@runtime_checkable
class RecordsUsage(Protocol):
    """A store with a table for usage; or anything else that wants it in batches."""

    async def record_usage(self, records: Sequence[Usage]) -> None:
        """Add all records or none. After StoreUnavailable the caller tries again; after another error it drops them."""
