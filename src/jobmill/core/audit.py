"""The audit log: who changed what, and when."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from jobmill.core.job import DAY_MS

AUDIT_KEPT_MS: Final = 90 * DAY_MS
#: An entry names at most this many of the jobs that were changed; `count` is the number of all.
MAX_AUDIT_IDS: Final = 100


class AuditEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One act of a person or of code."""

    #: Unique; an entry that is written twice stays one.
    id: str
    who: str
    #: "cancel", "pause", "mark", ...
    what: str
    queue: str | None = None
    ids: tuple[str, ...] = ()
    #: The filter that selected the jobs.
    filter: dict[str, Any] | None = None
    count: int = 0
    note: str | None = None
    #: Set by the store.
    at_ms: int = 0


class AuditFilter(Struct, frozen=True, kw_only=True):
    """Which entries: every field that is set must match. `after` is inclusive, `before` exclusive."""

    who: str | None = None
    what: str | None = None
    queue: str | None = None
    #: Entries that name this job.
    job_id: str | None = None
    after_ms: int | None = None
    before_ms: int | None = None


class AuditPage(Struct, frozen=True):
    """Entries, newest first, and the cursor of the next page."""

    entries: list[AuditEntry]
    next: str | None = None


def entry_matches(entry: AuditEntry, wanted: AuditFilter) -> bool:
    """Whether an entry matches a filter."""
    return (
        (wanted.who is None or entry.who == wanted.who)
        and (wanted.what is None or entry.what == wanted.what)
        and (wanted.queue is None or entry.queue == wanted.queue)
        and (wanted.job_id is None or wanted.job_id in entry.ids)
        and (wanted.after_ms is None or entry.at_ms >= wanted.after_ms)
        and (wanted.before_ms is None or entry.at_ms < wanted.before_ms)
    )
