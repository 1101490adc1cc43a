"""Which index ranges have the jobs that a filter matches."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from msgspec import structs

from jobmill.core.due import NEVER_MS
from jobmill.core.job import FINAL, LIVE, STATES, Job, State
from jobmill.core.stats import matches
from jobmill.core.values import EVERYTHING, SEARCHED_PER_PAGE, Filter
from jobmill.stores.memory.job_table import JobTable, StoredJob
from jobmill.stores.memory.sorted_list import END, START, SortedList

#: Numbers that say where a job stands in an order, and its id.
Position: TypeAlias = tuple[Any, ...]


class IndexRange(NamedTuple):
    """Jobs of one queue and name in the order of their state, and the part of them that may match."""

    queue: str
    name: str
    positions: SortedList[Any]
    low: Position = START
    high: Position = END


def wanted_states(wanted: Filter) -> list[State]:
    """The states that a filter matches, in their order."""
    return [state for state in STATES if wanted.states is None or state in wanted.states]


def ranges_of(jobs: JobTable, wanted: Filter, state: State) -> list[IndexRange]:
    """The index ranges of one state that may have matches.

    Waiting jobs are in the order of claims, running jobs by their start, final jobs by their end.
    """
    if state == "waiting":
        found = _waiting_ranges(jobs, wanted)
    elif state == "running":
        found = _running_ranges(jobs, wanted)
    else:
        found = _final_ranges(jobs, wanted, state)
    prefix = wanted.name_prefix or ""
    return [one for one in found if wanted.name in (None, one.name) and one.name.startswith(prefix)]


def _waiting_ranges(jobs: JobTable, wanted: Filter) -> Iterator[IndexRange]:
    low, high = _bounds(wanted.due_after_ms, wanted.due_before_ms)
    if wanted.held:
        low, high = max(low, (NEVER_MS,)), min(high, (NEVER_MS + 1,))
    for queue in _queues(jobs.waiting, wanted):
        for (priority, name), positions in jobs.waiting[queue].items():
            yield IndexRange(queue, name, positions, (priority, *low), (priority, *high))


def _running_ranges(jobs: JobTable, wanted: Filter) -> Iterator[IndexRange]:
    """Made for this call: running jobs are few, and have no index in the order of their start."""
    for queue in _queues(jobs.running, wanted):
        by_name: defaultdict[str, list[Position]] = defaultdict(list)
        for stored in jobs.running[queue].values():
            by_name[stored.job.name].append(stored.run_position())
        for name, positions in by_name.items():
            yield IndexRange(queue, name, SortedList([sorted(positions)]))


def _final_ranges(jobs: JobTable, wanted: Filter, state: State) -> Iterator[IndexRange]:
    low, high = _bounds(wanted.finished_after_ms, wanted.finished_before_ms)
    for queue in _queues(jobs.final, wanted):
        for (state_, name, _), positions in jobs.final[queue].items():
            if state_ == state:
                yield IndexRange(queue, name, positions, low, high)


def _queues(by_queue: dict[str, Any], wanted: Filter) -> list[str]:
    return [queue for queue in (by_queue if wanted.queue is None else (wanted.queue,)) if queue in by_queue]


def _bounds(first: int | None, end: int | None) -> tuple[Position, Position]:
    return START if first is None else (first,), END if end is None else (end,)


def is_answered(wanted: Filter, state: State) -> bool:
    """Whether all jobs in the index ranges of a state match, so that none of them must be read."""
    rest = structs.replace(wanted, queue=None, name=None, name_prefix=None, states=None)
    if state == "waiting":
        if wanted.held is False and wanted.due_before_ms is not None and wanted.due_before_ms <= NEVER_MS:
            rest = structs.replace(rest, held=None)
        rest = structs.replace(rest, due_after_ms=None, due_before_ms=None)
    elif state != "running":
        rest = structs.replace(rest, finished_after_ms=None, finished_before_ms=None)
    return rest == EVERYTHING


def candidates(jobs: JobTable, wanted: Filter, state: State) -> Iterator[StoredJob]:
    """The jobs of one state that may match, in the order of that state, oldest first."""
    few = _few(jobs, wanted)
    if few is None:
        return (jobs.by_id[position[-1]] for position in merged(ranges_of(jobs, wanted, state)))
    return (stored for stored in few if stored.job.state == state)


def matching(jobs: JobTable, wanted: Filter) -> Iterator[Job]:
    """All jobs that match, state by state."""
    for state in wanted_states(wanted):
        yield from (one.job for one in candidates(jobs, wanted, state) if matches(one.job, wanted))


def ordered_ranges(jobs: JobTable, wanted: Filter) -> tuple[list[IndexRange], bool]:
    """The index ranges of a page, and whether it begins at their ends.

    Jobs of one state are in the order of that state. Others are listed newest first.
    """
    states = wanted_states(wanted)
    order = states[0] if len(states) == 1 else None
    few = _few(jobs, wanted)
    if few is None and order is not None:
        return ranges_of(jobs, wanted, order), order in FINAL
    if few is None and (wanted.states, wanted.name, wanted.name_prefix) != (None, None, None):
        # Where these have few jobs, it is better to sort them than to read all jobs until a page is full.
        ranges = [one for state in states for one in ranges_of(jobs, wanted, state)]
        if sum(one.positions.count(one.low, one.high) for one in ranges) <= SEARCHED_PER_PAGE:
            few = [jobs.by_id[id] for one in ranges for *_, id in one.positions.between(one.low, one.high)]
    if few is not None:
        positions = [_position(stored, order) for stored in few if matches(stored.job, wanted)]
        return [IndexRange("", "", SortedList([sorted(positions)]))], order not in LIVE
    return [IndexRange(queue, "", jobs.enqueued[queue]) for queue in _queues(jobs.enqueued, wanted)], True


def merged(ranges: Sequence[IndexRange], *, descending: bool = False) -> Iterator[Position]:
    """The positions in several index ranges, in order."""
    parts = [one.positions.between(one.low, one.high, descending=descending) for one in ranges]
    return parts[0] if len(parts) == 1 else heapq.merge(*parts, reverse=descending)


def _few(jobs: JobTable, wanted: Filter) -> Iterable[StoredJob] | None:
    """The jobs that may match, where an index has a few of them among many; None where it does not."""
    if wanted.unique_key is not None:
        return jobs.keyed[wanted.unique_key].values() if wanted.unique_key in jobs.keyed else ()
    if wanted.flow is not None:
        return jobs.flows[wanted.flow].values() if wanted.flow in jobs.flows else ()
    return jobs.recurring.values() if wanted.recurring or wanted.declared else None


def _position(stored: StoredJob, order: State | None) -> Position:
    match order:
        case None:
            return (stored.seq, stored.job.id)
        case "waiting":
            return stored.claim_position()
        case "running":
            return stored.run_position()
        case _:
            return stored.final_position()
