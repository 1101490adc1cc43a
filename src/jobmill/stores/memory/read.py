"""Reading: get, find, count, stats and logs."""

from __future__ import annotations

from collections.abc import Sequence

from jobmill.core.job import Job
from jobmill.core.stats import matches
from jobmill.core.values import DEPTH_LIMIT, Count, CountUpTo, Depth, Filter, LogLine, Page, Stats
from jobmill.stores.common import whole_jobs
from jobmill.stores.common.whole_jobs import counts, page, statistics
from jobmill.stores.memory.context import MemoryContext


def get(context: MemoryContext, ids: Sequence[str]) -> list[Job | None]:
    """Jobs by id."""
    return [stored.job if (stored := context.jobs.by_id.get(id)) else None for id in ids]


def lease_ends(context: MemoryContext, ids: Sequence[str]) -> list[int | None]:
    """When the leases of jobs end."""
    running = {id: stored for id in ids if (stored := context.jobs.by_id.get(id)) and stored.job.state == "running"}
    return [running[id].lease_until_ms if id in running else None for id in ids]


def _matching(context: MemoryContext, filter: Filter) -> list[tuple[int, Job]]:
    return [(stored.seq, stored.job) for stored in context.jobs.by_id.values() if matches(stored.job, filter)]


def find(context: MemoryContext, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
    """A page of matches."""
    return page(_matching(context, filter), filter, cursor, limit)


def count(context: MemoryContext, filter: Filter) -> list[Count]:
    """How many jobs match, by queue, name and state."""
    return counts(job for _, job in _matching(context, filter))


def count_up_to(context: MemoryContext, filter: Filter, limit: int) -> CountUpTo:
    """How many jobs match, at most `limit`."""
    found = len(_matching(context, filter))
    return CountUpTo(min(limit, found), found < limit)


def depths(context: MemoryContext, queues: Sequence[str] | None = None, limit: int = DEPTH_LIMIT) -> list[Depth]:
    """How many jobs queues have in each state."""
    jobs = (stored.job for stored in context.jobs.by_id.values())
    limits = {queue: state.limits for queue, state in context.queues.items()}
    return whole_jobs.depths(jobs, queues, limits, limit, context.now_ms)


def stats(context: MemoryContext, queue: str | None = None, name: str | None = None) -> list[Stats]:
    """Counts, the oldest wait and durations by queue and name."""
    wanted = Filter(queue=queue, name=name)
    runs = [run for run in context.runs.values() if matches(run, wanted)]
    return statistics([*(job for _, job in _matching(context, wanted)), *runs], context.now_ms)


def logs(context: MemoryContext, id: str, limit: int = 1_000) -> list[LogLine]:
    """The last log lines of a job, oldest first."""
    return list(context.logs.get(id, ()))[-limit:]
