"""Tallies: what workers did, counted by queue and name in steps of a minute, ten minutes and an hour.

A worker counts in minutes. A store adds each of these counts to the tally of its minute, of its ten minutes and of its
hour, and keeps long steps longer than short ones. So nobody has to compute long steps from short ones later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from msgspec import Struct, structs

MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * MINUTE_MS

#: How long a store keeps the tallies of each step.
TALLIES_KEPT_MS: Final = {
    MINUTE_MS: 8 * _HOUR_MS,
    10 * MINUTE_MS: 3 * 24 * _HOUR_MS,
    _HOUR_MS: 35 * 24 * _HOUR_MS,
}

#: Bucket i counts durations from 2**i to 2**(i+1) ms; the first one also 0, the last one all that take longer. Only
#: histograms with equal buckets can be added.
BUCKETS: Final = 25
NO_DURATIONS: Final = (0,) * BUCKETS
MAX_ERROR_GROUPS: Final = 20

#: The fields of a tally that are plain counts.
COUNTS: Final = (
    *("enqueued", "claimed", "succeeded", "errored", "crashed", "failed", "cancelled", "snoozed", "lost"),
    *("run_ms", "wait_ms"),
)


class ErrorGroup(Struct, frozen=True, kw_only=True):
    """Errors with the same type, handler and innermost line of the application."""

    fingerprint: str
    #: The qualified name of the class.
    error_type: str
    #: The innermost frame that is not part of a library: "mail.py:12 in send".
    location: str
    count: int
    last_job_id: str
    last_ms: int


class Tally(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happened to the jobs of one queue and name from `start_ms` on, for `step_ms`.

    `errored` counts attempts, `failed` jobs; `lost` counts runs whose lease another worker had taken over. `enqueued`
    has only jobs that were enqueued in the process of a worker.
    """

    start_ms: int
    queue: str
    name: str
    step_ms: int = MINUTE_MS
    enqueued: int = 0
    claimed: int = 0
    succeeded: int = 0
    errored: int = 0
    crashed: int = 0
    failed: int = 0
    cancelled: int = 0
    snoozed: int = 0
    lost: int = 0
    #: How long runs took, and how long jobs had been due when they were claimed: the sums, and how many took how long.
    run_ms: int = 0
    wait_ms: int = 0
    run_buckets: tuple[int, ...] = NO_DURATIONS
    wait_buckets: tuple[int, ...] = NO_DURATIONS
    #: The most frequent ones, at most 20.
    error_groups: tuple[ErrorGroup, ...] = ()


def bucket(ms: int) -> int:
    """The bucket of a duration."""
    return min(max(ms.bit_length() - 1, 0), BUCKETS - 1)


def quantile_ms(buckets: Sequence[int], share: float) -> float | None:
    """The duration that this share of all durations does not exceed, at most twice too large; None without any."""
    wanted = share * sum(buckets)
    for index, count in enumerate(buckets):
        wanted -= count
        if count and wanted <= 0:
            return float(2 << index)
    return None


def added(*tallies: Tally) -> Tally:
    """The sum of tallies of the same step, queue and name."""
    # A chart of 30 days adds tens of thousands: many at once are several times faster than two at a time.
    sums: dict[str, int] = {field: sum(map(attrgetter(field), tallies)) for field in COUNTS}
    return structs.replace(
        tallies[0],
        **sums,
        run_buckets=_sums(tally.run_buckets for tally in tallies),
        wait_buckets=_sums(tally.wait_buckets for tally in tallies),
        error_groups=added_groups(group for tally in tallies for group in tally.error_groups),
    )


def added_groups(groups: Iterable[ErrorGroup]) -> tuple[ErrorGroup, ...]:
    """The groups with each fingerprint once, the most frequent ones first."""
    by_fingerprint: dict[str, ErrorGroup] = {}
    for group in groups:
        older = by_fingerprint.get(group.fingerprint)
        latest = group if older is None else max(older, group, key=lambda one: one.last_ms)
        count = group.count + (0 if older is None else older.count)
        by_fingerprint[group.fingerprint] = structs.replace(latest, count=count)
    ordered = sorted(by_fingerprint.values(), key=lambda one: (-one.count, -one.last_ms, one.fingerprint))
    return tuple(ordered[:MAX_ERROR_GROUPS])


def in_all_steps(tallies: Iterable[Tally]) -> Iterator[Tally]:
    """Each tally of a minute as a part of its minute, of its ten minutes and of its hour."""
    for tally in tallies:
        for step_ms in TALLIES_KEPT_MS:
            yield structs.replace(tally, step_ms=step_ms, start_ms=tally.start_ms - tally.start_ms % step_ms)


def stored_step(step_ms: int) -> int:
    """The longest step that stores keep and that divides this one; a minute if none does."""
    return max((kept for kept in TALLIES_KEPT_MS if step_ms % kept == 0), default=MINUTE_MS)


def first_kept_ms(step_ms: int, since_ms: int, now_ms: int) -> int:
    """From when on tallies of a stored step are returned: a store may still have older ones."""
    return max(since_ms, now_ms - TALLIES_KEPT_MS[step_ms])


def series(tallies: Iterable[Tally], step_ms: int) -> list[Tally]:
    """Tallies of a stored step as tallies of this step: by start, queue and name, without steps in which nothing was.

    Tallies of the same step, queue and name are added.
    """
    table: dict[tuple[int, str, str], list[Tally]] = {}
    for tally in tallies:
        key = (tally.start_ms - tally.start_ms % step_ms, tally.queue, tally.name)
        table.setdefault(key, []).append(tally)
    sums = {key: parts[0] if len(parts) == 1 else added(*parts) for key, parts in table.items()}
    return [structs.replace(sums[key], start_ms=key[0], step_ms=step_ms) for key in sorted(sums)]


def _sums(all_buckets: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*all_buckets, strict=True)))
