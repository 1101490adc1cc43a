"""Reading jobs. BullMQ keeps a job's hash, and its state as the list or sorted set that has its id."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from msgspec import structs

from jobmill.core.cursors import newer_than, older_than, read_cursor
from jobmill.core.job import STATES, Job, State
from jobmill.core.stats import matches
from jobmill.core.values import DEPTH_LIMIT, EVERYTHING, Count, CountUpTo, Depth, Filter, LogLine, Page, Stats
from jobmill.stores.common.whole_jobs import JobTally
from jobmill.stores.redis.codec import HELD_BY_JOBS, fields, job_of, without_lone_surrogates
from jobmill.stores.redis.context import MAX_JOBS_PER_CALL, MAX_READS_PER_CALL, RedisContext, by_queue
from jobmill.stores.redis.ids import RUN, local_id, queue_of
from jobmill.stores.redis.queues import all_queues, registered_queues
from jobmill.stores.redis.scripts import DEPTHS, GET, LENGTHS, PAGE

#: The lists and sorted sets of a queue and the state of the jobs in them, in the order in which a listing shows them.
SETS: dict[str, State] = {
    "wait": "waiting",
    "active": "running",
    "paused": "waiting",
    "prioritized": "waiting",
    "delayed": "waiting",
    "waiting-children": "waiting",
    "completed": "succeeded",
    "failed": "failed",
}
LISTS = ("wait", "active", "paused")
# The maximum number of calls for one page. If they find few matches, the page is not full but has a cursor.
_MAX_STEPS_PER_PAGE = 25
# See lua/lib/lease.lua.
_OUR_LOCK = re.compile(rb"jm:.*:(\d+)", re.DOTALL)
# The server needs about 2 ms for this number of queues.
_QUEUES_PER_CALL = 400


class FoundJob(NamedTuple):
    """A job, whether Jobmill enqueued it, its stored holders, and its position among all jobs that may match."""

    job: Job
    is_ours: bool
    held: bytes | None = None
    waits_for_children: bool = False
    position: int = 0


class _Part(NamedTuple):
    """A list or sorted set of a queue: the position of its first job among all jobs that may match, and its length."""

    queue: str
    set: str
    first: int
    length: int


async def get(c: RedisContext, ids: Sequence[str]) -> list[Job | None]:
    """See the port."""
    found = await stored_jobs(c, ids, await queues_of(c, ids))
    return [found[id].job if id in found else None for id in ids]


async def lease_ends(c: RedisContext, ids: Sequence[str]) -> list[int | None]:
    """See the port. A lock of Jobmill contains its end. A lock of Node ends when its key expires."""
    queues, found, now_ms = await queues_of(c, ids), dict[str, int](), c.clock.now()
    known = [id for id in dict.fromkeys(ids) if queues[id]]
    for queue, some in by_queue(known, lambda known_id: queues[known_id] or ""):
        rows = await c.run(GET, queue, 0, ids=[local_id(queue, id) for id in some])
        for id, row in zip(some, rows, strict=True):
            if not row or row[1] != b"running":
                continue
            key = f"{c.key(queue)}:{row[0].decode()}:lock"
            lock, left_ms = await c.client.many(key, [("GET", key), ("PTTL", key)])
            ours = _OUR_LOCK.fullmatch(lock or b"")
            found[id] = int(ours[1]) if ours else now_ms + max(0, left_ms)
    return [found.get(id) for id in ids]


async def stored_jobs(c: RedisContext, ids: Sequence[str], queues: dict[str, str | None]) -> dict[str, FoundJob]:
    """The jobs of these ids in these queues, by id."""
    found: dict[str, FoundJob] = {}
    known = [id for id in dict.fromkeys(ids) if queues[id]]
    for queue, some in by_queue(known, lambda known_id: queues[known_id] or ""):
        rows = await c.run(GET, queue, 0, ids=[local_id(queue, id) for id in some])
        found |= {id: _stored(c, queue, row, id) for id, row in zip(some, rows, strict=True) if row}
    return found


def _stored(c: RedisContext, queue: str, row: list[Any], shown: str | None = None, position: int = 0) -> FoundJob:
    """A job as get.lua and page.lua return it."""
    raw_id, state, score, flat = row
    h = without_lone_surrogates(fields(flat))
    id = raw_id.decode(errors="replace")
    job = job_of(queue, id, state.decode(), h, c.clock.now(), score=score, shown=shown)
    held = h.get(b"jmh", b"") if job.held is not None else None
    return FoundJob(job, b"jm" in h, held, score == HELD_BY_JOBS, position)


async def find(c: RedisContext, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
    """See the port. The order is by queue, then by set. A cursor is "<" or ">" and the number of jobs before it."""
    backwards, position = read_cursor(cursor)
    if filter.declared:
        declared = [job for job in await _declared(c, filter) if matches(job, filter)][position or 0 :]
        return Page(declared[:limit], older_than((position or 0) + limit) if len(declared) > limit else None)
    parts = await _parts(c, filter)
    total = _total(parts)
    start = min(position or 0, total)
    found: list[FoundJob] = []
    step = limit + 1
    max_read = _MAX_STEPS_PER_PAGE * _max_step(filter)
    low = high = start
    while len(found) < limit and (low > 0 if backwards else high < total) and high - low < max_read:
        step = min(step, _max_step(filter))
        if backwards:
            found = await _range(c, parts, filter, max(0, low - step), low, latest=True) + found
            low = max(0, low - step)
        else:
            found += await _range(c, parts, filter, high, min(total, high + step), latest=True)
            high = min(total, high + step)
        step *= 2
    if backwards:
        first = found[-limit].position if len(found) > limit else low
        newer = newer_than(first) if first > 0 else None
        return Page([one.job for one in found[-limit:]], older_than(start), newer)
    end = found[limit - 1].position + 1 if len(found) >= limit > 0 else high
    older = older_than(end) if len(found) > limit or end < total else None
    return Page([one.job for one in found[:limit]], older, newer_than(start) if start > 0 else None)


async def _declared(c: RedisContext, filter: Filter) -> list[Job]:
    """The recurring jobs that handlers declare, as each queue has them in a set."""
    queues = await registered_queues(c) if filter.queue is None else [filter.queue]
    replies = await c.each(queues, [("SMEMBERS", ":jobmill:declared")])
    found = zip(queues, replies, strict=True)
    return [
        job
        for job in await get(c, [f"{queue}:{RUN}{sid.decode()}" for queue, (sids,) in found for sid in sorted(sids)])
        if job is not None
    ]


async def count(c: RedisContext, filter: Filter) -> list[Count]:
    """See the port. Every job that may match is read."""
    return (await _tally(c, filter)).counts()


async def count_up_to(c: RedisContext, filter: Filter, limit: int) -> CountUpTo:
    """See the port. It reads jobs only if the filter has more conditions than queue and state."""
    if structs.replace(filter, queue=None, states=None) != EVERYTHING:
        found = 0
        async for _ in walk(c, filter):
            found += 1
            if found >= limit:
                break
        return CountUpTo(found, found < limit)
    counted = await depths(c, None if filter.queue is None else [filter.queue], limit)
    states = STATES if filter.states is None else filter.states
    fields = {field for state in states for field in (("due", "later", "held") if state == "waiting" else (state,))}
    total: int = sum(getattr(depth, field) for depth in counted for field in fields)
    return CountUpTo(min(limit, total), total < limit)


async def depths(c: RedisContext, queues: Sequence[str] | None = None, limit: int = DEPTH_LIMIT) -> list[Depth]:
    """See the port. Redis knows the lengths of lists and sorted sets, so no jobs are counted.

    The search for the oldest due job reads only the first jobs of each list and priority.
    """
    names = await all_queues(c) if queues is None else sorted(set(queues))
    if limit == 0:
        found = zip(names, await c.each(names, [("EXISTS", ":meta")]), strict=True)
        return [Depth(queue=queue, exact=False) for queue, (exists,) in found if exists or queues is not None]
    items = [(queue, c.key(queue)) for queue in names]
    replies = await c.run_in_batches(DEPTHS, "queues", items, _QUEUES_PER_CALL)
    now_ms = c.clock.now()
    return [
        _depth(queue, counts, due, limited_ms, limit, now_ms)
        for queue, (exists, counts, due, limited_ms) in zip(names, replies, strict=True)
        if exists or queues is not None
    ]


def _depth(queue: str, counts: list[int], due: list[Any], limited_ms: int, limit: int, now_ms: int) -> Depth:
    due_ms = [one if isinstance(one, int) else _due_ms(queue, one, now_ms) for one in due]
    about: dict[str, Any] = {"queue": queue, "oldest_due_ms": min(due_ms, default=None)}
    if limited_ms >= 0:
        about["limited_until_ms"] = limited_ms
    if len(counts) == 1:
        return Depth(due=min(limit, counts[0]), exact=counts[0] < limit, **about)
    wait, paused, prioritized, due_now, delayed, held, running, succeeded, failed, cancelled = counts
    states: dict[str, Any] = {
        "due": wait + paused + prioritized + due_now,
        "later": delayed - due_now,
        "held": held,
        "running": running,
        "succeeded": succeeded,
        "failed": max(0, failed - cancelled),
        "cancelled": min(cancelled, failed),
    }
    at_most: dict[str, Any] = {state: min(limit, n) for state, n in states.items()}
    return Depth(exact=max(states.values()) < limit, **about, **at_most)


def _due_ms(queue: str, waiting: tuple[bytes, bytes, list[bytes]], now_ms: int) -> int:
    id, score, flat = waiting
    return job_of(queue, id.decode(errors="replace"), "waiting", fields(flat), now_ms, score=score).due_ms


async def stats(c: RedisContext, queue: str | None = None, name: str | None = None) -> list[Stats]:
    """See the port. Every job is read."""
    return (await _tally(c, Filter(queue=queue, name=name))).stats()


async def _tally(c: RedisContext, filter: Filter) -> JobTally:
    tally = JobTally(c.clock.now())
    async for one in walk(c, filter):
        tally.add(one.job)
    return tally


async def logs(c: RedisContext, id: str, limit: int = 1_000) -> list[LogLine]:
    """See the port. BullMQ stores log lines without times. The times of Jobmill's lines are in the hash of the job."""
    queue = (await queues_of(c, [id]))[id]
    (row,) = await c.run(GET, queue, 0, ids=[local_id(queue, id)]) if queue else [None]
    if not row or limit <= 0:
        return []
    key = f"{c.key(queue or '')}:{row[0].decode()}:logs"
    lines = await c.client.call(key, "LRANGE", key, -limit, -1)
    times = _times(fields(row[3]).get(b"jmt", b"").decode(), len(lines))
    return [LogLine(at, line.decode(errors="replace")) for at, line in zip(times, lines, strict=True)]


