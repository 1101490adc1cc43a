"""The options of a crontab, validated, and the types of its hooks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeAlias

import msgspec

from jobmill.core.cron import timezone_named
from jobmill.core.durations import to_ms
from jobmill.crontab.interval import CATCH_UPS, CatchUp
from jobmill.crontab.job import CrontabJob
from jobmill.crontab.store import CrontabStore
from jobmill.errors import InvalidValue

Duration: TypeAlias = float | str | timedelta
OnDocument: TypeAlias = Callable[[CrontabJob], Awaitable[Any] | Any]
OnMoment: TypeAlias = Callable[[], Awaitable[Any] | Any]
OnError: TypeAlias = Callable[[BaseException, CrontabJob | None], Any] | Callable[[BaseException], Any]
Sleep: TypeAlias = Callable[[float], Awaitable[None]]


class CrontabSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Validated options."""

    next_delay: float
    idle_delay: float
    reprocess_delay_ms: int
    lock_ms: int
    concurrency: int
    timezone: str
    catch_up: CatchUp


def settings(
    *,
    next_delay: Duration,
    reprocess_delay: Duration,
    idle_delay: Duration,
    lock_duration: Duration,
    concurrency: int,
    timezone: str,
    catch_up: CatchUp,
) -> CrontabSettings:
    """Validate options; InvalidValue names the invalid option."""
    _check_concurrency(concurrency)
    if catch_up not in CATCH_UPS:
        raise InvalidValue("catch_up", " or ".join(f'"{one}"' for one in CATCH_UPS), catch_up)
    timezone_named(timezone)
    return CrontabSettings(
        next_delay=to_ms(next_delay, "next_delay") / 1000,
        # With 0, an idle crontab would keep a processor busy.
        idle_delay=max(to_ms(idle_delay, "idle_delay"), 1) / 1000,
        reprocess_delay_ms=to_ms(reprocess_delay, "reprocess_delay"),
        lock_ms=to_ms(lock_duration, "lock_duration", least=1),
        concurrency=concurrency,
        timezone=timezone,
        catch_up=catch_up,
    )


def _check_concurrency(given: object) -> None:
    # A bool is an int in Python, and surely a mistake as a concurrency.
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise InvalidValue("concurrency", "a whole number of at least 1", given)


def checked_store(store: CrontabStore | None) -> CrontabStore:
    """Returns the store; InvalidValue unless it has the three methods."""
    if isinstance(store, type):
        raise InvalidValue("store", "a store", store, "this is the class: create an instance")
    missing = [name for name in ("lock_next", "update", "remove") if not callable(getattr(store, name, None))]
    if store is None or missing:
        expected = "an object with the async methods lock_next, update and remove"
        raise InvalidValue("store", expected, store, "" if store is None else f"it has no {' and no '.join(missing)}")
    return store
