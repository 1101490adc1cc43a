"""Recurrence: the rule by which a job runs again, and when its next occurrence is due.

The next occurrence is computed when a run ends: missed occurrences collapse into that one run, and none runs twice. The
occurrences of a cron are fixed by the calendar; those of an interval lie on a grid through the one that has just run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jobmill.core.durations import LAST_MS
from jobmill.errors import InvalidValue

if TYPE_CHECKING:
    from jobmill.core.cron import Cron

_LONGEST_KEY = 1024


# As JSON, `timezone` keeps the name under which stores have it.
class Recurrence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"timezone": "zone"}):
    """Cron or interval, exactly one of them; made by `recurrence`, which validates."""

    key: str
    cron: str | None = None
    every_ms: int | None = None
    timezone: str = "UTC"
    until_ms: int | None = None  # an occurrence at this very millisecond still runs
    revision: int = 0  # the store increases it at each update: a settlement of an older revision keeps the new due time
    declared: bool = False  # a handler declares it; a worker ends it when the handler no longer declares it
    pinned: bool = False  # a person has edited it: rules that code states do not replace it
    stated: Recurrence | None = None  # if it is pinned: the rule that code stated last

    def same_rule(self, other: Recurrence) -> bool:
        """Whether both have the same occurrences, whatever their revisions, declared or pinned or not."""
        return self._bare() == other._bare()

    def restated(self, stated: Recurrence) -> Recurrence:
        """This pinned recurrence after code has stated another rule."""
        return msgspec.structs.replace(self, stated=stated._bare(), declared=stated.declared)

    def edited(self, rule: Recurrence) -> Recurrence:
        """This recurrence with the rule of a person: pinned, with what code stated beside it."""
        stated = self.stated if self.pinned else self._bare()
        return msgspec.structs.replace(
            rule, key=self.key, revision=self.revision + 1, declared=self.declared, pinned=True, stated=stated
        )

    def unpinned(self) -> Recurrence:
        """What code stated last, in place of this pinned recurrence."""
        rule = self._bare() if self.stated is None else self.stated
        return msgspec.structs.replace(rule, revision=self.revision + 1, declared=self.declared)

    def _bare(self) -> Recurrence:
        return msgspec.structs.replace(self, revision=0, declared=False, pinned=False, stated=None)


def recurrence(
    *,
    key: str,
    cron: str | None = None,
    every_ms: int | None = None,
    timezone: str = "UTC",
    until_ms: int | None = None,
) -> Recurrence:
    """A validated recurrence; InvalidValue names the parameter that could not run or be stored."""
    from jobmill.core.cron import timezone_named

    _check_key(key)
    timezone_named(timezone)
    if until_ms is not None and not _is_int_within(until_ms, 0, LAST_MS):
        raise InvalidValue("until_ms", "milliseconds since 1970, up to the year 9999", until_ms)
    made = Recurrence(key=key, cron=cron, every_ms=every_ms, timezone=timezone, until_ms=until_ms)
    _rule(made)
    return made


def first_occurrence(recurrence: Recurrence, now_ms: int) -> int | None:
    """When the first run is due: an interval at once, a cron at its first occurrence after now; None after its end."""
    rule = _rule(recurrence)
    return _within(recurrence, now_ms if isinstance(rule, int) else rule.next(now_ms))


def is_occurrence(recurrence: Recurrence, at_ms: int) -> bool:
    """Whether a cron has an occurrence at this very millisecond; an interval has one at any time."""
    rule = _rule(recurrence)
    return isinstance(rule, int) or rule.next(at_ms - 1) == at_ms


def next_occurrence(recurrence: Recurrence, occurrence_ms: int, now_ms: int, *, delay_ms: int = 0) -> int | None:
    """When the next run is due, after the run of `occurrence_ms` ended at `now_ms`; None when the recurrence has ended.

    It is strictly after both, so that neither a late run nor a clock that was set back can make a hot loop; and after
    `occurrence_ms` by more than `delay_ms`.
    """
    return _within(recurrence, _occurrence_after(recurrence, occurrence_ms, max(occurrence_ms + delay_ms, now_ms)))


def next_occurrence_or_now(recurrence: Recurrence, occurrence_ms: int, now_ms: int, *, delay_ms: int = 0) -> int | None:
    """Like `next_occurrence`, but occurrences that were missed make one more run, due now: the rule of mongodb-cron.

    The end is checked after that, so that no run is due after it.
    """
    following = _occurrence_after(recurrence, occurrence_ms, occurrence_ms + delay_ms)
    return _within(recurrence, None if following is None else max(following, now_ms))


def _occurrence_after(recurrence: Recurrence, occurrence_ms: int, passed_ms: int) -> int | None:
    """The first occurrence after `passed_ms`, ignoring the end; an interval's grid goes through `occurrence_ms`."""
    rule = _rule(recurrence)
    if isinstance(rule, int):
        return occurrence_ms + ((passed_ms - occurrence_ms) // rule + 1) * rule
    return rule.next(passed_ms)


def _rule(recurrence: Recurrence) -> Cron | int:
    """The cron, or the milliseconds between occurrences; checked each time: another system may have stored it."""
    cron, every_ms = recurrence.cron, recurrence.every_ms
    if cron is not None and every_ms is not None:
        raise InvalidValue("cron", "either cron or every_ms, not both", cron)
    if cron is not None:
        # Here, because most processes have no recurring job, and cronsim and the time zones take 4 ms to import.
        from jobmill.core.cron import Cron

        parsed = Cron.parse(cron, recurrence.timezone)
        return parsed if parsed.every_ms is None else parsed.every_ms
    if every_ms is None:
        raise InvalidValue("cron", "cron or every_ms", None)
    if not _is_int_within(every_ms, 1, LAST_MS):
        raise InvalidValue("every_ms", f"whole milliseconds from 1 to {LAST_MS}", every_ms)
    return every_ms


def _within(recurrence: Recurrence, occurrence_ms: int | None) -> int | None:
    last = LAST_MS if recurrence.until_ms is None else recurrence.until_ms
    return occurrence_ms if occurrence_ms is not None and occurrence_ms <= last else None


def _check_key(key: str) -> None:
    try:
        units = len(key.encode("utf-16-le")) // 2
    except (AttributeError, UnicodeEncodeError):  # not a str, or half of a surrogate pair: no store could hold it
        units = 0
    if not 1 <= units <= _LONGEST_KEY:
        raise InvalidValue("key", f"a text of 1 to {_LONGEST_KEY} UTF-16 units", key)


def _is_int_within(value: object, least: int, most: int) -> bool:
    # A bool is an int to Python, and never what was meant here.
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