def _times(text: str, lines: int) -> list[int]:
    """The times of the last log lines. The text has one "ms:number of lines" for each report."""
    times: list[int] = []
    for part in reversed(text.split()):
        ms, _, number = part.partition(":")
        times += [int(ms)] * int(number)
        if len(times) >= lines:
            break
    return [0] * (lines - len(times)) + times[:lines][::-1]


# ---------------------------------------------------------------------------------------------------- scans


async def walk(c: RedisContext, filter: Filter) -> AsyncIterator[FoundJob]:
    """Every job that matches. A job that changes its state during the scan may come twice or not at all."""
    parts = await _parts(c, filter)
    total, step = _total(parts), _max_step(filter)
    for low in range(0, total, step):
        for one in await _range(c, parts, filter, low, min(total, low + step)):
            yield one


def _max_step(filter: Filter) -> int:
    """The number of jobs that one call may read. With a unique key, the script returns only jobs that have it."""
    return MAX_JOBS_PER_CALL if filter.unique_key is None else 10 * MAX_JOBS_PER_CALL


async def _parts(c: RedisContext, filter: Filter) -> list[_Part]:
    """All lists and sorted sets in which a filter may match jobs."""
    queues = [filter.queue] if filter.queue is not None else await all_queues(c)
    wanted = set(STATES if filter.states is None else filter.states)
    names = [name for name, state in SETS.items() if state in wanted]
    if filter.held is not None:
        names = [name for name in names if (name == "waiting-children") == filter.held]
    if "cancelled" in wanted and "failed" not in wanted and not filter.held:
        names.append("jobmill:cancelled")
    lists = [name for name in names if name in LISTS]
    sets = [name for name in names if name not in LISTS]
    if not names:
        return []
    items = [(queue, c.key(queue)) for queue in queues]
    request = {"lists": lists, "sets": sets, "key": filter.unique_key}
    parts: list[_Part] = []
    first = 0
    for queue, lengths in zip(
        queues, await c.run_in_batches(LENGTHS, "queues", items, _QUEUES_PER_CALL, **request), strict=True
    ):
        for name, length in zip((*lists, *sets), lengths, strict=False):
            if length:
                parts.append(_Part(queue, name, first, length))
                first += length
    return parts


