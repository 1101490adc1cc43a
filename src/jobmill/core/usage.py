"""Usage: how long one run of a job took, which tenant it belongs to, and how it ended."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

#: How a run ended: the outcome that the store accepted, or cancelled (the job was cancelled while it ran), or lost (the
#: lease had ended).
RunEnded: TypeAlias = Literal["succeeded", "errored", "snoozed", "released", "suspended", "cancelled", "lost"]

#: The tenant of jobs that have none.
GLOBAL = "global"


class Usage(Struct, frozen=True, gc=False, kw_only=True):
    """One run. Stores that record usage have a column for each of these fields, in this order."""

    job_id: str
    name: str
    queue: str
    #: The tenant of the job; "global" where it has none.
    tenant: str
    #: errors + 1: a run that did not end in an error has the same number as the next one.
    attempt: int
    outcome: RunEnded
    #: From the call of the handler to its end, by a monotonic clock.
    duration_ms: float
    #: When the run began, by the store's clock, and that time plus the duration.
    started_ms: int
    finished_ms: int
    worker: str
