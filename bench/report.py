"""The report: tables for the terminal, a page with pictures for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from bench.figures import Figure, Results, Verdict
from bench.lab import Scale
from bench.plots import OVERVIEW, pictures
from bench.queues import About

COLORS = {"met": "green", "missed": "red", "reported": "dim", "–": "dim"}
PAGE, FOLDER = "performance.md", "performance"
Rows = list[tuple[str, ...]]


class Report(Struct, frozen=True, kw_only=True):
    """All that is known about one run."""

    date: str
    stores: tuple[str, ...]
    minutes: float
    seed: int
    machine: dict[str, str]
    scale: Scale
    #: By store.
    contenders: dict[str, tuple[About, ...]]
    #: What each measure measures, and how often.
    measures: dict[str, str]
    #: With the reason for a miss.
    verdicts: list[tuple[Verdict, str]]
    figures: list[Figure]
    faults: dict[str, str]
    missing: dict[str, str]
    interrupted: bool


def show(console: Console, results: Results, verdicts: Sequence[tuple[Verdict, str]]) -> None:
    """The figures and the verdicts, in the terminal."""
    for measure in dict.fromkeys(figure.measure for figure in results.figures):
        head, *rows = table_of(results.of(measure))
        table = Table(*head, title=measure, title_justify="left", box=None, pad_edge=False)
        for row in rows:
            table.add_row(*row)
        console.print(table, "", sep="\n")
    table = Table("measure", "figure", "target", "measured: median (min – max)", "", box=None, pad_edge=False)
    for one, _ in verdicts:
        table.add_row(one.measure, one.what, one.target, one.measured, f"[{COLORS[one.word]}]{one.word}")
    console.print(table)
    for who, why in results.missing.items():
        console.print(f"\n{who} was not measured: {why}", markup=False)
    for measure, why in results.faults.items():
        console.print(f"\n{measure} failed:\n{why}", markup=False, style="red")


def write(report: Report, folder: Path) -> list[Path]:
    """The page, with the pictures in a folder beside it, replacing older ones."""
    beside = folder / FOLDER
    beside.mkdir(parents=True, exist_ok=True)
    for old in beside.iterdir():
        if old.suffix == ".svg":
            old.unlink()
    drawn = pictures(report.figures)
    for name, svg in drawn.items():
        (beside / f"{name}.svg").write_text(svg, "utf-8")
    (folder / PAGE).write_text(page(report, list(drawn)), "utf-8")
    return [folder / PAGE, beside]


def write_data(report: Report, file: Path) -> None:
    """All of it, as JSON."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def page(report: Report, drawn: Sequence[str]) -> str:
    """The page as Markdown."""
    kind = "quick" if report.scale.quick else "full"
    note = " **It was interrupted.**" if report.interrupted else ""
    parts = [
        "# Performance\n",
        f"A {kind} run of `python3 dev.py bench` on {report.date}: {report.minutes:.0f} minutes on "
        f"{', '.join(report.stores)}, seed {report.seed}.{note} [bench/README.md](../bench/README.md) says how it is "
        "measured.\n\nJobmill and its peers alternate within each round, and every run is a fresh process. Ratios are "
        "taken round by round. Tables show the median of the rounds, with the minimum and the maximum in brackets; a "
        "figure without brackets was measured once, as most peers are that no target names. The client's CPU is that "
        "of the process that does the work, all threads; the server's is that of all its processes. The last column "
        "says what becomes of running jobs when their worker is killed: kept, repeated (by time alone) or lost; see "
        "Contenders.\n",
        *_shown(drawn, OVERVIEW),
        "## Targets\n",
        _table(
            [
                ("measure", "figure", "target", "measured: median (min – max)", ""),
                *((one.measure, one.what, one.target, one.measured, one.word) for one, _ in report.verdicts),
            ]
        ),
        "## Missed targets, and why\n",
        _missed(report),
        "## What is not here\n",
        _not_here(report),
    ]
    for measure, about in report.measures.items():
        own = [figure for figure in report.figures if figure.measure == measure]
        parts += [f"## {measure.capitalize()}\n", f"{about}.\n", *_shown(drawn, measure.replace(" ", "-"))]
        if own:
            parts.append(_table(_with_guarantees(table_of(own), report, measure)))
        if measure in report.faults:
            parts.append(f"Something failed:\n\n```\n{report.faults[measure]}\n```\n")
    parts += ["## Contenders\n", _table(_contenders(report))]
    parts += ["## Machine\n", _table([("what", ""), *report.machine.items()])]
    return "\n".join(parts)


def _shown(drawn: Sequence[str], name: str) -> list[str]:
    return [f"![{name.replace('-', ' ')}]({FOLDER}/{name}.svg)\n"] if name in drawn else []


def _missed(report: Report) -> str:
    missed = [(one, why) for one, why in report.verdicts if one.word == "missed"]
    if not missed:
        return "None: every target that was measured is met.\n"
    rows = [(one.measure, one.what, one.target, one.measured, why) for one, why in missed]
    return _table([("measure", "figure", "target", "measured", "why"), *rows])


def _not_here(report: Report) -> str:
    lines = [f"- {who}: {why}" for who, why in report.missing.items()]
    lines += [f"- {measure}: a part of it failed, see there" for measure in report.faults]
    return "\n".join(lines or ["Nothing is missing."]) + "\n"


def _contenders(report: Report) -> Rows:
    rows = [
        (
            store,
            one.name,
            one.settings + (f" ([docs]({one.docs}))" if one.docs else ""),
            one.guarantee + (f" ({one.tried})" if one.tried else ""),
        )
        for store, contenders in report.contenders.items()
        for one in contenders
    ]
    return [("store", "contender", "settings", "after kill -9 running jobs are"), *rows]


def table_of(figures: Sequence[Figure]) -> Rows:
    """A header, and one row for each contender and circumstance, with a column for each unit."""
    units = list(dict.fromkeys(figure.unit for figure in figures))
    cells = {(one.what, one.who, one.unit): str(one) for one in figures}
    keys = sorted(dict.fromkeys((one.what, one.who) for one in figures), key=lambda key: (key[1], _natural(key[0])))
    rows = [(who, what, *(cells.get((what, who, unit), "–") for unit in units)) for what, who in keys]
    return [("who", "how", *units), *rows]


def _with_guarantees(rows: Rows, report: Report, measure: str) -> Rows:
    known = {one.name: one.guarantee.split(":")[0].split(",")[0] for one in report.contenders[measure.split()[0]]}
    return [(*rows[0], "after kill -9"), *((*row, known.get(row[0], "–")) for row in rows[1:])]


def _natural(text: str) -> tuple[str, int, str]:
    """Numbers by their size: 50 slots after 10 slots."""
    number, _, rest = text.replace(",", "").partition(" ")
    return (rest, int(number), "") if number.isdigit() else (text, 0, text)


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    head, *body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
