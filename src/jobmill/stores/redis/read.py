"""The verbs get, lease_ends, depths and logs; search.py has those that search.

BullMQ keeps a job's hash, and its state as the list or sorted set that has its id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from jobmill.core.job import Job, State
from jobmill.core.values import DEPTH_LIMIT, Depth, LogLine
from jobmill.stores.redis.codec import HELD_BY_JOBS, fields, job_of, without_lone_surrogates
from jobmill.stores.redis.context import RedisContext, by_queue
from jobmill.stores.redis.ids import local_id, queue_of
from jobmill.stores.redis.log_lines import line_origins
from jobmill.stores.redis.queues import all_queues, registered_queues
from jobmill.stores.redis.scripts import DEPTHS, GET

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
# See lua/lib/lease.lua.
_OUR_LOCK = re.compile(rb"jm:.*:(\d+)", re.DOTALL)
#: The server needs about 2 ms for this number of queues.
QUEUES_PER_CALL = 400


class FoundJob(NamedTuple):
    """A job, whether Jobmill enqueued it, its stored holders, and its position among all jobs that may match."""

    job: Job
    is_ours: bool
    held: bytes | None = None
    waits_for_children: bool = False
    position: int = 0


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
        found |= {id: found_job(c, queue, row, id) for id, row in zip(some, rows, strict=True) if row}
    return found


def found_job(c: RedisContext, queue: str, row: list[Any], shown: str | None = None, position: int = 0) -> FoundJob:
    """A job as get.lua and page.lua return it."""
    raw_id, state, score, flat = row
    h = without_lone_surrogates(fields(flat))
    id = raw_id.decode(errors="replace")
    job = job_of(queue, id, state.decode(), h, c.clock.now(), score=score, shown=shown)
    held = h.get(b"jmh", b"") if job.held is not None else None
    return FoundJob(job, b"jm" in h, held, score == HELD_BY_JOBS, position)


async def depths(c: RedisContext, queues: Sequence[str] | None = None, limit: int = DEPTH_LIMIT) -> list[Depth]:
    """See the port. Redis knows the lengths of lists and sorted sets, so no jobs are counted.

    The search for the oldest due job reads only the first jobs of each list and priority.
    """
    names = await all_queues(c) if queues is None else sorted(set(queues))
    if limit == 0:
        found = zip(names, await c.each(names, [("EXISTS", ":meta")]), strict=True)
        return [Depth(queue=queue, exact=False) for queue, (exists,) in found if exists or queues is not None]
    items = [(queue, c.key(queue)) for queue in names]
    replies = await c.run_in_batches(DEPTHS, "queues", items, QUEUES_PER_CALL)
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


async def logs(c: RedisContext, id: str, limit: int = 1_000) -> list[LogLine]:
    """See the port. BullMQ stores log lines without times. The times of Jobmill's lines are in the hash of the job."""
    queue = (await queues_of(c, [id]))[id]
    (row,) = await c.run(GET, queue, 0, ids=[local_id(queue, id)]) if queue else [None]
    if not row or limit <= 0:
        return []
    key = f"{c.key(queue or '')}:{row[0].decode()}:logs"
    lines = await c.client.call(key, "LRANGE", key, -limit, -1)
    origins = line_origins(fields(row[3]).get(b"jmt", b"").decode(), len(lines))
    return [
        LogLine(at, line.decode(errors="replace"), attempt, level)
        for (at, attempt, level), line in zip(origins, lines, strict=True)
    ]


# ---------------------------------------------------------------------------------------------------- ids


async def queues_of(c: RedisContext, ids: Sequence[str], *, everywhere: bool = True) -> dict[str, str | None]:
    """The queue of each id. None if no queue has a job with this id, "" if several queues have one.

    Unless `everywhere`, only queues are searched that Jobmill has put jobs into.
    """
    found: dict[str, str | None] = {id: queue_of(id) for id in ids}
    without = [id for id, queue in found.items() if queue is None and id]
    if without:
        registered = await registered_queues(c)
        await _search(c, without, registered, found)
        if everywhere and (without := [id for id in without if found[id] is None]):
            await _search(c, without, sorted(set(await all_queues(c)).difference(registered)), found)
    return found


async def _search(c: RedisContext, ids: list[str], queues: list[str], found: dict[str, str | None]) -> None:
    replies = await c.each(queues, [("EXISTS", f":{id}") for id in ids])
    for queue, existing in zip(queues, replies, strict=True):
        for id, exists in zip(ids, existing, strict=True):
            if exists:
                found[id] = queue if found[id] is None else ""
