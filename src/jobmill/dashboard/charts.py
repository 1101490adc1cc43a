"""Charts as SVG, made on the server: attributes and classes only, because the pages allow no inline style."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date, tzinfo
from statistics import median_low
from typing import Final

from markupsafe import Markup
from msgspec import Struct

from jobmill.core.durations import to_datetime
from jobmill.dashboard.last_runs import LastRun
from jobmill.dashboard.schedules import CalendarDay
from jobmill.dashboard.shown import minute_text

#: The states of the parts of a bar, in order.
STRIP_STATES: Final = (*("succeeded", "failed", "cancelled", "running", "waiting", "retrying", "due", "later", "held"),)
_DOT: Final = "M{x} 10m1 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0"
_CROSS: Final = "M{x} 10m1-3l6 6M{x} 10m1 3l6-6"
_HALF_RING: Final = "M{x} 10m1.5 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0m2-2v4"


def spark(values: Sequence[float], state: str = "succeeded") -> Markup:
    """A small line in a row of a table; nothing without any value above 0."""
    top = max(values, default=0)
    if top <= 0 or len(values) < 2:
        return Markup("")
    step = 60 / (len(values) - 1)
    points = " ".join(f"{index * step:.0f},{18 - value / top * 16:.1f}" for index, value in enumerate(values))
    return Markup(
        '<svg class="spark {}" width="72" height="20" viewBox="0 0 60 20" preserveAspectRatio="none"'
        ' aria-hidden="true"><polyline points="{}"/></svg>'
    ).format(state, points)


def bars(values: Sequence[int], state: str = "failed") -> Markup:
    """Small bars in a row of a table, as wide as its column; a value above 0 is never invisible."""
    top, step = max(values, default=0) or 1, 60 / max(1, len(values))
    drawn = [(index * step, max(1.5, value / top * 19)) for index, value in enumerate(values) if value > 0]
    rects = Markup("").join(
        Markup('<rect class="bar" x="{}" y="{}" width="{}" height="{}"/>').format(
            f"{x:.1f}", f"{20 - height:.1f}", f"{step * 0.72:.1f}", f"{height:.1f}"
        )
        for x, height in drawn
    )
    return Markup(
        '<svg class="spark {}" width="96" height="20" viewBox="0 0 60 20" preserveAspectRatio="none"'
        ' aria-hidden="true"><path class="rule" d="M0 19.5H60" vector-effect="non-scaling-stroke"/>{}</svg>'
    ).format(state, rects)


def runs(last: Sequence[LastRun], is_running: bool) -> Markup:
    """The last runs in a row of a table: a dot succeeded, a cross failed, a half ring runs; the newest is right."""
    dots, crosses = (
        "".join(shape.format(x=10 * index) for index, run in enumerate(last) if run.state == state)
        for state, shape in (("succeeded", _DOT), ("failed", _CROSS))
    )
    count = "1 run" if len(last) == 1 else f"{len(last)} runs"
    label = f"{count}: {dots.count('M')} succeeded, {crosses.count('M') // 2} failed"
    ring = Markup('<path class="sign running" d="{}"/>').format(_HALF_RING.format(x=10 * len(last)))
    return Markup(
        '<svg class="runs" width="{}" height="20" role="img" aria-label="{}"><path class="bar succeeded" d="{}"/>'
        '<path class="sign failed" d="{}"/>{}</svg>'
    ).format(10 * len(last) + 10 * is_running, label + ", one runs now" * is_running, dots, crosses, ring * is_running)


def week(days: Sequence[CalendarDay], is_all: bool) -> Markup:
    """The runs of each hour of a week: a row for each day, a stronger color for more runs."""
    counts = [count for day in days for count in day.hours if count]
    usual, top = median_low(counts or [0]), max(counts, default=0)
    parts = list[Markup]()
    for index, day in enumerate(days):
        name = f"{date.fromisoformat(day.date):%a}"
        parts.append(Markup('<text x="0" y="{}">{}</text>').format(13 + 20 * index, name))
        for hour, count in enumerate(day.hours):
            if count:
                runs = f"{count:,} {'run' if count == 1 else 'runs'}" if is_all else f"{count:,}+ runs"
                text = f"{name} {hour:02}:00, {runs}"
                parts.append(
                    Markup(
                        '<rect class="bar {}" x="{}%" y="{}" width="3.5%" height="16" rx="2"><title>{}</title></rect>'
                    ).format(_strength(count, usual, top), f"{8 + 3.83 * hour:.2f}", 20 * index, text)
                )
    bottom = 20 * len(days) + 14
    parts += [
        Markup('<text x="{}%" y="{}">{:02}:00</text>').format(f"{8 + 3.83 * hour:.2f}", bottom, hour)
        for hour in (0, 6, 12, 18)
    ]
    label = f"Runs per hour in the coming week. The busiest hour has {top:,}{'' if is_all else ' or more'}."
    return Markup('<svg class="running" width="100%" height="{}" role="img" aria-label="{}">{}</svg>').format(
        bottom + 6, label, Markup("").join(parts)
    )


def _strength(count: int, usual: int, top: int) -> str:
    """By the place between what is usual and the most: jobs that run in every hour do not hide the others."""
    share = (count - usual) / max(1, top - usual)
    return "h1" if share <= 0 else "h2" if share <= 1 / 3 else "h3" if share <= 2 / 3 else ""


def gauge(part: float, whole: float, state: str = "running") -> Markup:
    """A bar: how much of a limit is used."""
    share = 0 if whole <= 0 else min(100, round(part / whole * 100))
    return Markup(
        '<svg class="gauge {}" height="4" aria-hidden="true"><rect width="100%" height="4" rx="2"/>'
        '<rect width="{}%" height="4" rx="2"/></svg>'
    ).format(state, share)


def strip_parts(
    counts: Mapping[str, int], x: float, width: float, *, y: int = 0, height: int = 8, unit: str = "%"
) -> Markup:
    """The parts of a bar by state, what has ended first. Each is at least 1 % wide, so that few failures are seen."""
    shown = [(state, counts[state]) for state in STRIP_STATES if counts.get(state)]
    total = sum(count for _, count in shown)
    widths = [max(0.01, count / total) for _, count in shown]
    scale, parts = width / (sum(widths) or 1), Markup("")
    for (state, count), share in zip(shown, widths, strict=True):
        parts += Markup(
            '<rect class="part {}" x="{}{}" y="{}" width="{}{}" height="{}"><title>{:,} {}</title></rect>'
        ).format(
            *("due" if state == "waiting" else state, f"{x:.1f}", unit, y, f"{share * scale:.1f}", unit, height),
            *(count, state),
        )
        x += share * scale
    return parts


def strip(counts: Mapping[str, int]) -> Markup:
    """How many jobs are in each state, as a bar that is as wide as its column."""
    label = ", ".join(f"{counts[state]:,} {state}" for state in STRIP_STATES if counts.get(state))
    return Markup('<svg class="gauge strip" width="100%" height="8" role="img" aria-label="{}">{}</svg>').format(
        label, strip_parts(counts, 0, 100)
    )


# ---------------------------------------------------------------------------------------------------- throughput

#: Labels of marks in one chart, the newest ones. All marks have their line.
MAX_LABELS: Final = 3
_MAX_LABEL: Final = 20
# In percent of a chart of 720 pixels: a character of a label, and the room between two labels.
_PER_CHARACTER, _LABEL_GAP = 0.95, 2.0
_MANTISSAS: Final = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)
_TOP, _ERRORS_TOP, _BOTTOM = 36, 212, 268


class ChartPoint(Struct, frozen=True):
    """What ended in one step: runs that succeeded, and runs with an error or a crash."""

    start_ms: int
    succeeded: int = 0
    errors: int = 0


class ChartMark(Struct, frozen=True):
    """A mark of the audit log, for example a version that was deployed."""

    at_ms: int
    text: str


class Throughput(Struct, frozen=True, kw_only=True):
    """What ended in each step of a range, the oldest step first. The last step is not over."""

    range: str
    step_ms: int
    points: list[ChartPoint]
    marks: list[ChartMark] = []


def round_top(value: float) -> int:
    """The end of an axis: a round number that is not below the value, and whose half is a whole number."""
    if value <= 0:
        return 10
    scale = 10 ** max(0, math.floor(math.log10(value)))
    tops = (mantissa * size for size in (scale, 10 * scale) for mantissa in _MANTISSAS)
    return next(int(top) for top in tops if top >= value and top % 2 == 0)


def throughput(chart: Throughput, now_ms: int, zone: tzinfo) -> Markup:
    """Succeeded runs as a line and errors as bars over the same time; a step that is not over is an outline."""
    points, count = chart.points, len(chart.points)
    per, spoken = _per(chart.step_ms), f"last {duration_text(chart.range)}"
    title = Markup('<title id="ct">Runs {}, {}</title><desc id="cd">{}</desc>').format(
        per, spoken, _summary(chart, now_ms, zone)
    )
    top = round_top(max((point.succeeded for point in points), default=0))
    errors_top = round_top(max((point.errors for point in points), default=0))
    rules = [
        _rule(184, "0"),
        _rule(110, f"{top // 2:,}"),
        _rule(_TOP, f"{top:,} {per}"),
        _rule(_BOTTOM, "0"),
        _rule(_ERRORS_TOP, f"{errors_top:,} {per}"),
    ]
    over = [index for index, point in enumerate(points) if point.start_ms + chart.step_ms <= now_ms]
    parts = [
        title,
        *rules,
        _line([(_center(index, count), 100 - points[index].succeeded / top * 100) for index in over], count),
        _bars(points, len(over), errors_top),
        *_marks(chart, now_ms, zone),
        *_times(chart, now_ms, zone),
        *(_hit(chart, index, index >= len(over), now_ms, zone) for index in range(count)),
    ]
    return Markup('<svg class="chart" width="100%" height="292" role="img" aria-labelledby="ct cd">{}</svg>').format(
        Markup("\n").join(parts)
    )


def duration_text(range: str) -> str:
    """A range of the URL in words: "hour", "8 hours", "30 days"."""
    number, unit = range[:-1], {"h": "hour", "d": "day"}[range[-1]]
    return unit if number == "1" else f"{number} {unit}s"


def _per(step_ms: int) -> str:
    minutes = step_ms // 60_000
    if minutes == 1:
        return "a minute"
    if minutes == 60:
        return "an hour"
    return f"in {minutes} min" if minutes < 60 else f"in {minutes // 60} h"


def _summary(chart: Throughput, now_ms: int, zone: tzinfo) -> str:
    succeeded = sum(point.succeeded for point in chart.points)
    errors = sum(point.errors for point in chart.points)
    text = f"{succeeded:,} succeeded, {_errors(errors)}."
    if errors:
        worst = max(chart.points, key=lambda point: point.errors)
        text += f" Most errors at {_clock(worst.start_ms, now_ms, zone)}: {worst.errors:,}."
    return text


def _rule(y: int, label: str) -> Markup:
    return Markup('<line class="rule" x1="0" x2="100%" y1="{}" y2="{}"/><text x="0" y="{}">{}</text>').format(
        y, y, y - 4, label
    )


def _center(index: int, count: int) -> float:
    return (index + 0.5) / count * 100


def _line(at: list[tuple[float, float]], count: int) -> Markup:
    if len(at) == 1:  # a point would not be seen
        (x, y), half = at[0], 50 / count
        at = [(x - half, y), (x + half, y)]
    shape = Markup("")
    if at:
        line = " ".join(f"{x:.2f},{y:.1f}" for x, y in at)
        shape = Markup('<polygon class="area" points="{:.2f},100 {} {:.2f},100"/><polyline points="{}"/>').format(
            at[0][0], line, at[-1][0], line
        )
    return _stretched("succeeded", _TOP, 148, shape)


def _bars(points: Sequence[ChartPoint], over: int, top: int) -> Markup:
    width = 100 / max(1, len(points))
    bars = [
        # At least 3: one error among many stays visible.
        Markup('<rect class="{}" x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}"/>').format(
            "bar" if index < over else "stroke", (index + 0.15) * width, 100 - height, width * 0.7, height
        )
        for index, height in ((index, max(3.0, point.errors / top * 100)) for index, point in enumerate(points))
        if points[index].errors
    ]
    return _stretched("failed", _ERRORS_TOP, 56, Markup("").join(bars))


def _stretched(state: str, y: int, height: int, shapes: Markup) -> Markup:
    return Markup(
        '<svg class="{}" x="0" y="{}" width="100%" height="{}" viewBox="0 0 100 100" preserveAspectRatio="none">'
        "{}</svg>"
    ).format(state, y, height, shapes)


def _marks(chart: Throughput, now_ms: int, zone: tzinfo) -> list[Markup]:
    """A dotted line for each mark, and labels of the newest ones that have room; a phone shows only the first label."""
    if not chart.points:
        return []
    since_ms = chart.points[0].start_ms
    length_ms = len(chart.points) * chart.step_ms
    shapes: list[Markup] = []
    taken: list[tuple[float, float]] = []
    for mark in sorted(chart.marks, key=lambda one: -one.at_ms):
        x = (mark.at_ms - since_ms) / length_ms * 100
        if not 0 <= x <= 100:
            continue
        shapes.append(Markup('<line class="mark" x1="{0:.1f}%" x2="{0:.1f}%" y1="8" y2="268"/>').format(x))
        text = mark.text if len(mark.text) <= _MAX_LABEL else f"{mark.text[: _MAX_LABEL - 1]}…"
        text = f"{text} {_clock(mark.at_ms, now_ms, zone)}"
        width = len(text) * _PER_CHARACTER + _LABEL_GAP
        is_left = x >= 50
        start, end = (x - width, x) if is_left else (x, x + width)
        if len(taken) == MAX_LABELS or any(start < other[1] and other[0] < end for other in taken):
            continue
        label = Markup('<text class="t-ink{}" x="{:.1f}%" dx="{}" y="14" text-anchor="{}">{}</text>')
        shapes.append(
            label.format(" alt" if taken else "", x, -6 if is_left else 6, "end" if is_left else "start", text)
        )
        taken.append((start, end))
    return shapes


def _times(chart: Throughput, now_ms: int, zone: tzinfo) -> list[Markup]:
    """At most five times under the chart; a phone shows three of them."""
    count = len(chart.points)
    places = sorted({round((count - 1) * part / 4) for part in range(5)}) if count else []
    shapes = []
    for number, index in enumerate(places):
        is_first, is_last = index == places[0], index == places[-1]
        x = 0 if is_first else 100 if is_last else _center(index, count)
        anchor = "start" if is_first else "end" if is_last else "middle"
        shapes.append(
            Markup('<text{} x="{:.1f}%" y="286" text-anchor="{}">{}</text>').format(
                Markup(' class="alt"') if number % 2 and not is_last else "",
                x,
                anchor,
                _clock(chart.points[index].start_ms, now_ms, zone, chart.step_ms),
            )
        )
    return shapes


def _hit(chart: Throughput, index: int, is_open: bool, now_ms: int, zone: tzinfo) -> Markup:
    point, width = chart.points[index], 100 / len(chart.points)
    text = f"{_clock(point.start_ms, now_ms, zone)}  {point.succeeded:,} succeeded, {_errors(point.errors)}"
    text += " (not complete)" if is_open else ""
    inside = (mark.text for mark in chart.marks if 0 <= mark.at_ms - point.start_ms < chart.step_ms)
    return Markup('<rect class="hit" x="{:.2f}%" y="36" width="{:.2f}%" height="232"><title>{}</title></rect>').format(
        index * width, width, "; ".join([text, *inside])
    )


def _errors(count: int) -> str:
    return "1 error" if count == 1 else f"{count:,} errors"


def _clock(ms: int, now_ms: int, zone: tzinfo, step_ms: int = 0) -> str:
    """The minute; with long steps the day alone."""
    if step_ms > 3_600_000:
        at = to_datetime(ms).astimezone(zone)
        return f"{at.day} {at:%b}"
    return minute_text(ms, now_ms, zone)
