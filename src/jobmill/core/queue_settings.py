"""The settings of queues and lanes, as people give them and stores keep them."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType, structs


class RateLimit(Struct, frozen=True):
    """At most `count` claims in each window of `per_ms`; a window opens with the first claim after the last window."""

    count: int
    per_ms: int


class Pause(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who paused a queue, why, since when and until when. A pause by another program has none of it."""

    who: str | None = None
    note: str | None = None
    since_ms: int | None = None
    #: The queue resumes by itself at this instant.
    until_ms: int | None = None


class LaneRule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of each lane of a queue."""

    #: How many jobs of a lane may have a slot: run, or wait to be claimed. None: any number.
    running: int | None = None
    #: How many jobs of a lane may get a slot in a window.
    rate: RateLimit | None = None
    #: A job that waits for its next attempt keeps its slot, so that the jobs of a lane end in their order.
    strict: bool = False


class LaneSettings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of one lane. What is None, the rule of its queue says."""

    running: int | None = None
    rate: RateLimit | None = None
    strict: bool | None = None
    pause: Pause | None = None

    @property
    def paused(self) -> bool:
        """Whether the lane gives no job a slot."""
        return self.pause is not None


class LaneChange(Struct, frozen=True, kw_only=True):
    """Settings of a lane to change; those that are UNSET stay. None: the rule of the queue applies again."""

    running: int | UnsetType | None = UNSET
    rate: RateLimit | UnsetType | None = UNSET
    strict: bool | UnsetType | None = UNSET
    pause: Pause | UnsetType | None = UNSET


class QueueSettings(Struct, frozen=True, kw_only=True):
    """The settings of one queue."""

    paused: bool = False
    pause: Pause | None = None
    rate_limit: RateLimit | None = None
    running_limit: int | None = None
    feed: bool = False
    events_max_len: int = 10_000
    #: The limits of each lane. None: none was given.
    lanes: LaneRule | None = None

    def at(self, now_ms: int) -> QueueSettings:
        """The settings as they apply at this time: a pause that is over is left out."""
        if self.pause is None or self.pause.until_ms is None or now_ms < self.pause.until_ms:
            return self
        return structs.replace(self, paused=False, pause=None)


class QueueChange(Struct, frozen=True, kw_only=True):
    """Settings to change; those that are UNSET stay. A change of `paused` without a `pause` removes the old one."""

    paused: bool | UnsetType = UNSET
    pause: Pause | UnsetType | None = UNSET
    rate_limit: RateLimit | UnsetType | None = UNSET
    running_limit: int | UnsetType | None = UNSET
    feed: bool | UnsetType = UNSET
    events_max_len: int | UnsetType = UNSET
    lanes: LaneRule | UnsetType | None = UNSET
