"""What BullMQ has and the port has not: jobs and schedulers added as Node adds them, cleaning and draining."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from jobmill.core.changes import Requeue, Reschedule
from jobmill.core.job import State
from jobmill.core.limits import check_id, check_int, check_name, check_priority, check_queue
from jobmill.core.recurrence import first_slot, recurrence
from jobmill.core.values import Filter, after
from jobmill.errors import InvalidValue
from jobmill.stores.redis import scripts
from jobmill.stores.redis.context import MOST_A_CALL, text
from jobmill.stores.redis.ids import check_no_own_key
from jobmill.stores.redis.store import RedisStore

# As Node: so many in one call.
_CLEANED = 10_000
# What Node writes into the limiter so that nothing fits any more.
_FULL = 9_007_199_254_740_991
_PLACES = ("completed", "failed", "wait", "active", "delayed", "prioritized")

Place = Literal["completed", "failed", "wait", "active", "delayed", "prioritized"]


class Deduplication(Struct, frozen=True, kw_only=True):
    """BullMQ's deduplication: simple, or for a time (`ttl`, ms), in the ways that its docs describe."""

    id: str
    ttl: int | None = None
    extend: bool = False
    replace: bool = False
    reschedule: bool = False
    keep_last_if_active: bool = False

    def as_opts(self) -> dict[str, Any]:
        """As `opts.de` has it."""
        said = {"id": self.id, "ttl": self.ttl, "extend": self.extend, "replace": self.replace}
        said |= {"reschedule": self.reschedule, "keepLastIfActive": self.keep_last_if_active}
        return {name: value for name, value in said.items() if value not in (None, False)}

    def as_mode(self) -> dict[str, Any]:
        """As enqueue.lua takes it."""
        mode = {"ttl": self.ttl, "extend": self.extend, "replace": self.replace, "reschedule": self.reschedule}
        return mode | {"keep": self.keep_last_if_active}


class Add(Struct, frozen=True, kw_only=True):
    """One job as Node's `queue.add(name, data, opts)` takes it; durations in ms."""

    name: str
    data: Any = {}
    job_id: str | None = None
    lifo: bool = False
    delay: int = 0
    priority: int = 0
    attempts: int | None = None
    backoff: int | Mapping[str, Any] | None = None
    deduplication: Deduplication | None = None
    remove_on_complete: bool | int | Mapping[str, int] | None = None
    remove_on_fail: bool | int | Mapping[str, int] | None = None
    #: Further opts of BullMQ's, under its own names.
    opts: Mapping[str, Any] = {}


