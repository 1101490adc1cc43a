"""The class `Queue` of BullMQ for Node, in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from jobmill.bullmq.jobs import Add
from jobmill.core.changes import Requeue, Reschedule
from jobmill.core.job import State
from jobmill.core.limits import check_int, check_queue
from jobmill.core.recurrence import first_occurrence, recurrence
from jobmill.core.values import Filter, after
from jobmill.errors import InvalidValue
from jobmill.stores.common.node_cron import for_node
from jobmill.stores.redis import RedisStore

# The maximum number of jobs that one call removes, the same as in Node.
_MAX_CLEANED = 10_000

CleanType = Literal["completed", "failed", "wait", "active", "delayed", "prioritized"]


class Queue:
    """One queue as Node's `Queue` shows it. Its jobs follow Node's defaults, not Jobmill's."""

    def __init__(self, store: RedisStore, name: str) -> None:
        if not isinstance(store, RedisStore):
            raise InvalidValue("store", "a Redis store, such as jobmill.connect('redis://…').store", store)
        self._store = store
        self._door = store.bullmq(check_queue(name))
        self.name = name

    async def add(self, name: str, data: Any = None, **options: Any) -> str:
        """Add one job. Return the BullMQ id of the job, or of the existing job that it duplicates."""
        (id,) = await self.add_bulk([Add(name=name, data={} if data is None else data, **options)])
        return id

    async def add_bulk(self, jobs: Sequence[Add]) -> list[str]:
        """Add many jobs. Up to 200 of them are added in one step (one call of a script)."""
        return await self._door.add([job.checked() for job in jobs])

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
        """Create or change a job scheduler. Return the id of its next job, or None if it has no further job."""
        now_ms = self._store.now()
        if not id or ":" in id:
            raise InvalidValue("id", 'a scheduler id without ":"', id)
        if (every is None) == (pattern is None):
            raise InvalidValue("pattern", "either pattern or every", pattern if every is None else every)
        if immediately and start_ms is not None:
            raise InvalidValue("immediately", "immediately or start_ms, not both", immediately)
        if end_ms is not None and end_ms <= now_ms:
            return None
        first_ms = None
        if pattern is not None:
            rule = recurrence(key=id, cron=pattern, timezone=tz or "UTC", until_ms=end_ms)
            first_ms = now_ms if immediately else first_occurrence(rule, max(now_ms, (start_ms or 0) - 1))
            if first_ms is None:
                return None
            node = for_node(rule)
            if node is None:
                raise InvalidValue("pattern", "an expression that Node can read", pattern, "enqueue with cron= instead")
            pattern, every, tz = node.cron, node.every_ms, tz if node.timezone == "UTC" else node.timezone
        repeat = {"pattern": pattern, "tz": tz, "limit": limit, "startDate": start_ms, "endDate": end_ms}
        return await self._door.schedule(
            id,
            now_ms,
            {field: value for field, value in repeat.items() if value is not None},
            name=name or id,
            data={} if data is None else data,
            opts=dict(opts or {}),
            every=every,
            offset=offset,
            start=start_ms,
            next=first_ms,
        )

    async def remove_scheduler(self, id: str) -> bool:
        """End a scheduler and remove its next job. Return whether the scheduler existed."""
        return await self._door.unschedule(id)

    async def clean(self, grace_ms: int, limit: int = 0, type: CleanType = "completed") -> list[str]:
        """Remove the jobs of one state that are older than `grace_ms`. Return their ids."""
        if type not in get_args(CleanType):
            raise InvalidValue("type", "one of " + ", ".join(get_args(CleanType)), type)
        before_ms = self._store.now() - check_int(grace_ms, "grace_ms", 0)
        removed: list[str] = []
        while True:
            max_found = min(_MAX_CLEANED, limit - len(removed)) if limit else _MAX_CLEANED
            found = await self._door.clean(type, before_ms, max_found)
            removed += found
            if len(found) < max_found or len(removed) == limit:
                return removed

    async def drain(self, delayed: bool = False) -> int:
        """Remove all waiting jobs, and with `delayed=True` also all delayed jobs. Return the number of removed jobs."""
        sets = ("wait", "paused", "prioritized", *(("delayed",) if delayed else ()))
        return sum([len(await self._door.clean(one, 0, 0, silent=True)) for one in sets])

    async def rate_limit(self, ms: int) -> None:
        """Let no worker claim a job of this queue for `ms` milliseconds.

        As in Node, this has an effect only if the queue or a worker has a rate limit.
        """
        await self._door.close_for(check_int(ms, "ms", 1))

    async def promote_all(self) -> int:
        """Make all delayed jobs due now. Return how many there were."""
        delayed = Filter(queue=self.name, states=("waiting",), due_after_ms=self._store.now() + 1, held=False)
        return await self._change_all(delayed, Reschedule(after(0)))

    async def retry_all(self, state: Literal["failed", "completed"] = "failed") -> int:
        """Run all failed jobs again, or all completed jobs. Return how many there were."""
        ended: State = "failed" if state == "failed" else "succeeded"
        return await self._change_all(Filter(queue=self.name, states=(ended,)), Requeue())

    async def _change_all(self, which: Filter, change: Requeue | Reschedule) -> int:
        total = 0
        while True:
            answer = await self._store.change(which, change)
            total += len(answer.ids)
            if not answer.more or not answer.ids:
                return total
