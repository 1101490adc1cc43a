"""Reading jobs. BullMQ keeps a job's hash, and its state as the list or sorted set that has its id."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from jobmill.core.cursors import newer_than, older_than, read_cursor
from jobmill.core.job import STATES, Job, State
from jobmill.core.stats import matches
from jobmill.core.values import Count, Filter, LogLine, Page, Stats
from jobmill.stores.common.whole_jobs import JobTally
from jobmill.stores.redis.codec import fields, job_of, without_lone_surrogates
from jobmill.stores.redis.context import MAX_JOBS_PER_CALL, RedisContext, by_queue
from jobmill.stores.redis.ids import RUN, local_id, queue_of
from jobmill.stores.redis.queues import all_queues, for_each, registered_queues
from jobmill.stores.redis.scripts import GET, PAGE

#: The lists and sorted sets of a queue and the state of the jobs in them, in the order in which a listing shows them.
SETS: dict[str, State] = {
    "active": "running",
    "wait": "waiting",
    "paused": "waiting",
    "prioritized": "waiting",
    "delayed": "waiting",
    "waiting-children": "waiting",
    "completed": "succeeded",
    "failed": "failed",
}
_LISTS = ("active", "wait", "paused")
# A page that finds few matches ends after this many jobs, and has a cursor.
_MAX_READ_PER_PAGE = 5_000


class FoundJob(NamedTuple):
    """A job, its position among all that a filter may match, and whether Jobmill made it."""

    job: Job
    is_ours: bool
    position: int = 0


class _Part(NamedTuple):
    """A list or sorted set of a queue, and its length."""

    queue: str
    set: str
    length: int


async def get(c: RedisContext, ids: Sequence[str]) -> list[Job | None]:
    """See the port."""
    found = await stored_jobs(c, ids, await queues_of(c, ids))
    return [found[id].job if id in found else None for id in ids]


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
    return FoundJob(job, b"jm" in h, position)


async def find(c: RedisContext, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
    """Queue by queue, set by set. A cursor is "<" or ">" and the number of jobs before it."""
    backwards, position = read_cursor(cursor)
    if filter.declared:
        declared = [job for job in await _declared(c, filter) if matches(job, filter)][position or 0 :]
        return Page(declared[:limit], older_than((position or 0) + limit) if len(declared) > limit else None)
    parts = await _parts(c, filter, fresh=cursor is None)
    total = sum(part.length for part in parts)
    start = min(position or 0, total)
    found: list[FoundJob] = []
    if backwards:
        low = start
        while low > 0 and len(found) < limit and start - low < _MAX_READ_PER_PAGE:
            high, low = low, max(0, low - MAX_JOBS_PER_CALL)
            found = await _range(c, parts, filter, low, high) + found
        first = found[-limit].position if len(found) > limit else low
        newer = newer_than(first) if first > 0 else None
        return Page([one.job for one in found[-limit:]], older_than(start), newer)
    high = start
    while high < total and len(found) < limit and high - start < _MAX_READ_PER_PAGE:
        low, high = high, min(total, high + MAX_JOBS_PER_CALL)
        found += await _range(c, parts, filter, low, high)
    end = found[limit - 1].position + 1 if len(found) >= limit > 0 else high
    older = older_than(end) if len(found) > limit or end < total else None
    return Page([one.job for one in found[:limit]], older, newer_than(start) if start > 0 else None)


async def _declared(c: RedisContext, filter: Filter) -> list[Job]:
    """The recurring jobs that handlers declare, as each queue has them in a set."""
    queues = await registered_queues(c) if filter.queue is None else [filter.queue]

    async def of_queue(queue: str) -> list[str]:
        key = f"{c.key(queue)}:jobmill:declared"
        return [f"{queue}:{RUN}{sid.decode()}" for sid in sorted(await c.client.call(key, "SMEMBERS", key))]

    ids = [id for some in await for_each(queues, of_queue) for id in some]
    return [job for job in await get(c, ids) if job is not None]


async def count(c: RedisContext, filter: Filter) -> list[Count]:
    """See the port. Every job that may match is read."""
    return (await _tally(c, filter)).counts()


async def stats(c: RedisContext, queue: str | None = None, name: str | None = None) -> list[Stats]:
    """See the port. Every job is read."""
    return (await _tally(c, Filter(queue=queue, name=name))).stats()


async def _tally(c: RedisContext, filter: Filter) -> JobTally:
    tally = JobTally(c.clock.now())
    async for one in walk(c, filter):
        tally.add(one.job)
    return tally


async def logs(c: RedisContext, id: str, limit: int = 1_000) -> list[LogLine]:
    """See the port. BullMQ keeps log lines without times: the times of ours are in the job's hash."""
    queue = (await queues_of(c, [id]))[id]
    (row,) = await c.run(GET, queue, 0, ids=[local_id(queue, id)]) if queue else [None]
    if not row or limit <= 0:
        return []
    key = f"{c.key(queue or '')}:{row[0].decode()}:logs"
    lines = await c.client.call(key, "LRANGE", key, -limit, -1)
    times = _times(fields(row[3]).get(b"jmt", b"").decode(), len(lines))
    return [LogLine(at, line.decode(errors="replace")) for at, line in zip(times, lines, strict=True)]


