"""One lane of a queue as an application sees it: its own limits, pause, resume."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import UNSET, UnsetType

from jobmill.core import limits
from jobmill.core.durations import Duration, shown_ms, to_ms
from jobmill.core.queue_settings import LaneChange, LaneRule, LaneSettings, Pause, RateLimit
from jobmill.errors import InvalidValue

if TYPE_CHECKING:
    from jobmill.client.client import Client

#: A number of jobs, and a duration: `(30, "1m")`.
Rate: TypeAlias = tuple[int, Duration]
MAX_COUNT = 2**31 - 1


def lane_rule(running: int | None, rate: Rate | None, strict: bool) -> LaneRule | None:
    """The validated rule for all lanes of a queue; None if it limits nothing."""
    rule = LaneRule(running=check_running(running), rate=_rate(rate), strict=limits.check_bool(strict, "strict"))
    if rule.strict and rule.running is None:
        advice = "running=1 lets the jobs of a lane end in their order"
        raise InvalidValue("strict", "strict only together with running", strict, advice)
    return None if rule == LaneRule() else rule


def lane_change(
    running: int | UnsetType | None = UNSET,
    rate: Rate | UnsetType | None = UNSET,
    strict: bool | UnsetType | None = UNSET,
) -> LaneChange:
    """The validated limits of one lane that change."""
    return LaneChange(
        running=running if running is UNSET else check_running(running),
        rate=rate if rate is UNSET else _rate(rate),
        strict=strict if strict is UNSET or strict is None else limits.check_bool(strict, "strict"),
    )


def check_running(given: int | None) -> int | None:
    """A limit of slots, or None."""
    if given is not False and given == 0:
        raise InvalidValue("running", f"a whole number from 1 to {MAX_COUNT}", given, "to stop a lane, pause it")
    return None if given is None else limits.check_int(given, "running", 1, MAX_COUNT)


def _rate(given: Any) -> RateLimit | None:
    if given is None:
        return None
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InvalidValue("rate", 'a number of jobs and a duration, such as (30, "1m")', given)
    count, per = given
    return RateLimit(limits.check_int(count, "rate", 1, MAX_COUNT), to_ms(per, "rate", least=1))


def shown_limits(given: LaneRule | LaneChange | None, note: str | None = None) -> str:
    """Limits as the audit log shows them, and why they were set."""
    parts = []
    for field in ("running", "rate", "strict"):
        value = getattr(given, field, None)
        if value is UNSET or (value in (None, False) and not isinstance(given, LaneChange)):
            continue
        shown = f"{value.count} per {shown_ms(value.per_ms)}" if isinstance(value, RateLimit) else str(value).lower()
        parts.append(f"{field} {'as the queue' if value is None else shown}")
    text = ", ".join(parts) or "none"
    return text if note is None else f"{text}; {limits.check_note(note)}"


class LaneHandle:
    """One lane of a queue; made by `jobs.queue(name).lane(lane)`. Each call returns the settings of the lane after it.

    Await it to change the limits that were given: `await jobs.queue("mail").lane("bigco", running=10)`.
    """

    def __init__(
        self, client: Client, queue: str, name: str, change: LaneChange, who: str | None, note: str | None
    ) -> None:
        self._client = client
        self.queue = queue
        self.name = name
        self._change = None
        if change != LaneChange():
            # A coroutine from the beginning: if nobody awaits it, Python warns. It does not refer to this object, so
            # that the warning comes at once.
            self._change = _configure_lane(client, queue, name, "lane", change, who, shown_limits(change, note))

    def __repr__(self) -> str:
        """The queue and the lane."""
        return f"<lane {self.name!r} of queue {self.queue!r}>"

    def __await__(self) -> Generator[Any, None, LaneSettings]:
        """Change the limits that were given."""
        return self.settings().__await__()

    async def pause(self, *, who: str | None = None, note: str | None = None) -> LaneSettings:
        """Give no job of this lane a slot, and take back those of jobs that have not begun; running jobs continue."""
        await self._changed()
        await self._client.open()
        who = self._client.who if who is None else limits.check_note(who, "who")
        note = None if note is None else limits.check_note(note)
        pause = Pause(who=who, note=note, since_ms=self._client.store.now())
        return await self._configure("pause_lane", LaneChange(pause=pause), who, note)

    async def resume(self, *, who: str | None = None) -> LaneSettings:
        """End a pause."""
        await self._changed()
        return await self._configure("resume_lane", LaneChange(pause=None), who)

    async def settings(self) -> LaneSettings:
        """The settings of this lane. What is None there, the rule of the queue says."""
        if (changed := await self._changed()) is not None:
            return changed
        await self._client.open()
        found = await self._client.store.lanes(self.queue, [self.name])
        return found[0].settings if found else LaneSettings()

    async def _changed(self) -> LaneSettings | None:
        """Change the limits that were given, once."""
        change, self._change = self._change, None
        return None if change is None else await change

    async def _configure(self, what: str, change: LaneChange, who: str | None, note: str | None = None) -> LaneSettings:
        return await _configure_lane(self._client, self.queue, self.name, what, change, who, note)


async def _configure_lane(
    client: Client, queue: str, lane: str, what: str, change: LaneChange, who: str | None, note: str | None
) -> LaneSettings:
    if who is not None:
        limits.check_note(who, "who")
    await client.open()
    settings = await client.store.configure_lane(queue, lane, change)
    await client.audit(what, who=who, queue=queue, note=lane if note is None else f"{lane}: {note}")
    return settings
