"""Statistics that several stores compute in the same way, and the match of a job with a filter."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from jobmill.core.job import Job
from jobmill.core.values import Count, Filter, Stats

#: A store that keeps jobs in order measures durations over this number of succeeded jobs of a name: the last ones.
MAX_DURATIONS = 10_000


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile of values in order; None of none."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def stats(
    queue: str, name: str, counts: dict[str, int], oldest_waiting_ms: int | None, durations: Sequence[float]
) -> Stats:
    """The statistics of one queue and name."""
    ordered = sorted(durations)
    return Stats(
        queue=queue,
        name=name,
        **counts,
        oldest_waiting_ms=oldest_waiting_ms,
        average_ms=sum(ordered) / len(ordered) if ordered else None,
        p50_ms=percentile(ordered, 0.50),
        p95_ms=percentile(ordered, 0.95),
        p99_ms=percentile(ordered, 0.99),
    )


def by_queue_and_name(counts: Iterable[Count]) -> Mapping[tuple[str, str], dict[str, int]]:
    """Counts as a table: (queue, name) > state > count. Counts of jobs and of runs are added."""
    table: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for one in counts:
        table[one.queue, one.name][one.state] += one.count
    return table


def matches(job: Job, wanted: Filter) -> bool:
    """Whether a job matches a filter."""
    return (
        (wanted.queue is None or job.queue == wanted.queue)
        and (wanted.name is None or job.name == wanted.name)
        and (wanted.states is None or job.state in wanted.states)
        and (wanted.tenant is None or job.tenant == wanted.tenant)
        and (wanted.unique_key is None or job.unique_key == wanted.unique_key)
        and (wanted.flow is None or job.flow == wanted.flow)
        and (wanted.lane is None or job.lane == wanted.lane)
        and (not wanted.declared or (job.recurrence is not None and job.recurrence.declared))
        and (wanted.held is None or (job.held is not None) == wanted.held)
        and (wanted.recurring is None or (job.recurrence is not None) == wanted.recurring)
        and (wanted.errored is None or (job.errors > 0) == wanted.errored)
        and (wanted.name_prefix is None or job.name.startswith(wanted.name_prefix))
        and (wanted.error_type is None or job.error_type == wanted.error_type)
        and (wanted.payload is None or payload_matches(job.payload_json, wanted.payload))
        and _within(job.created_ms, wanted.created_after_ms, wanted.created_before_ms)
        and _within(job.due_ms, wanted.due_after_ms, wanted.due_before_ms)
        and _within(job.finished_ms, wanted.finished_after_ms, wanted.finished_before_ms)
    )


def payload_matches(payload_json: Raw, wanted: dict[str, Any]) -> bool:
    """Whether a payload is an object that has these values; False where it cannot be read."""
    try:
        payload = msgspec.json.decode(payload_json)
    except (ValueError, RecursionError):
        return False
    return isinstance(payload, dict) and all(
        field in payload and _same(payload[field], value) for field, value in wanted.items()
    )


def _same(one: Any, other: Any) -> bool:
    # To Python, True equals 1.
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _within(ms: int | None, first: int | None, end: int | None) -> bool:
    if first is None and end is None:
        return True
    return ms is not None and (first is None or first <= ms) and (end is None or ms < end)
