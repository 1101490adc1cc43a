"""Looking: BullMQ keeps a job's hash, and its state as the place where its id stands."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from jobmill.core.cursors import newer_than, older_than, read_cursor
from jobmill.core.job import STATES, Job, State
from jobmill.core.stats import by_queue_and_name, matches, stats
from jobmill.core.values import Count, Filter, LogLine, Page, Stats
from jobmill.stores.redis import scripts
from jobmill.stores.redis.codec import fields, job_of
from jobmill.stores.redis.exchange import Exchanges
from jobmill.stores.redis.ids import local_id, queue_of

T = TypeVar("T")

#: In the order in which a listing shows them.
PLACES: dict[str, State] = {
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
_STRETCH = 200
_TOGETHER = 100
# A page that finds little stops after so many jobs, and leads on.
_MOST_LOOKED_AT = 5_000


class Looks(Exchanges):
    """get, find, count, stats and logs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # By the last look; for pages that follow another.
        self._queues_seen: list[str] | None = None

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """See the port. An id that names no queue is looked for in all of them."""
        by_queue: defaultdict[str, list[str]] = defaultdict(list)
        for id, queue in (await self._queues_of(list(dict.fromkeys(ids)))).items():
            if queue:
                by_queue[queue].append(id)
        found: dict[str, Job] = {}
        for queue, own in by_queue.items():
            for first in range(0, len(own), _STRETCH):
                some = own[first : first + _STRETCH]
                rows = await self._run(scripts.GET, queue, 0, ids=[local_id(queue, id) for id in some])
                found |= {id: _job(queue, row, id) for id, row in zip(some, rows, strict=True) if row}
        return [found.get(id) for id in ids]

    async def find(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        """Queue by queue, place by place; a cursor is "<" or ">" and how many jobs of these places stand before it."""
        backwards, position = read_cursor(cursor)
        places = await self._places(filter, fresh=cursor is None)
        whole = sum(length for *_, length in places)
        start = min(position or 0, whole)
        jobs: list[tuple[int, Job]] = []
        if backwards:
            low = start
            while low > 0 and len(jobs) < limit and start - low < _MOST_LOOKED_AT:
                high, low = low, max(0, low - _STRETCH)
                jobs = [(n, job) for n, job in await self._stretch(places, low, high) if matches(job, filter)] + jobs
            cut = len(jobs) > limit
            jobs = jobs[-limit:]
            first = jobs[0][0] if jobs and cut else low
            return Page([job for _, job in jobs], older_than(start), newer_than(first) if first > 0 else None)
        high = start
        while high < whole and len(jobs) < limit and high - start < _MOST_LOOKED_AT:
            low, high = high, min(whole, high + _STRETCH)
            jobs += [(n, job) for n, job in await self._stretch(places, low, high) if matches(job, filter)]
        cut = len(jobs) > limit
        jobs = jobs[:limit]
        end = jobs[-1][0] + 1 if len(jobs) == limit and jobs else high
        return Page(
            [job for _, job in jobs],
            older_than(end) if cut or end < whole else None,
            newer_than(start) if start > 0 else None,
        )

    async def count(self, filter: Filter) -> list[Count]:
        """See the port: every job that may match is looked at, in stretches."""
        found: Counter[tuple[str, str, int]] = Counter()
        async for job in self._walk(filter):
            found[job.queue, job.name, STATES.index(job.state)] += 1
        return [Count(queue, name, STATES[state], n) for (queue, name, state), n in sorted(found.items())]

    async def stats(self, queue: str | None = None, name: str | None = None) -> list[Stats]:
        """See the port."""
        counts: Counter[tuple[str, str, int]] = Counter()
        waits: dict[tuple[str, str], int] = {}
        took: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        now_ms = self.now()
        async for job in self._walk(Filter(queue=queue, name=name)):
            key = (job.queue, job.name)
            counts[(*key, STATES.index(job.state))] += 1
            if job.state == "waiting" and job.due_ms <= now_ms:
                waits[key] = max(waits.get(key, 0), now_ms - job.due_ms)
            elif job.state == "succeeded" and job.started_ms is not None and job.finished_ms is not None:
                took[key].append(job.finished_ms - job.started_ms)
        table = by_queue_and_name([Count(q, n, STATES[s], many) for (q, n, s), many in sorted(counts.items())])
        return [stats(*key, states, waits.get(key), took[key]) for key, states in table.items()]

    async def logs(self, id: str, limit: int = 1_000) -> list[LogLine]:
        """See the port. BullMQ keeps no times of lines: those of ours stand beside, Node's have none."""
        queue = (await self._queues_of([id]))[id]
        if not queue:
            return []
        (row,) = await self._run(scripts.GET, queue, 0, ids=[local_id(queue, id)])
        if not row:
            return []
        key = f"{self._key(queue)}:{row[0].decode()}:logs"
        lines = await self._link.call(key, "LRANGE", key, -limit, -1) if limit > 0 else []
        times = _times(fields(row[4]).get(b"jmt", b"").decode(), len(lines))
        return [LogLine(at, line.decode(errors="replace")) for at, line in zip(times, lines, strict=True)]

    # ------------------------------------------------------------------------------------------------ walking

    async def _walk(self, filter: Filter) -> AsyncIterator[Job]:
        """Every job that matches, each once while nobody moves any."""
        places = await self._places(filter, fresh=True)
        whole = sum(length for *_, length in places)
        for low in range(0, whole, _STRETCH):
            for _, job in await self._stretch(places, low, min(whole, low + _STRETCH)):
                if matches(job, filter):
                    yield job

    async def _places(self, filter: Filter, *, fresh: bool) -> list[tuple[str, str, int]]:
        """Queue, place, and how many jobs stand there, for all that a filter may mean."""
        queues = [filter.queue] if filter.queue is not None else await self._known_queues(fresh=fresh)
        wanted = set(STATES if filter.states is None else filter.states)
        if "cancelled" in wanted:
            wanted.add("failed")
        names = [place for place, state in PLACES.items() if state in wanted]
        if not names:
            return []

        async def lengths(queue: str) -> list[tuple[str, str, int]]:
            key = self._key(queue)
            asked = [("LLEN" if name in _LISTS else "ZCARD", f"{key}:{name}") for name in names]
            found = await self._link.many(key, asked)
            return [(queue, name, length) for name, length in zip(names, found, strict=True) if length]

        return [place for each in await self._each(queues, lengths) for place in each]

    async def _each(self, queues: Sequence[str], ask: Callable[[str], Awaitable[T]]) -> list[T]:
        """The same question for many queues: asked together, so that each does not wait for the one before."""
        answers: list[T] = []
        for first in range(0, len(queues), _TOGETHER):
            answers += await asyncio.gather(*(ask(queue) for queue in queues[first : first + _TOGETHER]))
        return answers

    async def _stretch(self, places: list[tuple[str, str, int]], low: int, high: int) -> list[tuple[int, Job]]:
        """The jobs from one position up to another, with their positions."""
        jobs: list[tuple[int, Job]] = []
        before = 0
        for queue, place, length in places:
            start, stop = max(low, before) - before, min(high, before + length) - before - 1
            if start <= stop:
                rows = await self._run(scripts.PAGE, queue, 0, place=place, start=start, stop=stop)
                for n, (id, score, cancelled, flat) in enumerate(rows):
                    state: State = "cancelled" if cancelled else PLACES[place]
                    shown = job_of(
                        queue,
                        id.decode(errors="replace"),
                        state,
                        fields(flat),
                        score=score if place == "delayed" else b"",
                    )
                    jobs.append((before + start + n, shown))
            before += length
        return jobs

    # ------------------------------------------------------------------------------------------------ queues

    async def _known_queues(self, *, fresh: bool = True) -> list[str]:
        """All queues of this prefix, whoever made them: each has a meta key."""
        if not fresh and self._queues_seen is not None:
            return self._queues_seen
        begin, end = f"{self._place.prefix}:", ":meta"
        pattern = _escaped(begin) + "*" + end
        queues: set[str] = set()
        for node in await self._link.scan(pattern, "hash"):
            name = node.decode(errors="replace")[len(begin) : -len(end)]
            if name and ":" not in name:
                queues.add(name)
        self._queues_seen = sorted(queues)
        return self._queues_seen

    async def _registered_queues(self) -> list[str]:
        """Those that Jobmill has put jobs into."""
        return sorted([queue.decode() for queue in await self._link.call(self._registry, "SMEMBERS", self._registry)])

    async def _queues_of(self, ids: Sequence[str]) -> dict[str, str | None]:
        """The queue of each id; None where there is no such job, "" where several queues have one."""
        found: dict[str, str | None] = {id: queue_of(id) for id in ids}
        homeless = [id for id, queue in found.items() if queue is None and id]
        if homeless:
            await self._look_for(homeless, await self._registered_queues(), found)
            if still := [id for id in homeless if found[id] is None]:
                await self._look_for(still, await self._known_queues(), found)
        return found

    async def _look_for(self, ids: list[str], queues: list[str], found: dict[str, str | None]) -> None:
        async def is_there(queue: str) -> list[int]:
            key = self._key(queue)
            return await self._link.many(key, [("EXISTS", f"{key}:{id}") for id in ids])

        for queue, there in zip(queues, await self._each(queues, is_there), strict=True):
            for id, exists in zip(ids, there, strict=True):
                if exists:
                    found[id] = queue if found[id] is None else ""


def _job(queue: str, row: list[Any], id: str) -> Job:
    """A row of get.lua, under the id that was asked for."""
    return job_of(queue, row[0].decode(), row[1].decode(), fields(row[4]), score=row[3], shown=id)


def _times(text: str, lines: int) -> list[int]:
    """When each of the last lines was logged: "ms:how many", a report each, read from the end."""
    times: list[int] = []
    for part in reversed(text.split()):
        ms, _, many = part.partition(":")
        times += [int(ms)] * int(many)
        if len(times) >= lines:
            break
    return [0] * (lines - len(times)) + times[:lines][::-1]


def _escaped(text: str) -> str:
    """A text that SCAN takes for itself."""
    return "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in text)
