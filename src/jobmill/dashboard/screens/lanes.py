"""Lanes of a queue: their rule, and how many jobs each lane has; the forms to change them.

The page of a queue loads this when it is shown, because both together would need too many calls of the store.
"""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec import Struct

from jobmill.core import limits
from jobmill.core.lanes import LaneLimits
from jobmill.core.queue_settings import LaneRule, LaneSettings, Pause
from jobmill.core.values import LANE_LIMIT, Lane, QueueSettings
from jobmill.dashboard.view import PAGE, View
from jobmill.errors import InvalidValue

#: Lanes on the page of a queue. The page of the lanes has all.
LANES_SHOWN: Final = 10


class ListedLane(Struct, frozen=True, kw_only=True):
    """One lane. Counts stop at 1,000."""

    name: str
    #: Jobs that have a slot: those that run, and those that a worker may claim.
    running: int
    admitted: int
    #: Jobs that the lane holds: those that could run, and those that are due later.
    ready: int
    later: int
    #: The limits that apply, and the names of those that are its own: "running", "rate", "strict".
    limits: LaneLimits
    own: list[str]
    pause: Pause | None
    #: When its rate allows the next job; None if it allows one now.
    limited_until_ms: int | None

    @property
    def is_known(self) -> bool:
        """Whether the lane has live jobs or settings."""
        return bool(self.running or self.admitted or self.ready or self.later or self.own or self.pause)


class LanesScreen(Struct, frozen=True, kw_only=True):
    """Lanes of a queue, by name."""

    queue: str
    #: The limits of each lane that has none of its own; None: there is no rule.
    rule: LaneRule | None
    lanes: list[ListedLane]
    #: The lane that was asked for; None for a page of all lanes.
    lane: str | None
    #: The `after` of the next page.
    next: str | None
    counted: int = LANE_LIMIT
    #: The page that shows these lanes as a part of it.
    part_of: str | None


class AskLaneRule(Struct, frozen=True, kw_only=True):
    """The form for the rule of all lanes of a queue."""

    queue: str
    rule: LaneRule | None
    back: str


class AskLane(Struct, frozen=True, kw_only=True):
    """A form about one lane: its settings, and the rule of its queue."""

    queue: str
    lane: str
    own: LaneSettings
    rule: LaneRule
    back: str


async def lanes(view: View) -> LanesScreen:
    """Lanes of a queue with live jobs or settings, by name: those after `after`, or the one lane `lane`."""
    queue, name, after = _queue(view.request.path_params["queue"]), view.param("lane"), view.param("after")
    part_of = view.local(view.param("back"), "") or None
    if name is not None:
        limits.check_lane(name)
    if after is not None:
        limits.check_lane(after, "after")
    shown = LANES_SHOWN if part_of else PAGE
    settings, found = await asyncio.gather(
        view.reads.settings(),
        view.reads.lanes(queue, None if name is None else [name], after, shown + 1),
    )
    if name is not None and not found:
        found = [Lane(queue=queue, name=name)]  # it may get limits before its first job
    rule = settings.get(queue, QueueSettings()).lanes
    return LanesScreen(
        queue=queue,
        rule=rule,
        lanes=[_listed(one, rule, view.now_ms) for one in found[:shown]],
        lane=name,
        next=found[shown - 1].name if len(found) > shown else None,
        part_of=part_of,
    )


async def ask_lanes(view: View) -> AskLaneRule:
    """The form for the rule of all lanes of a queue."""
    view.require("limit")
    queue = _queue(view.request.path_params["queue"])
    settings = (await view.reads.settings()).get(queue, QueueSettings())
    return AskLaneRule(queue=queue, rule=settings.lanes, back=_back(view, queue))


async def ask_lane(view: View) -> AskLane:
    """The form for the limits of one lane: `queue`, `lane`."""
    view.require("limit")
    return await _ask(view)


async def ask_pause_lane(view: View) -> AskLane:
    """Ask for the note of a pause: `queue`, `lane`."""
    view.require("pause")
    return await _ask(view)


async def _ask(view: View) -> AskLane:
    queue, lane = _queue(view.param("queue")), limits.check_lane(view.param("lane"))
    settings, found = await asyncio.gather(view.reads.settings(), view.reads.lanes(queue, [lane], None, 1))
    return AskLane(
        queue=queue,
        lane=lane,
        own=found[0].settings if found else LaneSettings(),
        rule=settings.get(queue, QueueSettings()).lanes or LaneRule(),
        back=_back(view, queue),
    )


def _queue(given: str | None) -> str:
    if not given:
        raise InvalidValue("queue", "the name of a queue", "nothing")
    return limits.check_known_id(given, "queue", "the name of a queue")


def _back(view: View, queue: str) -> str:
    return view.local(view.param("back"), view.url("lanes", queue))


def _listed(lane: Lane, rule: LaneRule | None, now_ms: int) -> ListedLane:
    own, until_ms = lane.settings, lane.limited_until_ms
    return ListedLane(
        name=lane.name,
        running=lane.running,
        admitted=lane.admitted,
        ready=lane.ready,
        later=lane.later,
        limits=LaneLimits.of(rule, own),
        own=[field for field in ("running", "rate", "strict") if getattr(own, field) is not None],
        pause=own.pause,
        limited_until_ms=until_ms if until_ms is not None and until_ms > now_ms else None,
    )
