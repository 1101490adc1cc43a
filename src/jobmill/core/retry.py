"""Retries: how long a job waits after a failed attempt."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from jobmill.core.durations import MAX_MS, to_ms
from jobmill.errors import InvalidValue

DEFAULT_MAX_ATTEMPTS = 3
DEFAULT_MAX_CRASHES = 3
DEFAULT_CAP_MS = 3_600_000

TYPES = ("fixed", "exponential")

_KEYS = {"type", "delay", "cap", "jitter"}


class Backoff(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rule for the delay before the next attempt; made by `fixed`, `exponential` or `backoff`, which validate it."""

    type: str
    delay_ms: int
    cap_ms: int = DEFAULT_CAP_MS
    jitter: float = 0.0


def fixed(
    delay: float | str | timedelta, *, cap: float | str | timedelta | None = None, jitter: float = 0.0
) -> Backoff:
    """The same delay each time; without a cap, a delay of any length is kept."""
    wait = to_ms(delay, "backoff.delay", least=1)
    most = max(wait, DEFAULT_CAP_MS) if cap is None else to_ms(cap, "backoff.cap", least=1)
    return _checked(Backoff(type="fixed", delay_ms=wait, cap_ms=most, jitter=jitter))


def exponential(
    delay: float | str | timedelta = "1s", *, cap: float | str | timedelta = "1h", jitter: float = 0.0
) -> Backoff:
    """Twice the delay each time, up to the cap; a jitter of 0.2 subtracts up to a fifth at random."""
    wait = to_ms(delay, "backoff.delay", least=1)
    most = to_ms(cap, "backoff.cap", least=1)
    return _checked(Backoff(type="exponential", delay_ms=wait, cap_ms=most, jitter=jitter))


def backoff(value: Backoff | Mapping[str, Any] | float | str | timedelta) -> Backoff:
    """A Backoff from a Backoff, from `{"type", "delay", "cap", "jitter"}` in ms, or from a duration (a fixed delay)."""
    if isinstance(value, Backoff):
        return _checked(value)
    if isinstance(value, Mapping):
        return _from_mapping(value)
    if isinstance(value, int | float | str | timedelta):
        return fixed(value)
    raise InvalidValue("backoff", "a Backoff, a dict or a duration", value)


def delay_ms(backoff: Backoff, attempt: int, random: float = 0.0) -> int:
    """The delay after attempt 1, 2, 3 …; `random`, from 0 up to 1, is the share of the jitter to subtract.

    It is 0 only where the delay is 0. Jobmill has no such backoff, but jobs of other systems may retry at once.
    """
    wait = backoff.delay_ms
    if wait == 0:
        return 0
    if backoff.type == "exponential":
        # 64 doublings bring even 1 ms above every cap.
        wait <<= min(max(attempt - 1, 0), 64)
    wait = min(wait, backoff.cap_ms)
    if backoff.jitter:
        wait = round(wait * (1 - backoff.jitter * random))
    return max(wait, 1)


def _from_mapping(value: Mapping[str, Any]) -> Backoff:
    unknown = [key for key in value if key not in _KEYS]
    if unknown:
        raise InvalidValue("backoff", "the keys type, delay, cap and jitter", unknown[0])
    kind: Any = value.get("type")
    delay: Any = value.get("delay")
    # As in `fixed`: a cap must not shorten the given delay.
    usual_cap = max(delay, DEFAULT_CAP_MS) if kind == "fixed" and isinstance(delay, int) else DEFAULT_CAP_MS
    cap, jitter = value.get("cap", usual_cap), value.get("jitter", 0.0)
    return _checked(Backoff(type=kind, delay_ms=delay, cap_ms=cap, jitter=jitter))


def _checked(backoff: Backoff) -> Backoff:
    if backoff.type not in TYPES:
        raise InvalidValue("backoff.type", " or ".join(f'"{name}"' for name in TYPES), backoff.type)
    for field, ms in (("backoff.delay", backoff.delay_ms), ("backoff.cap", backoff.cap_ms)):
        if type(ms) is not int or not 0 < ms <= MAX_MS:
            raise InvalidValue(field, f"whole milliseconds above 0 and up to {MAX_MS}", ms)
    jitter: object = backoff.jitter
    if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter <= 1:
        raise InvalidValue("backoff.jitter", "a number from 0 to 1", jitter)
    return backoff


DEFAULT_BACKOFF = exponential("1s", cap="1h")