def _times(text: str, lines: int) -> list[int]:
    """When each of the last lines was logged, from one "ms:number of lines" for each report."""
    times: list[int] = []
    for part in reversed(text.split()):
        ms, _, number = part.partition(":")
        times += [int(ms)] * int(number)
        if len(times) >= lines:
            break
    return [0] * (lines - len(times)) + times[:lines][::-1]


# ---------------------------------------------------------------------------------------------------- scans


async def walk(c: RedisContext, filter: Filter) -> AsyncIterator[FoundJob]:
    """Every job that matches, each once while nobody moves any."""
    parts = await _parts(c, filter, fresh=True)
    total = sum(part.length for part in parts)
    for low in range(0, total, MAX_JOBS_PER_CALL):
        for one in await _range(c, parts, filter, low, min(total, low + MAX_JOBS_PER_CALL)):
            yield one


async def _parts(c: RedisContext, filter: Filter, *, fresh: bool) -> list[_Part]:
    """All lists and sorted sets in which a filter may match jobs. `fresh`: look for queues again."""
    queues = [filter.queue] if filter.queue is not None else await all_queues(c, fresh=fresh)
    wanted = set(STATES if filter.states is None else filter.states)
    if "cancelled" in wanted:
        wanted.add("failed")
    names = [name for name, state in SETS.items() if state in wanted]

    async def of_queue(queue: str) -> list[_Part]:
        key = c.key(queue)
        commands = [("LLEN" if name in _LISTS else "ZCARD", f"{key}:{name}") for name in names]
        lengths = await c.client.many(key, commands)
        return [_Part(queue, name, length) for name, length in zip(names, lengths, strict=True) if length]

    return [part for parts in await for_each(queues, of_queue) for part in parts]


async def _range(c: RedisContext, parts: list[_Part], filter: Filter, low: int, high: int) -> list[FoundJob]:
    """The matching jobs from one position up to another."""
    jobs: list[FoundJob] = []
    before = 0
    for queue, name, length in parts:
        start, stop = max(low, before) - before, min(high, before + length) - before - 1
        if start <= stop:
            rows = await c.run(PAGE, queue, 0, source=name, state=SETS[name], start=start, stop=stop)
            found = [_stored(c, queue, row, position=before + start + n) for n, row in enumerate(rows)]
            jobs += [one for one in found if matches(one.job, filter)]
        before += length
    return jobs


# ---------------------------------------------------------------------------------------------------- ids


async def queues_of(c: RedisContext, ids: Sequence[str]) -> dict[str, str | None]:
    """The queue of each id; None where there is no such job, "" where several queues have one."""
    found: dict[str, str | None] = {id: queue_of(id) for id in ids}
    without = [id for id, queue in found.items() if queue is None and id]
    if without:
        await _search(c, without, await registered_queues(c), found)
        if without := [id for id in without if found[id] is None]:
            await _search(c, without, await all_queues(c), found)
    return found


async def _search(c: RedisContext, ids: list[str], queues: list[str], found: dict[str, str | None]) -> None:
    async def in_queue(queue: str) -> list[int]:
        key = c.key(queue)
        return await c.client.many(key, [("EXISTS", f"{key}:{id}") for id in ids])

    for queue, existing in zip(queues, await for_each(queues, in_queue), strict=True):
        for id, exists in zip(ids, existing, strict=True):
            if exists:
                found[id] = queue if found[id] is None else ""
