"""When a job is due, and what holds it back."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct, structs

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


def due_fields(held: Held | None, due: Due, now_ms: int) -> dict[str, Any]:
    """The fields of a waiting job that gets a due time. A held job has it from its release on."""
    return {"due_ms": due.resolve(now_ms)} if held is None else {"held": structs.replace(held, due=due)}
