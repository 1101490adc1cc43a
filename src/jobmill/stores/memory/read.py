"""The verbs that only read: get, count, depths, stats and logs; search.py has find and count_up_to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

from msgspec import structs

from jobmill.core.due import NEVER_MS
from jobmill.core.job import STATES, Job, State
from jobmill.core.stats import MAX_DURATIONS, by_queue_and_name, matches
from jobmill.core.stats import stats as summary
from jobmill.core.values import DEPTH_LIMIT, Count, Depth, Filter, LogLine, Stats
from jobmill.stores.common.whole_jobs import NO_LIMITS
from jobmill.stores.memory.context import MemoryContext
from jobmill.stores.memory.filters import is_answered, matching, merged, ranges_of, wanted_states


def get(context: MemoryContext, ids: Sequence[str]) -> list[Job | None]:
    """Jobs by id."""
    return [stored.job if (stored := context.jobs.by_id.get(id)) else None for id in ids]


def lease_ends(context: MemoryContext, ids: Sequence[str]) -> list[int | None]:
    """When the leases of jobs end."""
    running = {id: stored for id in ids if (stored := context.jobs.by_id.get(id)) and stored.job.state == "running"}
    return [running[id].lease_until_ms if id in running else None for id in ids]


def count(context: MemoryContext, filter: Filter) -> list[Count]:
    """How many jobs match, by queue, name and state."""
    counts: Counter[tuple[str, str, State]] = Counter()
    for state in wanted_states(filter):
        if is_answered(filter, state):
            for one in ranges_of(context.jobs, filter, state):
                counts[one.queue, one.name, state] += one.positions.count(one.low, one.high)
        else:
            found = matching(context.jobs, structs.replace(filter, states=(state,)))
            counts.update((job.queue, job.name, state) for job in found)
    found_counts = (Count(*key, number) for key, number in counts.items() if number)
    return sorted(found_counts, key=lambda one: (one.queue, one.name, STATES.index(one.state)))


def depths(context: MemoryContext, queues: Sequence[str] | None = None, limit: int = DEPTH_LIMIT) -> list[Depth]:
    """How many jobs queues have in each state."""
    names = set(queues or ())
    if queues is None:
        names = {
            queue for queue, positions in context.jobs.enqueued.items() if positions.first(1)
        } | context.queues.keys()
    return [_depth(context, queue, limit) for queue in sorted(names)]


def _depth(context: MemoryContext, queue: str, limit: int) -> Depth:
    jobs, now_ms = context.jobs, context.now_ms
    counts = Counter({"running": len(jobs.running.get(queue, ()))})
    oldest: list[int] = []
    for (priority, _), positions in jobs.waiting.get(queue, {}).items():
        due = positions.count((priority,), (priority, now_ms + 1))
        held = positions.count((priority, NEVER_MS), (priority, NEVER_MS + 1))
        counts.update(due=due, held=held, later=positions.count() - due - held)
        oldest += [due_ms for _, due_ms, *_ in positions.first(1) if due_ms <= now_ms]
    for (state, *_), positions_ in jobs.final.get(queue, {}).items():
        counts[state] += positions_.count()
    limits = context.queues[queue].limits if queue in context.queues else NO_LIMITS
    return Depth(
        queue=queue,
        **{place: min(limit, number) for place, number in counts.items()},
        oldest_due_ms=min(oldest, default=None),
        limited_until_ms=limits.limited_until_ms(now_ms),
        exact=all(number < limit for number in counts.values()),
    )


def stats(context: MemoryContext, queue: str | None = None, name: str | None = None) -> list[Stats]:
    """Counts, the oldest wait and durations by queue and name."""
    wanted = Filter(queue=queue, name=name)
    runs = [run for run in context.runs.values() if matches(run, wanted)]
    table = by_queue_and_name([*count(context, wanted), *(Count(run.queue, run.name, run.state, 1) for run in runs)])
    return [_stats_of(context, Filter(queue=key[0], name=key[1]), runs, counts) for key, counts in table.items()]


def _stats_of(context: MemoryContext, wanted: Filter, runs: list[Job], counts: dict[str, int]) -> Stats:
    """The statistics of one queue and name."""
    waiting, succeeded = (ranges_of(context.jobs, wanted, state) for state in ("waiting", "succeeded"))
    waits_ms = [context.now_ms - due_ms for one in waiting for _, due_ms, *_ in one.positions.first(1)]
    last = (context.jobs.by_id[id].job for *_, id in islice(merged(succeeded, descending=True), MAX_DURATIONS))
    durations = _durations(
        [*last, *(run for run in runs if matches(run, structs.replace(wanted, states=("succeeded",))))]
    )
    oldest_ms = max((ms for ms in waits_ms if ms >= 0), default=None)
    return summary(wanted.queue or "", wanted.name or "", counts, oldest_ms, durations)


def _durations(jobs: Iterable[Job]) -> list[float]:
    return [
        job.finished_ms - job.started_ms for job in jobs if job.finished_ms is not None and job.started_ms is not None
    ]


def logs(context: MemoryContext, id: str, limit: int = 1_000) -> list[LogLine]:
    """The last log lines of a job, oldest first."""
    return list(context.logs.get(id, ()))[-limit:]