def _total(parts: list[_Part]) -> int:
    return parts[-1].first + parts[-1].length if parts else 0


async def _range(
    c: RedisContext, parts: list[_Part], filter: Filter, low: int, high: int, *, latest: bool = False
) -> list[FoundJob]:
    """The matching jobs from one position up to another. `latest`: final jobs that ended last come first."""
    start = bisect_right(parts, low, key=lambda part: part.first) - 1
    end = bisect_left(parts, high, key=lambda part: part.first)
    some = parts[start:end]

    requests: list[tuple[str, Any]] = []
    for queue, name, before, length in some:
        first, last = max(low, before) - before, min(high, before + length) - before - 1
        requests.append((queue, (c.key(queue), name, SETS.get(name, "cancelled"), first, last)))
    pages = await c.run_in_batches(PAGE, "parts", requests, MAX_READS_PER_CALL, key=filter.unique_key, latest=latest)
    found = [
        _stored(c, part.queue, row, position=part.first + position)
        for part, page in zip(some, pages, strict=True)
        for position, *row in page
    ]
    return [one for one in found if matches(one.job, filter)]


# ---------------------------------------------------------------------------------------------------- ids


async def queues_of(c: RedisContext, ids: Sequence[str]) -> dict[str, str | None]:
    """The queue of each id. None if no queue has a job with this id, "" if several queues have one."""
    found: dict[str, str | None] = {id: queue_of(id) for id in ids}
    without = [id for id, queue in found.items() if queue is None and id]
    if without:
        registered = await registered_queues(c)
        await _search(c, without, registered, found)
        if without := [id for id in without if found[id] is None]:
            await _search(c, without, sorted(set(await all_queues(c)).difference(registered)), found)
    return found


async def _search(c: RedisContext, ids: list[str], queues: list[str], found: dict[str, str | None]) -> None:
    replies = await c.each(queues, [("EXISTS", f":{id}") for id in ids])
    for queue, existing in zip(queues, replies, strict=True):
        for id, exists in zip(ids, existing, strict=True):
            if exists:
                found[id] = queue if found[id] is None else ""
