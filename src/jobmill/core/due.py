"""When a job is due, and what holds it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, structs

if TYPE_CHECKING:
    from jobmill.core.job import Job

#: The due time of a held job in its store: 9999-01-01. Later in that year, dates overflow in zones east of Greenwich.
NEVER_MS: Final = 253_370_764_800_000


class Due(Struct, frozen=True, gc=False):
    """When a job may be claimed: at an instant, or after a delay that the store adds to its own clock."""

    at_ms: int | None = None
    after_ms: int = 0

    def resolve(self, now_ms: int) -> int:
        """The instant, by the store's clock."""
        return now_ms + self.after_ms if self.at_ms is None else self.at_ms


def at(ms: int) -> Due:
    """Due at an instant."""
    return Due(at_ms=ms)


def after(ms: int) -> Due:
    """Due after a delay, by the store's clock."""
    return Due(after_ms=ms)


NOW = Due()


class Held(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A waiting job that no worker may claim, until nothing holds it any more."""

    #: What holds it, in order: "jobs", "lane", "person".
    by: tuple[str, ...]
    #: When it is due once it is released. A delay counts from the release; an instant means not before it.
    due: Due = NOW
    #: The person who holds it, and why.
    who: str | None = None
    note: str | None = None


#: The holder of a job that its lane has not given a slot, see `Held.by`.
BY_LANE: Final = "lane"


def due_fields(held: Held | None, due: Due, now_ms: int, lane: str | None = None) -> dict[str, Any]:
    """The fields of a waiting job that gets a due time. A held job has it from its release on.

    A job with a lane that had a slot gives it up, and stands in its lane again.
    """
    if lane is not None:
        return lane_fields(held, due, now_ms)
    return {"due_ms": due.resolve(now_ms)} if held is None else {"held": structs.replace(held, due=due)}


def lane_fields(held: Held | None, due: Due, now_ms: int) -> dict[str, Any]:
    """The fields of a waiting job that its lane holds, beside its other holders.

    While the lane is its only holder, it stands in the order of the lane: by priority, and then by `held.due`, which is
    when it joined the lane, or when it may run. A job that others hold as well joins the lane when they release it.
    """
    by = (BY_LANE,) if held is None else tuple(sorted({*held.by, BY_LANE}))
    if by == (BY_LANE,):
        due = at(max(due.resolve(now_ms), now_ms))
    held = Held(by=by, due=due) if held is None else structs.replace(held, by=by, due=due)
    return {"held": held, "due_ms": NEVER_MS}


def in_lane(held: Held | None) -> bool:
    """Whether a job stands in the order of its lane: nothing but the lane holds it."""
    return held is not None and held.by == (BY_LANE,)


def due_of(job: Job) -> int | None:
    """When a job is due; None if something holds it. A lane holds its jobs until they are due and it has room."""
    if job.held is not None:
        return job.held.due.at_ms if in_lane(job.held) else None
    return job.due_ms
