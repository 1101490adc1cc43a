"""What `explain` works with: the facts about a job, and the reasons why it does not run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct

from jobmill.core.announcing import WorkerCard
from jobmill.core.durations import shown_ms, to_datetime
from jobmill.core.job import Job
from jobmill.core.values import Depth, Lane, QueueSettings

Code: TypeAlias = Literal[
    "finished",
    "running",
    "worker_lost",
    "foreign_owner",
    "held_by_person",
    "held_by_jobs",
    "held",
    "dependency_failed",
    "unreadable",
    "waits_for_signal",
    "not_due",
    "retry_backoff",
    "lane_paused",
    "lane_blocked_by_name",
    "lane_strict",
    "lane_full",
    "lane_rate",
    "queue_paused",
    "no_worker",
    "no_worker_for_queue",
    "no_worker_for_name",
    "workers_stopping",
    "queue_running_limit",
    "queue_rate_limit",
    "workers_full",
    "store_clock_skew",
    "behind",
    "ready",
]
CODES: tuple[Code, ...] = get_args(Code)

#: How far a claim order is read for the position of a job.
AHEAD_SHOWN = 1_000
RUNNING_SHOWN = 5
DEPENDENCIES_SHOWN = 5
SLOTS_SHOWN = 100
#: The time from which the speed of a queue is estimated.
RECENT_MS = 5 * 60_000
#: A clock that is off by more than this is worth a reason.
MAX_SKEW_MS = 1_000


class Reason(Struct, frozen=True, kw_only=True):
    """One reason why a job does not run."""

    code: Code
    #: A sentence for people.
    text: str
    #: What the reason is based on, for programs.
    evidence: dict[str, Any] = {}
    #: What to do; None if there is nothing to do but wait.
    remedy: str | None = None


class LaneFacts(Struct, frozen=True, kw_only=True):
    """What a store knows about the lane of a job that waits for a slot."""

    lane: Lane
    #: Jobs that have a slot, first those that run; at most `SLOTS_SHOWN` of each kind.
    holders: Sequence[Job] = ()
    #: How many jobs of the lane get a slot before this one; None if that is not known.
    ahead: int | None = None


class Facts(Struct, frozen=True, kw_only=True):
    """What a store knows about a job and the queue that it is in."""

    job: Job
    now_ms: int
    settings: QueueSettings = QueueSettings()
    depth: Depth
    workers: Sequence[WorkerCard] = ()
    #: Jobs of the queue that run now, those that have run longest first.
    running: Sequence[Job] = ()
    #: How many jobs of the queue come before this one; None if that is not known.
    ahead: int | None = None
    #: How many jobs of the queue were claimed in the last minutes.
    claimed_recently: int = 0
    #: When the lease of a running job ends, or has ended.
    lease_until_ms: int | None = None
    #: Jobs that this job waits for and that have not ended, at most `DEPENDENCIES_SHOWN`.
    dependencies: Sequence[Job] = ()
    #: Its lane, if it waits for a slot; None if that is not known.
    lane: LaneFacts | None = None


def span_text(ms: int) -> str:
    """A duration, as exact as a person needs it."""
    unit = 60_000 if ms >= 3_600_000 else 1_000 if ms >= 10_000 else 1
    return shown_ms(ms // unit * unit)


def iso_text(ms: int) -> str:
    """An instant, as programs read it."""
    text: str = msgspec.to_builtins(to_datetime(ms))
    return text
