"""The options of a crontab, validated, and the checks that only a crontab needs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeAlias

import msgspec

from jobmill.crontab.hooks import CrontabHooks
from jobmill.crontab.interval import CATCH_UPS, CatchUp
from jobmill.crontab.store import CrontabStore
from jobmill.errors import InvalidValue

Duration: TypeAlias = float | str | timedelta
Sleep: TypeAlias = Callable[[float], Awaitable[None]]


class CrontabSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a crontab that its runs use."""

    store: CrontabStore
    hooks: CrontabHooks
    next_delay: float
    idle_delay: float
    reprocess_delay_ms: int
    lock_ms: int
    concurrency: int
    timezone: str
    catch_up: CatchUp
    clock: Callable[[], int]
    sleep: Sleep

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        given: object = self.concurrency
        # A bool is an int in Python, and surely a mistake as a concurrency.
        if not isinstance(given, int) or isinstance(given, bool) or given < 1:
            raise InvalidValue("concurrency", "a whole number of at least 1", given)
        if self.catch_up not in CATCH_UPS:
            raise InvalidValue("catch_up", " or ".join(f'"{one}"' for one in CATCH_UPS), self.catch_up)


def checked_store(store: CrontabStore | None) -> CrontabStore:
    """Returns the store; InvalidValue unless it has the three methods."""
    if isinstance(store, type):
        raise InvalidValue("store", "a store", store, "this is the class: create an instance")
    missing = [name for name in ("lock_next", "update", "remove") if not callable(getattr(store, name, None))]
    if store is None or missing:
        expected = "an object with the async methods lock_next, update and remove"
        raise InvalidValue("store", expected, store, "" if store is None else f"it has no {' and no '.join(missing)}")
    return store


def takes_fence(remove: Callable[..., object]) -> bool:
    """Whether the method `remove` of a store has the parameter `locked_until`."""
    try:
        return "locked_until" in inspect.signature(remove).parameters
    except (TypeError, ValueError):  # a function without a signature
        return False
