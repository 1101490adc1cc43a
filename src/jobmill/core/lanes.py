"""Lanes: jobs of one queue with the same key, which share limits.

A live job with a lane either has a slot, or it is held by "lane". A job with a slot is an ordinary job: it waits to be
claimed (then it is *admitted*), or it runs. A lane has at most `running` slots. What ends a slot gives it to the next
job of the lane in the same step. So a claim does not look at lanes, and a queue without lanes costs nothing.

While the lane is its only holder, a job stands in the order of its lane: by priority, then by `held.due`, then as
enqueued. It is *ready* if `held.due` has passed, and *later* otherwise. A job that gets a slot is due at that moment,
so that a lane with an old backlog does not stand before the other lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, TypeAlias

from msgspec import UNSET, Struct, structs

from jobmill.core.due import at, lane_fields
from jobmill.core.queue_settings import LaneChange, LaneRule, LaneSettings, RateLimit

if TYPE_CHECKING:
    from jobmill.core.values import Settlement

#: Where a job stands in its lane: its priority, when it joined the lane, the order of enqueueing, its id.
LanePosition: TypeAlias = tuple[int, int, int, str]


class LaneLimits(Struct, frozen=True, kw_only=True):
    """The limits of one lane: its own settings, and the rule of its queue where it has none."""

    running: int | None = None
    rate: RateLimit | None = None
    strict: bool = False
    paused: bool = False

    @staticmethod
    def of(rule: LaneRule | None, own: LaneSettings | None) -> LaneLimits:
        """The limits of a lane under the rule of its queue."""
        rule, own = rule or LaneRule(), own or LaneSettings()
        return LaneLimits(
            running=rule.running if own.running is None else own.running,
            rate=rule.rate if own.rate is None else own.rate,
            strict=rule.strict if own.strict is None else own.strict,
            paused=own.paused,
        )


class LaneWindow(Struct, frozen=True):
    """The window of a lane's rate: when it ends, and how many jobs have got a slot in it."""

    ends_ms: int = 0
    used: int = 0

    def at(self, rate: RateLimit, admitted: int, now_ms: int) -> LaneWindow:
        """The window at this time: this one, or a new one.

        A new window begins with the admitted jobs as used: they got their slots before, and will begin in this window.
        """
        return self if now_ms < self.ends_ms else LaneWindow(now_ms + rate.per_ms, admitted)


class Moves(Struct, frozen=True):
    """Which jobs of a lane get a slot, which lose theirs, and the window of the rate after that."""

    admit: Sequence[LanePosition] = ()
    push_back: Sequence[LanePosition] = ()
    window: LaneWindow = LaneWindow()
    #: When the rate of the lane allows more jobs; None if it need not be asked again.
    again_ms: int | None = None


def room(limits: LaneLimits, admitted: int, running: int) -> int | None:
    """How many jobs may get a slot as far as the number of slots is concerned; None: any number.

    A negative number is the number of admitted jobs that must lose their slots. A job that runs keeps its slot, so a
    lane may have more slots than a limit that was lowered.
    """
    if limits.paused:
        return -admitted
    if limits.running is None:
        return None
    return max(limits.running - admitted - running, -admitted)


def moves(
    limits: LaneLimits,
    ready: Sequence[LanePosition],
    admitted: int,
    running: int,
    last_admitted: Callable[[int], Sequence[LanePosition]],
    window: LaneWindow,
    now_ms: int,
) -> Moves:
    """What happens in a lane. `ready`: the first ready jobs in their order. `last_admitted`: returns this number of
    admitted jobs, the last one in the order of the lane first.

    In a full lane, ready jobs that are more urgent take the slots of admitted jobs, which have not begun. Not in a
    strict lane: there, an admitted job may wait for its next attempt, and nothing may overtake it.
    """
    free = room(limits, admitted, running)
    if free is not None and free < 0:
        return Moves(push_back=last_admitted(-free), window=window)
    if limits.paused or not ready:
        return Moves(window=window)
    again_ms = None
    # A window begins with a job that could get a slot, not with a look at a lane that is full.
    if limits.rate is not None and free != 0:
        window = window.at(limits.rate, admitted, now_ms)
        left = max(0, limits.rate.count - window.used)
        # If slots are fewer than the rate allows, the next settlement looks again.
        again_ms = window.ends_ms if left < len(ready) and (free is None or left < free) else None
        free = left if free is None else min(free, left)
    admit = list(ready[:free])
    if admit and limits.rate is not None:
        window = LaneWindow(window.ends_ms, window.used + len(admit))
    push_back = _displaced(ready[len(admit) :], last_admitted) if admitted and not limits.strict else []
    admit += ready[len(admit) : len(admit) + len(push_back)]
    return Moves(admit=admit, push_back=push_back, window=window, again_ms=again_ms)


def _displaced(
    ready: Sequence[LanePosition], last_admitted: Callable[[int], Sequence[LanePosition]]
) -> list[LanePosition]:
    """The admitted jobs whose slots the first of these ready jobs take, because those are more urgent."""
    if not ready or not any(ready[0][0] < last[0] for last in last_admitted(1)):
        return []
    pairs = zip(ready, last_admitted(len(ready)), strict=False)
    return [last for _, last in takewhile(lambda pair: pair[0][0] < pair[1][0], pairs)]


def keeps_slot(done: Settlement, *, strict: bool) -> bool:
    """Whether a job that waits again keeps its slot.

    A job that was given back unchanged does, and in a strict lane every job that will be tried again. A suspended job
    does not, because its children may be in the same lane, and neither does a recurring job whose run is over.
    """
    if done.outcome == "suspended" or done.runs is not None:
        return False
    return strict or (done.outcome == "released" and done.due is None)


def admitted_fields(now_ms: int) -> dict[str, object]:
    """The fields of a job that gets a slot."""
    return {"held": None, "due_ms": now_ms, "updated_ms": now_ms}


def pushed_back_fields(joined_ms: int, now_ms: int) -> dict[str, object]:
    """The fields of an admitted job that loses its slot: it stands in its lane where it stood."""
    return {**lane_fields(None, at(joined_ms), joined_ms), "updated_ms": now_ms}


def changed_lane(settings: LaneSettings, change: LaneChange) -> LaneSettings:
    """The settings of a lane after a change; what the change leaves UNSET stays."""
    given = {field: value for field in change.__struct_fields__ if (value := getattr(change, field)) is not UNSET}
    return structs.replace(settings, **given)
