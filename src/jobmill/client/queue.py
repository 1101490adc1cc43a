"""A queue as an application sees it: pause, resume, limits, lanes, feed."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from jobmill.client.lane import LaneHandle, Rate, lane_change, lane_rule, shown_limits
from jobmill.core import limits
from jobmill.core.durations import Duration, instant_ms, shown_ms, to_ms
from jobmill.core.queue_settings import LaneChange
from jobmill.core.values import Lane, Pause, QueueChange, QueueSettings, RateLimit
from jobmill.errors import InvalidValue

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

    async def pause(
        self, *, who: str | None = None, note: str | None = None, until: datetime | Duration | None = None
    ) -> QueueSettings:
        """Stop claiming from this queue; running jobs continue.

        `until` is when the queue resumes by itself: a time, or how long from now.
        """
        await self._client.open()
        now_ms = self._client.store.now()
        if until is None or isinstance(until, datetime):
            until_ms = None if until is None else instant_ms(until, "until")
        else:
            until_ms = now_ms + to_ms(until, "until", least=1)
        who = self._client.who if who is None else limits.check_note(who, "who")
        note = None if note is None else limits.check_note(note)
        pause = Pause(who=who, note=note, since_ms=now_ms, until_ms=until_ms)
        return await self._configure("pause", QueueChange(paused=True, pause=pause), who, note)

    async def resume(self, *, who: str | None = None) -> QueueSettings:
        """End a pause."""
        return await self._configure("resume", QueueChange(paused=False), who)

    async def rate_limit(
        self, count: int | None, per: Duration = 1, *, who: str | None = None, note: str | None = None
    ) -> QueueSettings:
        """At most `count` claims in each window of `per`, over all workers; None for no limit."""
        limit, text = None, "none"
        if count is not None:
            limit = RateLimit(limits.check_int(count, "count", 1, 2**31 - 1), to_ms(per, "per", least=1))
            text = f"{count} per {shown_ms(limit.per_ms)}"
        return await self._configure("rate_limit", QueueChange(rate_limit=limit), who, _with_note(text, note))

    async def running_limit(
        self, limit: int | None, *, who: str | None = None, note: str | None = None
    ) -> QueueSettings:
        """At most `limit` running jobs, over all workers; None for no limit."""
        if limit is not None:
            limits.check_int(limit, "running_limit", 1, 2**31 - 1)
        text = _with_note(str(limit or "none"), note)
        return await self._configure("running_limit", QueueChange(running_limit=limit), who, text)

    async def lanes(
        self,
        *,
        running: int | UnsetType | None = UNSET,
        rate: Rate | UnsetType | None = UNSET,
        strict: bool = False,
        who: str | None = None,
        note: str | None = None,
    ) -> QueueSettings:
        """Set the rule for each lane of this queue; `running=None` removes the rule. `list_lanes` lists the lanes.

        At most `running` jobs of a lane run at once, over all workers, and at most `rate`, such as `(30, "1m")`, begin
        in each window. With `strict`, a job that waits for its next attempt keeps its slot: with `running=1` the jobs
        of a lane end in their order. It is the whole rule: what is not given has no limit.
        """
        if running is UNSET and rate is UNSET and not strict:
            advice = "running=None removes the rule, and list_lanes() lists the lanes"
            raise InvalidValue("lanes", "a limit: running or rate", "nothing", advice)
        rule = lane_rule(None if running is UNSET else running, None if rate is UNSET else rate, strict)
        return await self._configure("lanes", QueueChange(lanes=rule), who, shown_limits(rule, note))

    def lane(
        self,
        name: str,
        *,
        running: int | UnsetType | None = UNSET,
        rate: Rate | UnsetType | None = UNSET,
        strict: bool | UnsetType | None = UNSET,
        who: str | None = None,
        note: str | None = None,
    ) -> LaneHandle:
        """One lane: await it to change its own limits, or call `pause`, `resume` or `settings`.

        `await jobs.queue("mail").lane("bigco", running=10)`. A limit that is not given stays; None: the rule of the
        queue applies again.
        """
        change = lane_change(running, rate, strict)
        if change == LaneChange():
            for field, value in (("note", note), ("who", who)):
                if value is not None:
                    raise InvalidValue(field, f"{field} only together with limits", value, f"pause({field}=…) takes it")
        return LaneHandle(self._client, self.name, limits.check_lane(name), change, who, note)

    async def list_lanes(self, *, after: str | None = None, limit: int = 100) -> list[Lane]:
        """Lanes with live jobs or settings, with counts of their jobs, by name: the first `limit` after `after`."""
        limits.check_int(limit, "limit", 1, 10_000)
        if after is not None:
            limits.check_lane(after, "after")
        await self._client.open()
        return await self._client.store.lanes(self.name, None, after, limit)

    async def feed(self, on: bool = True, *, events_max_len: int = 10_000, who: str | None = None) -> QueueSettings:
        """Switch the event feed on or off; the last `events_max_len` events are kept."""
        limits.check_int(events_max_len, "events_max_len", 1, 2**31 - 1)
        change = QueueChange(feed=on, events_max_len=events_max_len)
        return await self._configure("feed", change, who, "on" if on else "off")

    async def settings(self) -> QueueSettings:
        """The settings of this queue."""
        await self._client.open()
        return (await self._client.store.settings([self.name]))[self.name]

    async def _configure(
        self, what: str, change: QueueChange, who: str | None, note: str | None = None
    ) -> QueueSettings:
        if who is not None:
            limits.check_note(who, "who")
        await self._client.open()
        settings = await self._client.store.configure(self.name, change)
        await self._client.audit(what, who=who, queue=self.name, note=note)
        return settings


def _with_note(text: str, note: str | None) -> str:
    """What was set, and why."""
    return text if note is None else f"{text}; {limits.check_note(note)}"
