"""The verbs find, count, count_up_to and stats: which lists and sets are searched, and how many jobs are examined."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from msgspec import structs

from jobmill.core.cursors import newer_than, older_than, read_cursor
from jobmill.core.job import FINAL, LIVE, STATES
from jobmill.core.stats import matches
from jobmill.core.values import EVERYTHING, SEARCHED_PER_PAGE, Count, CountUpTo, Filter, Page, Stats
from jobmill.stores.common.whole_jobs import JobTally
from jobmill.stores.redis.context import MAX_JOBS_PER_CALL, MAX_READS_PER_CALL, RedisContext, by_queue
from jobmill.stores.redis.filters import scores, tests
from jobmill.stores.redis.ids import RUN, local_id, port_id, queue_of
from jobmill.stores.redis.queues import all_queues, registered_queues
from jobmill.stores.redis.read import LISTS, QUEUES_PER_CALL, SETS, FoundJob, depths, found_job
from jobmill.stores.redis.scripts import LENGTHS, MATCHING, PAGE

# Of a search that reads a few fields of most jobs. A server takes about 3 ms for this many.
_MAX_SEARCHED_PER_CALL = 2_000


class _Part(NamedTuple):
    """A list or sorted set of a queue: the position of its first job among all jobs that may match, and its length."""

    queue: str
    set: str
    first: int
    length: int


async def find(c: RedisContext, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
    """See the port. The order is by queue, then by set. A cursor is "<" or ">" and the number of jobs before it."""
    backwards, position = read_cursor(cursor)
    jobs = await _candidates(c, filter)
    await jobs.reach(position or 0)
    low = high = start = min(position or 0, jobs.total)
    found: list[FoundJob] = []
    step = min(limit + 1, MAX_JOBS_PER_CALL)
    while len(found) < limit and high - low < SEARCHED_PER_PAGE and (low > 0 if backwards else await jobs.reach(high)):
        first, end = (max(0, low - step), low) if backwards else (high, min(jobs.total, high + step))
        low, high = min(low, first), max(high, end)
        _, some = await jobs.read(first, end, want=limit + 1 - len(found), latest=True, backwards=backwards)
        found = some + found if backwards else found + some
        step = _next_step(step, len(some))
    if backwards:
        first = found[-limit].position if len(found) > limit else low
        newer = newer_than(first) if first > 0 else None
        return Page([one.job for one in found[-limit:]], older_than(start), newer)
    end = found[limit - 1].position + 1 if len(found) >= limit > 0 else high
    older = older_than(end) if len(found) > limit or await jobs.reach(end) else None
    return Page([one.job for one in found[:limit]], older, newer_than(start) if start > 0 else None)


async def count(c: RedisContext, filter: Filter) -> list[Count]:
    """See the port. Every job that may match is read; of the jobs of a flow, the server counts what it can decide."""
    if filter.flow is None:
        return (await _tally(c, filter)).counts()
    jobs = await _jobs_of_flow(c, filter)
    tally = JobTally(c.clock.now())
    step = _MAX_SEARCHED_PER_CALL if jobs.can_count else MAX_JOBS_PER_CALL
    for low in range(0, jobs.total, step):
        counted, found = await jobs.count(low, low + step)
        tally.add_counts(counted)
        for one in found:
            tally.add(one.job)
    return tally.counts()


async def count_up_to(c: RedisContext, filter: Filter, limit: int) -> CountUpTo:
    """See the port. It reads jobs only if the filter has more conditions than queue and state."""
    if structs.replace(filter, queue=None, states=None) != EVERYTHING:
        return await _count_matches(c, filter, limit)
    counted = await depths(c, None if filter.queue is None else [filter.queue], limit)
    states = STATES if filter.states is None else filter.states
    fields = {field for state in states for field in (("due", "later", "held") if state == "waiting" else (state,))}
    total: int = sum(getattr(depth, field) for depth in counted for field in fields)
    return CountUpTo(min(limit, total), total < limit)


async def _count_matches(c: RedisContext, filter: Filter, limit: int) -> CountUpTo:
    """Count the matches among the first jobs. The server does it where it can decide about them."""
    jobs = await _candidates(c, filter)
    count, high, step = 0, 0, _MAX_SEARCHED_PER_CALL
    while count < limit and high < SEARCHED_PER_PAGE and await jobs.reach(high):
        first, high = high, min(jobs.total, high + step)
        counted, read = await jobs.read(first, high, want=limit - count, counts=True)
        count += counted + len(read)
        step = _next_step(step, len(read))
    return CountUpTo(min(limit, count), count < limit and not await jobs.reach(high))


async def stats(c: RedisContext, queue: str | None = None, name: str | None = None) -> list[Stats]:
    """See the port. Every job is read."""
    return (await _tally(c, Filter(queue=queue, name=name))).stats()


async def _tally(c: RedisContext, filter: Filter) -> JobTally:
    tally = JobTally(c.clock.now())
    async for one in walk(c, filter):
        tally.add(one.job)
    return tally


# ---------------------------------------------------------------------------------------------------- scans


async def walk(c: RedisContext, filter: Filter) -> AsyncIterator[FoundJob]:
    """Every job that matches. A job that changes its state during the scan may come twice or not at all."""
    jobs = await _candidates(c, filter) if filter.flow is not None else await _sets(c, filter)
    await jobs.reach(None)
    high, step = 0, MAX_JOBS_PER_CALL
    while high < jobs.total:
        first, high = high, min(jobs.total, high + step)
        _, found = await jobs.read(first, high)
        for one in found:
            yield one
        step = _next_step(step, len(found))


class _JobsById:
    """Jobs that a filter may match, by their ids with the names of their queues."""

    def __init__(self, c: RedisContext, filter: Filter, ids: list[str]) -> None:
        self._context = c
        self._filter = filter
        self._ids = ids
        self.total = len(ids)
        #: Whether the server can decide which jobs match.
        self.can_count = structs.replace(filter, queue=None, states=None, flow=None, name=None) == EVERYTHING

    async def reach(self, position: int | None) -> bool:
        """See `_JobsInSets`."""
        return position is not None and position < self.total

    async def read(self, low: int, high: int, **_: Any) -> tuple[int, list[FoundJob]]:
        """See `_JobsInSets`."""
        return 0, (await self._matching(low, high))[1]

    async def count(self, low: int, high: int) -> tuple[list[Count], list[FoundJob]]:
        """How many jobs match, and the jobs that the server cannot decide about."""
        return await self._matching(low, high, counts=self._filter.flow if self.can_count else None)

    async def _matching(self, low: int, high: int, counts: str | None = None) -> tuple[list[Count], list[FoundJob]]:
        c, filter, numbers = self._context, self._filter, list[Count]()
        request: dict[str, Any] = {"match": tests(filter), "key": filter.unique_key, "counts": counts}
        request["states"] = None if filter.states is None else dict.fromkeys(filter.states, True)
        found: list[FoundJob] = []
        some_ids = enumerate(self._ids[low:high], low)
        for queue, some in by_queue(some_ids, lambda one: queue_of(one[1]) or "", high - low):
            ids = [local_id(queue, id) for _, id in some]
            counted, rows = await c.run(MATCHING, queue, c.clock.now(), ids=ids, **request)
            numbers += [Count(queue, name.decode(), state.decode(), n) for state, name, n in counted]
            found += [_with_port_id(found_job(c, queue, row, position=some[i - 1][0]), ids[i - 1]) for i, *row in rows]
        return numbers, [one for one in found if matches(one.job, filter)]


def _with_port_id(found: FoundJob, id: str) -> FoundJob:
    """A job that was found by this id."""
    return found._replace(job=structs.replace(found.job, id=port_id(found.job.queue, id, found.is_ours)))


class _JobsInSets:
    """Jobs that a filter may match: positions in the lists and sorted sets of queues, one queue after the other.

    The lengths are read only as far as positions are needed: 20,000 queues have many of them.
    """

    def __init__(self, c: RedisContext, filter: Filter, queues: list[str], names: list[str]) -> None:
        self._context = c
        self._filter = filter
        self._queues = queues if names else []
        self._lists = [name for name in names if name in LISTS]
        self._sets = [name for name in names if name not in LISTS]
        self._parts: list[_Part] = []
        self._known_queues = 0
        #: How many jobs there are in the queues that are known so far.
        self.total = 0

    async def reach(self, position: int | None) -> bool:
        """Read lengths up to this position, or all of them (None); whether there is a job at this position."""
        while self._known_queues < len(self._queues) and (position is None or position >= self.total):
            start = self._known_queues
            self._known_queues = len(self._queues) if position is None else max(QUEUES_PER_CALL, 2 * start)
            await self._read_lengths(self._queues[start : self._known_queues])
        return position is not None and position < self.total

    async def _read_lengths(self, queues: list[str]) -> None:
        c, filter = self._context, self._filter
        items = [(queue, c.key(queue)) for queue in queues]
        request = {"lists": self._lists, "sets": self._sets, "key": filter.unique_key, "scores": scores(filter)}
        answers = await c.run_in_batches(LENGTHS, "queues", items, QUEUES_PER_CALL, **request)
        for queue, lengths in zip(queues, answers, strict=True):
            for name, length in zip((*self._lists, *self._sets), lengths, strict=False):
                if length:
                    self._parts.append(_Part(queue, name, self.total, length))
                    self.total += length

    async def read(
        self,
        low: int,
        high: int,
        *,
        want: int | None = None,
        counts: bool = False,
        latest: bool = False,
        backwards: bool = False,
    ) -> tuple[int, list[FoundJob]]:
        """The matching jobs from one position up to another, or the first `want` of them; `backwards`, the last.

        With `counts`, jobs that the server can decide about are counted instead: the number, and the other ones.
        `latest`: final jobs that ended last come first.
        """
        c, filter = self._context, self._filter
        start = bisect_right(self._parts, low, key=lambda part: part.first) - 1
        end = bisect_left(self._parts, high, key=lambda part: part.first)
        some = self._parts[start:end]
        requests: list[tuple[str, Any]] = []
        for queue, name, before, length in some:
            first, last = max(low, before) - before, min(high, before + length) - before - 1
            requests.append((queue, (c.key(queue), name, SETS.get(name, "cancelled"), first, last)))
        request = {
            "key": filter.unique_key,
            "match": tests(filter),
            "scores": scores(filter),
            "states": None if filter.states is None else dict.fromkeys(filter.states, True),
            "want": high - low if want is None else want,
            "counts": counts,
            "latest": latest,
            "backwards": backwards,
        }
        answers = await c.run_in_batches(PAGE, "parts", requests, MAX_READS_PER_CALL, **request)
        found = [
            found_job(c, part.queue, row, position=part.first + position)
            for part, (_, page) in zip(some, answers, strict=True)
            for position, *row in (reversed(page) if backwards else page)
        ]
        return sum(counted for counted, _ in answers), [one for one in found if matches(one.job, filter)]


async def _candidates(c: RedisContext, filter: Filter) -> _JobsById | _JobsInSets:
    """The jobs that a filter may match.

    Each queue has the jobs of a flow in a set, which may have jobs that Node has removed. It has the schedulers of its
    recurring jobs in a sorted set (BullMQ's own). A scheduler that has ended is not there, and its last run may still
    wait: ours are in a hash as well.
    """
    if filter.flow is not None:
        return await _jobs_of_flow(c, filter)
    is_live = filter.recurring and filter.states is not None and set(LIVE).issuperset(filter.states)
    if not (filter.declared or is_live):
        return await _sets(c, filter)
    if filter.declared:
        queues = await registered_queues(c) if filter.queue is None else [filter.queue]
        commands: list[Sequence[Any]] = [("SMEMBERS", ":jobmill:declared")]
    else:
        queues = await all_queues(c) if filter.queue is None else [filter.queue]
        commands = [("ZRANGE", ":repeat", 0, -1), ("HKEYS", ":jobmill:recurring")]
    ids = [
        f"{queue}:{RUN}{sid.decode(errors='replace')}"
        for queue, replies in zip(queues, await c.each(queues, commands), strict=True)
        for sid in sorted({sid for sids in replies for sid in sids})
    ]
    return _JobsById(c, filter, ids)


async def _jobs_of_flow(c: RedisContext, filter: Filter) -> _JobsById:
    queues = await registered_queues(c) if filter.queue is None else [filter.queue]
    sets = await c.each(queues, [("SMEMBERS", f":jobmill:flow:{filter.flow}")])
    return _JobsById(
        c,
        filter,
        [
            f"{queue}:{id.decode(errors='replace')}"
            for queue, (found,) in zip(queues, sets, strict=True)
            for id in sorted(found)
        ],
    )


async def _sets(c: RedisContext, filter: Filter) -> _JobsInSets:
    """All lists and sorted sets in which a filter may match jobs."""
    queues = [filter.queue] if filter.queue is not None else await all_queues(c)
    wanted = set(STATES if filter.states is None else filter.states)
    names = [name for name, state in SETS.items() if state in wanted]
    if filter.held is not None:
        names = [name for name in names if (name == "waiting-children") == filter.held]
    if filter.due_after_ms is not None and filter.due_after_ms > c.clock.now():
        names = [name for name in names if name not in ("wait", "paused", "prioritized")]
    if (filter.finished_after_ms, filter.finished_before_ms) != (None, None):
        names = [name for name in names if SETS[name] in FINAL]
    if "cancelled" in wanted and "failed" not in wanted and not filter.held:
        names.append("jobmill:cancelled")
    return _JobsInSets(c, filter, queues, names)


def _next_step(step: int, read: int) -> int:
    """How many jobs the next call may search. A job that may match is read whole, and most of the time goes there."""
    return min(2 * step, MAX_JOBS_PER_CALL if 4 * read > step else _MAX_SEARCHED_PER_CALL)
