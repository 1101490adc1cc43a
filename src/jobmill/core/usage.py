"""Usage: what one run of a job took, whose it was, and how it ended."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

#: How a run ended: the outcome that the store took; or that it was taken away, because the job was cancelled while it
#: ran (cancelled) or because the lease was not the run's any more (lost).
RunEnded: TypeAlias = Literal["succeeded", "errored", "snoozed", "released", "cancelled", "lost"]

#: The tenant of jobs that have none.
GLOBAL = "global"


class Usage(Struct, frozen=True, gc=False, kw_only=True):
    """One run. Stores that keep usage have a column for each of these fields, in this order."""

    job_id: str
    name: str
    queue: str
    #: Whose job it was; "global" where it is nobody's.
    tenant: str
    #: errors + 1: runs that ended otherwise than errored share their number with the next one.
    attempt: int
    outcome: RunEnded
    #: From the call of the handler to its end, by a clock that nobody sets.
    duration_ms: float
    #: When it began, by the store's clock, and that plus the duration.
    started_ms: int
    finished_ms: int
    worker: str
