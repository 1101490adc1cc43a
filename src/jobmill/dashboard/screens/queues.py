"""The list of queues, the most urgent first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from jobmill.core.announcing import WorkerCard
from jobmill.core.tallies import MINUTE_MS, Tally, quantile_ms
from jobmill.core.values import Depth, QueueSettings
from jobmill.dashboard.fields import whole_page
from jobmill.dashboard.view import PAGE, View

HOUR_MS: Final = 3_600_000
#: Points of a small chart in a row.
SPARK_POINTS: Final = 20

#: What is wrong with a queue, and the shape that shows it.
Alarm: TypeAlias = Literal["failed", "caution", "held"]


class ListedQueue(Struct, frozen=True, kw_only=True):
    """One queue in a list. Counts stop at 10,000; then `exact` is false."""

    queue: str
    due: int
    later: int
    held: int
    running: int
    failed: int
    exact: bool
    running_limit: int | None
    oldest_due_ms: int | None
    wait_p95_ms: float | None
    run_p95_ms: float | None
    #: Runs that ended in the last whole minute, and in each part of the last hour.
    per_minute: int
    per_minute_history: list[int]
    errors_1h: int
    workers: int
    alarm: Alarm | None = None
    alarm_text: str | None = None


class QueuesScreen(Struct, frozen=True, kw_only=True):
    """One page of the queues, the most urgent first."""

    queues: list[ListedQueue]
    queue_count: int
    page: int
    is_last_page: bool


async def queues(view: View) -> QueuesScreen:
    """All queues with their depths and what workers did in the last hour."""
    rows, page = await queue_rows(view), whole_page(view.param("page"))
    return QueuesScreen(
        queues=rows[(page - 1) * PAGE : page * PAGE],
        queue_count=len(rows),
        page=page,
        is_last_page=len(rows) <= page * PAGE,
    )


async def queue_rows(view: View) -> list[ListedQueue]:
    """A row for each queue, the most urgent first."""
    reads, now_ms = view.reads, view.now_ms
    depths, settings, workers, tallies = await asyncio.gather(
        reads.depths(),
        reads.settings(),
        reads.workers(),
        reads.last_hour(),
    )
    by_queue: dict[str, list[Tally]] = {}
    for tally in tallies:
        by_queue.setdefault(tally.queue, []).append(tally)
    rows = [
        _row(depth, settings.get(depth.queue, QueueSettings()), workers, by_queue.get(depth.queue, []), now_ms, view)
        for depth in depths
    ]
    return sorted(rows, key=_urgency)


def _row(
    depth: Depth, settings: QueueSettings, workers: Sequence[WorkerCard], tallies: list[Tally], now_ms: int, view: View
) -> ListedQueue:
    claiming = sum(depth.queue in card.queues and not card.stopping for card in workers)
    alarm, text = _alarm(depth, settings, claiming, view)
    return ListedQueue(
        queue=depth.queue,
        due=depth.due,
        later=depth.later,
        held=depth.held,
        running=depth.running,
        failed=depth.failed,
        exact=depth.exact,
        running_limit=settings.running_limit,
        oldest_due_ms=depth.oldest_due_ms,
        wait_p95_ms=quantile_ms(sums(one.wait_buckets for one in tallies), 0.95),
        run_p95_ms=quantile_ms(sums(one.run_buckets for one in tallies), 0.95),
        per_minute=_ended(tallies, now_ms - now_ms % MINUTE_MS - MINUTE_MS, MINUTE_MS),
        per_minute_history=history(tallies, now_ms),
        errors_1h=sum(one.errored + one.crashed for one in tallies),
        workers=claiming,
        alarm=alarm,
        alarm_text=text,
    )


def _alarm(depth: Depth, settings: QueueSettings, claiming: int, view: View) -> tuple[Alarm | None, str | None]:
    if settings.paused:
        pause = settings.pause
        by = f" by {pause.who}" if pause and pause.who else ""
        until = f" until {view.clock(pause.until_ms)}" if pause and pause.until_ms else ""
        return "held", f"paused{by}{until}"
    if depth.due and not claiming:
        return "failed", "no worker claims it"
    if settings.running_limit is not None and depth.running >= settings.running_limit and depth.due:
        return "caution", "at its running limit"
    if depth.limited_until_ms is not None and depth.due:
        return "caution", "at its rate limit"
    return None, None


def sums(all_buckets: Iterable[Sequence[int]]) -> list[int]:
    """Histograms with equal buckets, added."""
    return [sum(column) for column in zip(*all_buckets, strict=True)]


def ended(tally: Tally) -> int:
    """How many runs of a tally ended."""
    return tally.succeeded + tally.errored + tally.crashed


def history(tallies: Iterable[Tally], now_ms: int) -> list[int]:
    """How many runs ended in each part of the last hour, the oldest first; without the minute that is not over."""
    width, until_ms = HOUR_MS // SPARK_POINTS, now_ms - now_ms % MINUTE_MS
    parts = [0] * SPARK_POINTS
    for tally in tallies:
        index = SPARK_POINTS - 1 - (until_ms - 1 - tally.start_ms) // width
        if 0 <= index < SPARK_POINTS and tally.start_ms < until_ms:
            parts[index] += ended(tally)
    return parts


def _ended(tallies: Iterable[Tally], since_ms: int, for_ms: int) -> int:
    return sum(ended(one) for one in tallies if since_ms <= one.start_ms < since_ms + for_ms)


def _urgency(row: ListedQueue) -> tuple[int, int, str]:
    ranks = {"failed": 0, "caution": 1, "held": 2}
    return (ranks.get(row.alarm or "", 3 if row.due else 4), -row.due, row.queue)
