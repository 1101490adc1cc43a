"""In one word, whether a lane gives its jobs slots: for metrics and for people."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from jobmill.core.lanes import LaneLimits
from jobmill.core.queue_settings import LaneRule
from jobmill.core.values import Lane

#: paused: by a person. full: all slots are taken, and jobs wait for one. limited: its rate is used up.
LaneWord: TypeAlias = Literal["paused", "full", "limited", "free"]
LANE_WORDS: Final[tuple[LaneWord, ...]] = get_args(LaneWord)


def lane_word(lane: Lane, rule: LaneRule | None, now_ms: int) -> LaneWord:
    """What keeps the jobs of a lane from getting a slot, in the order in which a lane checks it."""
    if lane.settings.paused:
        return "paused"
    limit = LaneLimits.of(rule, lane.settings).running
    if limit is not None and lane.running + lane.admitted >= limit and lane.ready:
        return "full"
    return "limited" if lane.limited_until_ms is not None and lane.limited_until_ms > now_ms else "free"
