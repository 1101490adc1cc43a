"""A queue as an application sees it: pause, resume, limits, feed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobmill.core import limits
from jobmill.core.durations import Duration, to_ms
from jobmill.core.values import QueueChange, QueueSettings, RateLimit

if TYPE_CHECKING:
    from jobmill.client.client import Client


class Queue:
    """One queue; made by `jobs.queue(name)`. Each call returns the settings after it."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name

    def __repr__(self) -> str:
        """The name of the queue."""
        return f"<queue {self.name!r}>"

    async def pause(self) -> QueueSettings:
        """Stop claiming from this queue; running jobs continue."""
        return await self._configure(QueueChange(paused=True))

    async def resume(self) -> QueueSettings:
        """End a pause."""
        return await self._configure(QueueChange(paused=False))

    async def rate_limit(self, count: int | None, per: Duration = 1) -> QueueSettings:
        """At most `count` claims in each window of `per`, over all workers; None for no limit."""
        if count is None:
            return await self._configure(QueueChange(rate_limit=None))
        limit = RateLimit(limits.check_int(count, "count", 1, 2**31 - 1), to_ms(per, "per", least=1))
        return await self._configure(QueueChange(rate_limit=limit))

    async def running_limit(self, limit: int | None) -> QueueSettings:
        """At most `limit` running jobs, over all workers; None for no limit."""
        if limit is not None:
            limits.check_int(limit, "running_limit", 1, 2**31 - 1)
        return await self._configure(QueueChange(running_limit=limit))

    async def feed(self, on: bool = True, *, events_max_len: int = 10_000) -> QueueSettings:
        """Switch the event feed on or off; the last `events_max_len` events are kept."""
        limits.check_int(events_max_len, "events_max_len", 1, 2**31 - 1)
        return await self._configure(QueueChange(feed=on, events_max_len=events_max_len))

    async def settings(self) -> QueueSettings:
        """The settings of this queue."""
        await self._client.open()
        return (await self._client.store.settings([self.name]))[self.name]

    async def _configure(self, change: QueueChange) -> QueueSettings:
        await self._client.open()
        return await self._client.store.configure(self.name, change)
