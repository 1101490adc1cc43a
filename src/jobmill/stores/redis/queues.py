"""Settings of queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from jobmill.core.values import QueueChange, QueueSettings
from jobmill.stores.redis import scripts
from jobmill.stores.redis.change import Changes
from jobmill.stores.redis.feed import settings_of


class Queues(Changes):
    """configure and settings."""

    async def configure(self, queue: str, change: QueueChange) -> QueueSettings:
        """See the port. BullMQ's own settings, which Node's workers keep as well; the feed is ours."""
        self._place.check_queue(queue)
        given: dict[str, Any] = {}
        clear: list[str] = []
        if change.running_limit is not UNSET:
            _put(given, clear, "concurrency", change.running_limit)
        if change.rate_limit is not UNSET:
            limit = change.rate_limit
            _put(given, clear, "max", None if limit is None else limit.count)
            _put(given, clear, "duration", None if limit is None else limit.per_ms)
        if change.feed is not UNSET:
            _put(given, clear, "jmfeed", 1 if change.feed else None)
        if change.events_max_len is not UNSET:
            given["opts.maxLenEvents"] = change.events_max_len
        paused = None if change.paused is UNSET else change.paused
        wakes = change.running_limit is not UNSET or change.rate_limit is not UNSET
        said = await self._run(scripts.CONFIGURE, queue, self.now(), set=given, clear=clear, paused=paused, wakes=wakes)
        self._feeds[queue] = said[5] is not None
        return settings_of(said)

    async def settings(self, queues: Sequence[str] | None = None) -> dict[str, QueueSettings]:
        """See the port."""
        names = await self._known_queues() if queues is None else queues
        return dict(zip(names, await self._each(names, self._settings), strict=True))


def _put(given: dict[str, Any], clear: list[str], field: str, value: int | None) -> None:
    if value is None:
        clear.append(field)
    else:
        given[field] = value