class Queue:
    """One queue as Node's `Queue` shows it. What it adds is taken as Node means it, not by Jobmill's defaults."""

    def __init__(self, store: RedisStore, name: str) -> None:
        if not isinstance(store, RedisStore):
            raise InvalidValue("store", "a Redis store, such as jobmill.connect('redis://…').store", store)
        store._place.check_queue(check_queue(name))
        self._store = store
        self.name = name

    async def add(self, name: str, data: Any = None, **options: Any) -> str:
        """Add one job; the id that BullMQ knows it by: the job's own, or of the one that stands for it."""
        (id,) = await self.add_bulk([Add(name=name, data={} if data is None else data, **options)])
        return id

    async def add_bulk(self, jobs: Sequence[Add]) -> list[str]:
        """Add many; 200 of them in each step."""
        ids: list[str] = []
        for first in range(0, len(jobs), MOST_A_CALL):
            now_ms = self._store.now()
            asked = [_added(job, now_ms) for job in jobs[first : first + MOST_A_CALL]]
            receipts = await self._store._run(scripts.ENQUEUE, self.name, now_ms, jobs=asked, ours=False)
            ids += [id.decode() for _, id, _ in receipts]
        return ids

    async def upsert_scheduler(
        self,
        id: str,
        *,
        every: int | None = None,
        pattern: str | None = None,
        tz: str | None = None,
        limit: int | None = None,
        start_ms: int | None = None,
        end_ms: int | None = None,
        offset: int | None = None,
        immediately: bool = False,
        name: str | None = None,
        data: Any = None,
        opts: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Make or change a job scheduler; the id of its next job, None when it has come to its end."""
        now_ms = self._store.now()
        if (every is None) == (pattern is None):
            raise InvalidValue("pattern", "either pattern or every", pattern if every is None else every)
        if immediately and start_ms is not None:
            raise InvalidValue("immediately", "immediately or start_ms, not both", immediately)
        if end_ms is not None and end_ms <= now_ms:
            return None
        slot = None
        if pattern is not None:
            rule = recurrence(key=id, cron=pattern, zone=tz or "UTC", until_ms=end_ms)
            slot = now_ms if immediately else first_slot(rule, max(now_ms, (start_ms or 0) - 1))
            if slot is None:
                return None
        said = {"pattern": pattern, "tz": tz, "limit": limit, "startDate": start_ms, "endDate": end_ms}
        said = {field: value for field, value in said.items() if value is not None}
        answer = await self._store._run(
            scripts.SCHEDULE,
            self.name,
            now_ms,
            sid=_scheduler(id),
            name=name or id,
            data=text({} if data is None else data),
            opts=text(dict(opts or {})),
            repeat_opts=text(said),
            record=[part for pair in said.items() for part in pair],
            every=every,
            offset=offset,
            start=start_ms,
            next=slot,
        )
        return str(answer[0].decode())

    async def remove_scheduler(self, id: str) -> bool:
        """End a scheduler and remove its next job; whether there was one."""
        return bool(await self._store._run(scripts.SCHEDULE, self.name, self._store.now(), sid=id, remove=True))

    async def clean(self, grace_ms: int, limit: int = 0, place: Place = "completed") -> list[str]:
        """Remove jobs of one place that are older than `grace_ms`; their ids."""
        if place not in _PLACES:
            raise InvalidValue("place", "one of " + ", ".join(_PLACES), place)
        now_ms = self._store.now()
        before = now_ms - check_int(grace_ms, "grace_ms", 0)
        removed: list[str] = []
        while True:
            some = min(_CLEANED, limit - len(removed)) if limit else _CLEANED
            asked = {"place": place, "before": before, "limit": some}
            found = await self._store._run(scripts.CLEAN, self.name, now_ms, **asked)
            removed += [id.decode() for id in found]
            if len(found) < some or len(removed) == limit:
                return removed

    async def drain(self, delayed: bool = False) -> int:
        """Remove all jobs that wait, on request also those that are delayed; how many."""
        many = 0
        for place in ("wait", "paused", "prioritized", *(("delayed",) if delayed else ())):
            asked = {"place": place, "before": 0, "limit": 0, "silent": True}
            many += len(await self._store._run(scripts.CLEAN, self.name, self._store.now(), **asked))
        return many

    async def rate_limit(self, ms: int) -> None:
        """Claim nothing for so long; like Node's, it holds where the queue or a worker has a rate limit."""
        key = f"{self._store._key(self.name)}:limiter"
        await self._store._link.call(key, "SET", key, _FULL, "PX", check_int(ms, "ms", 1))

    async def promote_all(self) -> int:
        """Delayed jobs wait no longer; how many."""
        delayed = Filter(queue=self.name, states=("waiting",), due_after_ms=self._store.now() + 1)
        return await self._all(delayed, Reschedule(after(0)))

    async def retry_all(self, state: Literal["failed", "completed"] = "failed") -> int:
        """Failed jobs, or completed ones, run again; how many."""
        ended: State = "failed" if state == "failed" else "succeeded"
        return await self._all(Filter(queue=self.name, states=(ended,)), Requeue())

    async def _all(self, which: Filter, change: Requeue | Reschedule) -> int:
        many = 0
        while True:
            changed = await self._store.change(which, change)
            many += len(changed.changed)
            if not changed.more or not changed.changed:
                return many


def _added(job: Add, now_ms: int) -> tuple[Any, ...]:
    check_name(job.name)
    if job.job_id is not None:
        check_no_own_key(check_id(job.job_id))
    if job.deduplication is not None and not isinstance(job.deduplication, Deduplication):
        raise InvalidValue("deduplication", "a jobmill.bullmq.Deduplication", job.deduplication)
    opts: dict[str, Any] = {
        "attempts": 0 if job.attempts is None else check_int(job.attempts, "attempts", 0),
        **job.opts,
    }
    given = {
        "backoff": {"type": "fixed", "delay": job.backoff} if isinstance(job.backoff, int) else job.backoff,
        "delay": check_int(job.delay, "delay", 0) or None,
        "priority": check_priority(job.priority) or None,
        "lifo": job.lifo or None,
        "removeOnComplete": job.remove_on_complete,
        "removeOnFail": job.remove_on_fail,
        "de": None if job.deduplication is None else job.deduplication.as_opts(),
    }
    opts |= {field: value for field, value in given.items() if value is not None}
    special: dict[str, Any] = {"lifo": job.lifo}
    if job.deduplication is not None:
        special |= {"deid": job.deduplication.id, "dedup": job.deduplication.as_mode()}
    due_ms = now_ms + job.delay
    return (job.job_id, job.name, text(job.data), text(opts), job.delay, due_ms, job.priority, None, special)


def _scheduler(id: str) -> str:
    if not id or ":" in id:
        raise InvalidValue("id", 'a scheduler id without ":"', id)
    return id
