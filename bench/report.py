"""The report: a table for the terminal, a page with pictures for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from bench import guarantees, reasons
from bench.figures import Figure, Results, Verdict
from bench.peers.about import About
from bench.plots import OVERVIEW, Picture, plots, write_beside
from bench.scale import Scale

COLOURS = {"met": "green", "missed": "red", "reported": "dim", "–": "dim"}


class Report(Struct, frozen=True, kw_only=True):
    """All that is told about one run."""

    date: str
    stores: tuple[str, ...]
    minutes: float
    #: None, or why there is less than was asked for.
    incomplete: str | None
    seed: int
    machine: dict[str, str]
    scale: Scale
    contenders: tuple[About, ...]
    #: What each measure measures.
    measures: dict[str, str]
    verdicts: list[Verdict]
    figures: list[Figure]
    faults: dict[str, str]
    #: Who or what was asked for and is not here, and why.
    missing: dict[str, str] = {}
    #: By store and contender, in one word, what stands beside the figures.
    guarantees: dict[str, dict[str, str]] = {}


def show(console: Console, results: Results) -> None:
    """The figures and the verdicts, in the terminal."""
    for measure in dict.fromkeys(figure.measure for figure in results.figures):
        rows = _rows(results.of(measure))
        table = Table(*rows[0], title=measure, title_justify="left", box=None, pad_edge=False)
        for row in rows[1:]:
            table.add_row(*row)
        console.print(table, "", sep="\n")
    table = Table("figure", "target", "measured: median (least – most)", "", box=None, pad_edge=False)
    for one in results.verdicts:
        table.add_row(one.what, one.target, one.measured, f"[{COLOURS[one.word]}]{one.word}")
    console.print(table)
    for who, why in results.missing.items():
        console.print(f"\n{who} was not measured: {why}", markup=False)
    for measure, why in results.faults.items():
        console.print(f"\n[red]{measure} broke:[/red]", markup=True)
        console.print(why, markup=False)


def write(report: Report, folder: Path, name: str) -> list[Path]:
    """The page, the data and the pictures; of the same name the later run stays."""
    folder.mkdir(parents=True, exist_ok=True)
    page, data = folder / f"{name}.md", folder / f"{name}.json"
    pictures = plots(report.figures)
    page.write_text(_page(report, name, pictures), "utf-8")
    data.write_bytes(msgspec.json.format(msgspec.json.encode(_plain(report)), indent=1) + b"\n")
    return [page, data, *write_beside(pictures, folder, name)]


def _plain(report: Report) -> Any:
    plain = msgspec.to_builtins(report)
    for figure, made in zip(report.figures, plain["figures"], strict=True):
        made["median"] = figure.median
    return plain


def _page(report: Report, name: str, pictures: Sequence[Picture]) -> str:
    parts = [f"# Benchmark of {report.date}\n", _head(report), *_shown(pictures, OVERVIEW, name)]
    rows = [(one.measure, one.what, one.target, one.measured, one.word) for one in report.verdicts]
    head = ("measure", "figure", "target", "measured: median (least – most)", "")
    parts += ["## Targets\n", _table([head, *rows])]
    parts += ["## What is missed, and why\n", _missed(report.verdicts), "## What is not here\n", _not_here(report)]
    for measure, about in report.measures.items():
        own = [figure for figure in report.figures if figure.measure == measure]
        parts += [f"## {measure.capitalize()}: {about}\n", *_shown(pictures, measure, name)]
        if own:
            parts.append(_table(_with_guarantees(_rows(own), report, measure)))
        if measure in report.faults:
            parts.append(f"This measure broke:\n\n```\n{report.faults[measure]}\n```\n")
    parts += ["## Contenders\n", _table(_contenders(report.contenders))]
    parts += ["## Machine\n", _table([("what", ""), *report.machine.items()])]
    sizes = [(field, str(size)) for field, size in msgspec.to_builtins(report.scale).items()]
    parts += ["## Sizes\n", _table([("what", ""), *sizes])]
    return "\n".join(parts)


def _shown(pictures: Sequence[Picture], measure: str, name: str) -> list[str]:
    return [f"![{one.title}]({one.file_name(name)})\n" for one in pictures if one.measure == measure]


def _head(report: Report) -> str:
    kind = "A quick run" if report.scale.quick else "A full run"
    note = f" **Incomplete: {report.incomplete}.**" if report.incomplete else ""
    return (
        f"{kind} of {report.minutes:.0f} minutes on {', '.join(report.stores)}, seed {report.seed}, made by "
        f"`python3 dev.py bench`.{note} "
        "Contenders alternate within each round, and every run is a fresh process. Ratios are taken round by round; "
        "what stands in a table is the median of the rounds, with the least and the most in brackets. A figure without "
        "brackets was measured once: so are most peers that no target names. CPU is that of the process that does the "
        "work, all threads; the server's is that of all its processes. The last column says in a word what becomes of "
        "running jobs when their worker is killed: kept, repeated (by time alone) or lost; see Contenders.\n"
    )


def _missed(verdicts: Sequence[Verdict]) -> str:
    """Each target that was missed, with the reason that is known."""
    missed = [one for one in verdicts if one.word == "missed"]
    if not missed:
        return "Nothing: every target that was measured is met.\n"
    rows = [(one.measure, one.what, one.target, one.measured, reasons.of(one)) for one in missed]
    return _table([("measure", "figure", "target", "measured", "why"), *rows])


def _not_here(report: Report) -> str:
    """What was asked for and is missing or broke, and what gave no figure, by name."""
    lines = [f"- {who}: {why}" for who, why in report.missing.items()]
    lines += [f"- {measure}: it broke, see there" for measure in report.faults]
    measured = {one.measure for one in report.figures}
    silent = [name for name in report.measures if name not in measured and name not in report.faults]
    why = (
        "it is for full runs only"
        if report.scale.quick
        else "it was not reached, or nobody who was asked for takes part"
    )
    lines += [f"- {name}: no figure; {why}" for name in silent]
    nothing = "Nothing is missing of what was asked for."
    if report.scale.quick:
        nothing += " A quick run leaves out most of what a full one has."
    return "\n".join(lines or [nothing]) + "\n"


def _contenders(contenders: Sequence[About]) -> list[tuple[str, ...]]:
    rows = [(one.name, _with(one.settings, one.docs), _with(one.guarantee, one.tried)) for one in contenders]
    return [("who", "settings", "after kill -9 the jobs that ran are"), *rows]


def _with(text: str, more: str | None) -> str:
    return text if more is None else f"{text} ({more})"


def _rows(figures: Sequence[Figure]) -> list[tuple[str, ...]]:
    """A header, and one row for each contender and circumstance, with a column for each unit."""
    units = list(dict.fromkeys(figure.unit for figure in figures))
    cells = {(one.what, one.who, one.unit): str(one) for one in figures}
    keys = sorted(dict.fromkeys((one.what, one.who) for one in figures), key=lambda key: (key[1], _natural(key[0])))
    rows = [(who, what, *(cells.get((what, who, unit), "–") for unit in units)) for what, who in keys]
    return [("who", "how", *units), *rows]


def _with_guarantees(rows: list[tuple[str, ...]], report: Report, measure: str) -> list[tuple[str, ...]]:
    """A column more, where anything is known."""
    told = [guarantees.beside(report.guarantees, measure, row[0]) for row in rows[1:]]
    if set(told) == {guarantees.UNKNOWN}:
        return rows
    return [(*row, word) for row, word in zip(rows, [guarantees.HEAD, *told], strict=True)]


def _natural(text: str) -> tuple[str, int, str]:
    """Numbers by their size: 50 slots after 10 slots; and by kind before that."""
    number, _, rest = text.replace(",", "").partition(" ")
    return (rest, int(number), "") if number.isdigit() else (text, 0, text)


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    head, *body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
