"""What is drawn of the measures of one store."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from bench.charts import Bar, Curve, Panel, Range, bars, curves, ranges
from bench.figures import RATE, Figure

OURS = "jobmill"
#: Parts of us and of the database, which are no job queues, and ours once more.
NO_CONTENDERS = (", exchange alone", "bare loop", "memory://", ", asyncio's loop")
P50, P99, RETURNED = "p50 ms", "p99 ms", "since the return"
#: Below this a latency is noise: the job was started before its caller went on.
LEAST_MS = 0.1

#: In no other circumstance.
_SLOTS = re.compile(r"(\d+) (?:slots|workers)")
_ONE = re.compile(r"\b1 (slot|worker|process)(?:es|s)\b")


def is_contender(figure: Figure) -> bool:
    """Whether it is that of a job queue."""
    return not figure.who.endswith(NO_CONTENDERS)


def is_ours(who: str) -> bool:
    """Whether that is us, on whatever."""
    return re.split(r",| on ", who)[0] == OURS


def plain(what: str) -> str:
    """As people say it: 1 slot."""
    return _ONE.sub(r"1 \1", what)


def bar(figure: Figure, label: str) -> Bar:
    """The median of a figure with its spread."""
    return Bar(label, figure.median, min(figure.values), max(figure.values), is_ours(figure.who))


def best_of(figures: Iterable[Figure]) -> list[Figure]:
    """The rate of each contender at the number of slots that suits it best, the highest first."""
    best: dict[str, Figure] = {}
    for one in figures:
        if one.unit == RATE and is_contender(one) and (one.who not in best or one.median > best[one.who].median):
            best[one.who] = one
    return sorted(best.values(), key=lambda figure: -figure.median)


def best_rates(title: str, figures: Iterable[Figure]) -> str | None:
    """A bar for each contender at its best."""
    rows = [bar(one, f"{one.who} ({plain(one.what)})") for one in best_of(figures)]
    return bars(title, f"{RATE}, each at its best", [Panel("", rows)]) if rows else None


def by_slots(title: str, figures: Iterable[Figure]) -> str | None:
    """A curve for each contender that was measured at several numbers of slots."""
    points: dict[str, list[tuple[float, float]]] = {}
    for one in figures:
        slots = _SLOTS.fullmatch(one.what)
        if one.unit == RATE and is_contender(one) and slots is not None:
            points.setdefault(one.who, []).append((float(slots[1]), one.median))
    lines = _curves(points)
    return curves(title, "slots", RATE, lines, by_powers=True) if lines else None


def _curves(points: dict[str, list[tuple[float, float]]]) -> list[Curve]:
    return [Curve(who, sorted(own), is_ours(who)) for who, own in points.items() if len(own) > 1]


def leading_number(what: str) -> float | None:
    """Of `1,000 waiting`; None where there is none, or nought."""
    number = what.partition(" ")[0].replace(",", "")
    return float(number) if number.isdigit() and number != "0" else None


def enqueues(title: str, figures: Sequence[Figure]) -> str | None:
    """A panel for each way to enqueue: they are too far apart for one axis."""
    rates = [one for one in figures if one.unit == RATE and is_contender(one)]
    panels = []
    for what in dict.fromkeys(one.what for one in rates):
        own = sorted((one for one in rates if one.what == what), key=lambda figure: -figure.median)
        panels.append(Panel(what, [bar(one, one.who) for one in own]))
    return bars(title, RATE, panels) if panels else None


def latencies(title: str, figures: Sequence[Figure]) -> str | None:
    """From p50 to p99, since the return of the enqueue."""
    rows = []
    for low in figures:
        if low.unit == P50 and low.what.endswith(RETURNED):
            where = low.what.removesuffix(RETURNED).rstrip(", ")
            rows += range_of(low, figures, f"{low.who}, {where}" if where else low.who)
    rows.sort(key=lambda row: row.low)
    return ranges(title, "ms", ("the median", "the 99th percentile"), rows) if rows else None


def range_of(low: Figure, figures: Iterable[Figure], label: str) -> list[Range]:
    """From this p50 to the p99 that belongs to it, if it was measured."""
    high = next((one for one in figures if (one.who, one.what, one.unit) == (low.who, low.what, P99)), None)
    if high is None:
        return []
    return [Range(label, max(low.median, LEAST_MS), max(high.median, LEAST_MS), is_ours(low.who))]


def depths(title: str, figures: Iterable[Figure]) -> str | None:
    """A curve for each contender and kind of others: those that wait, or that are delayed."""
    points: dict[str, list[tuple[float, float]]] = {}
    for one in figures:
        number = leading_number(one.what)
        if one.unit == RATE and is_contender(one) and number is not None:
            kind = "delayed" if one.what.endswith("delayed") and " and " not in one.what else "waiting"
            points.setdefault(f"{one.who}, {kind}", []).append((number, one.median))
    lines = _curves(points)
    return curves(title, "others that wait, or are delayed by a day", RATE, lines, by_powers=False) if lines else None
