"""The data of a chart: what ended in each step of a range, and the marks in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from jobmill.core.audit import AuditEntry
from jobmill.core.tallies import MINUTE_MS, Tally
from jobmill.dashboard.charts import ChartMark, ChartPoint, Throughput
from jobmill.dashboard.screens.queues import HOUR_MS
from jobmill.dashboard.view import View
from jobmill.errors import InvalidValue

#: The ranges of a chart: how long, and the length of a step. The first one is the default, which needs no query of its
#: own: it is the hour that the other figures are about.
RANGES: Final = {
    "1h": (HOUR_MS, MINUTE_MS),
    "8h": (8 * HOUR_MS, 10 * MINUTE_MS),
    "3d": (72 * HOUR_MS, HOUR_MS),
    "30d": (720 * HOUR_MS, 6 * HOUR_MS),
}


def range_of(view: View) -> str:
    """The range in the URL."""
    name = view.param("range", "1h")
    if name not in RANGES:
        raise InvalidValue("range", "one of " + ", ".join(RANGES), name)
    return name


async def range_tallies(view: View, name: str, hour: list[Tally], queue: str | None = None) -> list[Tally]:
    """The tallies of a range; those of the last hour are known."""
    length_ms, step_ms = RANGES[name]
    if name == "1h":
        return hour
    return await view.reads.tallies(view.now_ms - length_ms + step_ms, view.now_ms + 1, step_ms, queue)


def throughput(name: str, tallies: Iterable[Tally], marks: Iterable[AuditEntry], now_ms: int) -> Throughput:
    """One point for each step of a range, also for those in which nothing ended."""
    length_ms, step_ms = RANGES[name]
    last_ms = now_ms - now_ms % step_ms
    since_ms = last_ms + step_ms - length_ms
    succeeded, errors = dict[int, int](), dict[int, int]()
    for tally in tallies:
        start_ms = tally.start_ms - tally.start_ms % step_ms
        succeeded[start_ms] = succeeded.get(start_ms, 0) + tally.succeeded
        errors[start_ms] = errors.get(start_ms, 0) + tally.errored + tally.crashed
    points = [
        ChartPoint(start_ms, succeeded.get(start_ms, 0), errors.get(start_ms, 0))
        for start_ms in range(since_ms, last_ms + 1, step_ms)
    ]
    shown = [ChartMark(mark.at_ms, mark.note or "mark") for mark in marks if since_ms <= mark.at_ms <= now_ms]
    return Throughput(range=name, step_ms=step_ms, points=points, marks=shown)
