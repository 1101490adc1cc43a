"""What BullMQ has and the port has not, for `jobmill.bullmq`: jobs and schedulers as Node adds them, and cleaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobmill.stores.common.chunks import chunks
from jobmill.stores.redis.context import MAX_JOBS_PER_CALL, RedisContext, as_json, flat
from jobmill.stores.redis.ids import check_no_queue_key
from jobmill.stores.redis.scripts import CLEAN, ENQUEUE, SCHEDULE

# What Node writes into the limiter so that no claim fits.
_LIMITER_FULL = 9_007_199_254_740_991


class BullmqDoor:
    """One queue. All values are already validated; opts are BullMQ's."""

    def __init__(self, context: RedisContext, queue: str) -> None:
        context.url.check_queue(queue)
        self._context = context
        self._queue = queue

    async def add(self, jobs: Sequence[dict[str, Any]]) -> list[str]:
        """Add jobs: id, name, data, opts, delay, priority, special; see enqueue.lua. BullMQ's ids of them."""
        for job in jobs:
            check_no_queue_key(job["id"] or "")
        await self._context.register(self._queue)
        ids: list[str] = []
        for some in chunks(jobs, MAX_JOBS_PER_CALL):
            now_ms = self._context.clock.now()
            requests = [_request(job, now_ms) for job in some]
            receipts = await self._context.run(ENQUEUE, self._queue, now_ms, jobs=requests, ours=False)
            ids += [id.decode() for _, id, _ in receipts]
        return ids

    async def schedule(
        self, id: str, now_ms: int, repeat: dict[str, Any], *, data: Any, opts: dict[str, Any], **scheduler: Any
    ) -> str:
        """Make or change a job scheduler; see schedule.lua. The id of its next job."""
        texts = {"data": as_json(data), "opts": as_json(opts), "repeat_opts": as_json(repeat)}
        request = {"sid": id, "record": flat(repeat), **texts, **scheduler}
        await self._context.register(self._queue)
        next_id: bytes = await self._context.run(SCHEDULE, self._queue, now_ms, **request)
        return next_id.decode()

    async def unschedule(self, id: str) -> bool:
        """End a scheduler and remove its next job; whether there was one."""
        return bool(await self._context.run(SCHEDULE, self._queue, self._context.clock.now(), sid=id, remove=True))

    async def clean(self, set: str, before_ms: int, limit: int, *, silent: bool = False) -> list[str]:
        """Remove jobs of one list or sorted set, as Node does; their ids. See clean.lua."""
        now_ms, request = self._context.clock.now(), {"source": set, "before": before_ms, "limit": limit}
        ids = await self._context.run(CLEAN, self._queue, now_ms, **request, silent=silent)
        return [id.decode(errors="replace") for id in ids]

    async def close_for(self, ms: int) -> None:
        """Let no claim through for a time, where the queue or a worker has a rate limit."""
        key = f"{self._context.key(self._queue)}:limiter"
        await self._context.client.call(key, "SET", key, _LIMITER_FULL, "PX", ms)


def _request(job: dict[str, Any], now_ms: int) -> tuple[Any, ...]:
    named = (job["id"], job["name"], as_json(job["data"]), as_json(job["opts"]))
    return (*named, job["delay"], now_ms + job["delay"], job["priority"], None, job["special"])
