"""Pictures of a report, as SVG files beside it: of each that is written, or by `python -m bench.plots REPORT.json`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.charts import Bar, Curve, Panel, Range, bars, curves, ranges
from bench.figures import RATE, Figure

OURS = "jobmill"
#: Parts of us and of the database, which are no job queues, and ours once more.
NO_CONTENDERS = (", exchange alone", "bare loop", "memory://", ", asyncio's loop")
STORES = {"postgres": "PostgreSQL", "redis": "Redis", "mongo": "MongoDB"}
P50, P99, RETURNED = "p50 ms", "p99 ms", "since the return"
#: A measure on files has no name of a store before it.
FILES = "SQLite"
#: Below this a latency is noise: the job was started before its caller went on.
LEAST_MS = 0.1


class Picture(Struct, frozen=True):
    """Of one measure, as SVG text."""

    measure: str
    #: Of the measure, and of the picture where a measure has several.
    name: str
    title: str
    svg: str

    def file_name(self, report: str) -> str:
        """Beside a report of this name, which may be of one store and say so already."""
        store, _, rest = self.name.partition("-")
        return f"{report}-{rest if rest and report.endswith(f'-{store}') else self.name}.svg"


class Figures(Struct):
    """What is read of a report."""

    figures: list[Figure]


def write(data: Path) -> list[Path]:
    """The pictures of a report that lies there already, beside it."""
    return write_beside(plots(msgspec.json.decode(data.read_bytes(), type=Figures).figures), data.parent, data.stem)


def write_beside(pictures: Iterable[Picture], folder: Path, report: str) -> list[Path]:
    """The files of these pictures; of the same name the later ones stay."""
    written = []
    for picture in pictures:
        path = folder / picture.file_name(report)
        path.write_text(picture.svg, "utf-8")
        written.append(path)
    return written


def plots(figures: Sequence[Figure]) -> list[Picture]:
    """All that there are; none where there is nothing to compare."""
    pictures = []
    for measure in dict.fromkeys(figure.measure for figure in figures):
        own = [figure for figure in figures if figure.measure == measure]
        store, kind = _store_and_kind(measure)
        for suffix, title, draw in KINDS.get(kind, ()):
            if (svg := draw(f"{store}: {title}", own)) is not None:
                pictures.append(Picture(measure, measure.replace(" ", "-") + suffix, f"{store}: {title}", svg))
    return pictures


def _store_and_kind(measure: str) -> tuple[str, str]:
    store, _, kind = measure.rpartition(" ")
    return STORES.get(store, store or FILES), kind


def _is_contender(figure: Figure) -> bool:
    return not figure.who.endswith(NO_CONTENDERS)


def _is_ours(who: str) -> bool:
    return who.partition(",")[0] == OURS


def _bar(figure: Figure, label: str) -> Bar:
    return Bar(label, figure.median, min(figure.values), max(figure.values), _is_ours(figure.who))


def _best_rates(title: str, figures: Iterable[Figure]) -> str | None:
    """A bar for each contender, at the number of slots that suits it best."""
    best: dict[str, Figure] = {}
    for one in figures:
        if one.unit == RATE and _is_contender(one) and (one.who not in best or one.median > best[one.who].median):
            best[one.who] = one
    ordered = sorted(best.values(), key=lambda figure: -figure.median)
    rows = [_bar(one, f"{one.who} ({one.what})") for one in ordered]
    return bars(title, f"{RATE}, each at its best", [Panel("", rows)]) if rows else None


def _by_slots(title: str, figures: Iterable[Figure]) -> str | None:
    """A curve for each contender that was measured at several numbers of slots."""
    points: dict[str, list[tuple[float, float]]] = {}
    for one in figures:
        number = _leading_number(one.what)
        if one.unit == RATE and _is_contender(one) and number is not None and not one.what.startswith("batch"):
            points.setdefault(one.who, []).append((number, one.median))
    lines = _curves(points)
    return curves(title, "slots", RATE, lines, by_powers=True) if lines else None


def _curves(points: dict[str, list[tuple[float, float]]]) -> list[Curve]:
    return [Curve(who, sorted(own), _is_ours(who)) for who, own in points.items() if len(own) > 1]


def _leading_number(what: str) -> float | None:
    number = what.partition(" ")[0].replace(",", "")
    return float(number) if number.isdigit() and number != "0" else None


def _enqueues(title: str, figures: Sequence[Figure]) -> str | None:
    """A panel for each way to enqueue: they are too far apart for one axis."""
    rates = [one for one in figures if one.unit == RATE and _is_contender(one)]
    panels = []
    for what in dict.fromkeys(one.what for one in rates):
        own = sorted((one for one in rates if one.what == what), key=lambda figure: -figure.median)
        panels.append(Panel(what, [_bar(one, one.who) for one in own]))
    return bars(title, RATE, panels) if panels else None


def _latencies(title: str, figures: Sequence[Figure]) -> str | None:
    """From p50 to p99, since the return of the enqueue."""
    rows = []
    for low in figures:
        high = next((one for one in figures if (one.who, one.what, one.unit) == (low.who, low.what, P99)), None)
        if low.unit == P50 and low.what.endswith(RETURNED) and high is not None:
            where = low.what.removesuffix(RETURNED).rstrip(", ")
            label = f"{low.who}, {where}" if where else low.who
            rows.append(Range(label, max(low.median, LEAST_MS), max(high.median, LEAST_MS), _is_ours(low.who)))
    rows.sort(key=lambda row: row.low)
    return ranges(title, "ms", ("the median", "the 99th percentile"), rows) if rows else None


def _depths(title: str, figures: Iterable[Figure]) -> str | None:
    """A curve for each contender and kind of others: those that wait, or that are delayed."""
    points: dict[str, list[tuple[float, float]]] = {}
    for one in figures:
        number = _leading_number(one.what)
        if one.unit == RATE and _is_contender(one) and number is not None:
            kind = "delayed" if one.what.endswith("delayed") and " and " not in one.what else "waiting"
            points.setdefault(f"{one.who}, {kind}", []).append((number, one.median))
    lines = _curves(points)
    return curves(title, "others that wait, or are delayed by a day", RATE, lines, by_powers=False) if lines else None


#: By the last word of a measure's name: what a picture's name ends with, its title, and who draws it.
KINDS: dict[str, tuple[tuple[str, str, Callable[[str, Sequence[Figure]], str | None]], ...]] = {
    "drain": (
        ("", "jobs run by one worker process", _best_rates),
        ("-slots", "jobs run by one worker process, by its slots", _by_slots),
    ),
    "enqueue": (("", "jobs enqueued", _enqueues),),
    "pickup": (("", "from an enqueue to its start in an idle worker", _latencies),),
    "depth": (("", "jobs run while others wait", _depths),),
}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(*write(Path(name)), sep="\n")
