"""Reading: get, find, count, stats and logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jobmill.core.cursors import newer_than, older_than, read_cursor
from jobmill.core.job import STATES, Job
from jobmill.core.stats import by_queue_and_name, matches
from jobmill.core.stats import stats as summary
from jobmill.core.values import Count, Filter, LogLine, Page, Stats
from jobmill.stores.memory.context import MemoryContext
from jobmill.stores.memory.job_table import StoredJob


def get(context: MemoryContext, ids: Sequence[str]) -> list[Job | None]:
    """Jobs by id."""
    return [stored.job if (stored := context.jobs.by_id.get(id)) else None for id in ids]


def _matching(context: MemoryContext, filter: Filter) -> list[StoredJob]:
    return [stored for stored in context.jobs.by_id.values() if matches(stored.job, filter)]


def find(context: MemoryContext, filter: Filter, cursor: str | None, limit: int) -> Page:
    """A page, newest first. A cursor is "<" (older) or ">" (newer) and the seq that the page is beyond."""
    newer, seq = read_cursor(cursor)
    found = sorted(_matching(context, filter), key=lambda stored: -stored.seq)
    if newer:
        beyond = [stored for stored in found if seq is not None and stored.seq > seq]
        page, has_newer = beyond[-limit:], len(beyond) > limit
        has_older = bool(page)
    else:
        beyond = [stored for stored in found if seq is None or stored.seq < seq]
        page, has_older = beyond[:limit], len(beyond) > limit
        has_newer = seq is not None and bool(page)
    return Page(
        [stored.job for stored in page],
        next=older_than(page[-1].seq) if has_older else None,
        previous=newer_than(page[0].seq) if has_newer else None,
    )


def count(context: MemoryContext, filter: Filter) -> list[Count]:
    """How many jobs match, by queue, name and state."""
    jobs = [stored.job for stored in _matching(context, filter)]
    found = Counter((job.queue, job.name, STATES.index(job.state)) for job in jobs)
    return [Count(queue, name, STATES[state], number) for (queue, name, state), number in sorted(found.items())]


def stats(context: MemoryContext, queue: str | None, name: str | None) -> list[Stats]:
    """Counts, the oldest wait and durations by queue and name."""
    table = by_queue_and_name(count(context, Filter(queue=queue, name=name)))
    return [_stats(context, queue_, name_, counts) for (queue_, name_), counts in table.items()]


def _stats(context: MemoryContext, queue: str, name: str, counts: dict[str, int]) -> Stats:
    now_ms = context.now_ms
    jobs = [stored.job for stored in _matching(context, Filter(queue=queue, name=name))]
    waits = [now_ms - job.due_ms for job in jobs if job.state == "waiting" and job.due_ms <= now_ms]
    durations = [
        float(job.finished_ms - job.started_ms)
        for job in jobs
        if job.state == "succeeded" and job.finished_ms is not None and job.started_ms is not None
    ]
    return summary(queue, name, counts, max(waits, default=None), durations)


def logs(context: MemoryContext, id: str, limit: int) -> list[LogLine]:
    """The last log lines of a job, oldest first."""
    return list(context.logs.get(id, ()))[-limit:]
