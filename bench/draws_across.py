"""What is drawn of measures that run on several stores, for each of them or for all together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec import structs

from bench.charts import Bar, Curve, Panel, bars, curves, ranges
from bench.draws import OURS, P50, bar, best_of, is_contender, leading_number, plain, range_of
from bench.figures import RATE, Figure

#: By its title, what a store is called in names of files.
STORES = {"SQLite": "sqlite", "PostgreSQL": "postgres", "Redis": "redis", "MongoDB": "mongo"}
#: Two programs of one name; of all others the best of their variants is shown.
APART = ("bullmq",)
LESS = "less is better"

_WHERE = re.compile(rf"(.+) on ({'|'.join(STORES)})")
_SLOTS = re.compile(r", (\d+ slots)$")
_WITHIN = re.compile(r"started again within (\d+) s")

#: By the title of a store its figures, whose contenders are named without it.
Stores = Mapping[str, Sequence[Figure]]


def split(who: str) -> tuple[str, str]:
    """A contender's name, and the title of the store that it runs on; empty where it does not say."""
    found = _WHERE.fullmatch(who)
    return (found[1], found[2]) if found else (who, "")


def by_store(figures: Sequence[Figure]) -> dict[str, list[Figure]]:
    """The figures of each store; those of no store belong to all."""
    stores: dict[str, list[Figure]] = {}
    for one in figures:
        name, title = split(one.who)
        stores.setdefault(title, []).append(structs.replace(one, who=name))
    nowhere = stores.get("", [])
    return {title: [*stores[title], *nowhere] for title in STORES if title in stores}


# ------------------------------------------------------------------------------------------------ of one store


def ways(title: str, figures: Sequence[Figure], unit: str, *, less: bool) -> str | None:
    """A panel for each thing that was done, the best first."""
    own = [one for one in figures if one.unit == unit and is_contender(one)]
    usual = Counter(found[1] for one in own if (found := _SLOTS.search(one.what))).most_common(1)
    groups: dict[str, list[Figure]] = {}
    for one in own:
        groups.setdefault(_SLOTS.sub("", one.what), []).append(one)
    panels = []
    for what, some in groups.items():
        some.sort(key=lambda one: one.median if less else -one.median)
        slots = f", {usual[0][0]}" if usual and _SLOTS.search(some[0].what) else ""
        panels.append(Panel(what + slots, [bar(one, one.who + _unusual(one, slots)) for one in some]))
    return bars(title, f"{unit}, {LESS}" if less else unit, panels) if panels else None


def _unusual(one: Figure, slots: str) -> str:
    found = _SLOTS.search(one.what)
    return f" ({plain(found[1])})" if found and found[0] != slots else ""


def rates(title: str, figures: Sequence[Figure]) -> str | None:
    """A panel for each thing that was done so many times a second."""
    return ways(title, figures, RATE, less=False)


def bytes_written(title: str, figures: Sequence[Figure]) -> str | None:
    """A panel for each thing that wrote something."""
    return ways(title, figures, "written B/job", less=True)


def memory(title: str, figures: Sequence[Figure]) -> str | None:
    """A bar for each, the darker part when it is idle, all of it when it is busy."""
    own = [one for one in figures if one.unit == "MB"]
    idle = {one.who: one for one in own if one.what == "idle"}
    busy = {one.who: one for one in own if one.what.startswith("busy")}
    rows = []
    for who, one in idle.items():
        most = busy.get(who, one)
        rows.append(structs.replace(bar(most, who), part=one.median if who in busy else None))
    rows.sort(key=lambda row: row.value)
    unit = f"MB, {LESS}: the darker part is idle, all of it the most when it is busy"
    return bars(title, unit, [Panel("", rows)]) if rows else None


def recovery(title: str, figures: Sequence[Figure]) -> str | None:
    """A bar for each, hollow where the job was not started again."""
    rows = [bar(one, one.who) for one in figures if one.unit.startswith("s until")]
    rows.sort(key=lambda row: row.value)
    for one in figures:
        within = _WITHIN.match(one.unit)
        if within and not one.median:
            hollow = bar(one, one.who)
            rows.append(structs.replace(hollow, note=f"not within {within[1]} s"))
    return bars(title, f"s, {LESS}", [Panel("", rows)]) if rows else None


# ------------------------------------------------------------------------------------------------ of all stores


def scaling(title: str, stores: Stores) -> str | None:
    """A curve for each store, by the number of processes."""
    lines = []
    for name, figures in stores.items():
        points = [(leading_number(one.what) or 0, one.median) for one in figures if one.unit == RATE]
        if len(points) > 1:
            lines.append(Curve(name, sorted(points), is_ours=False))
    return curves(title, "worker processes of 50 slots", RATE, lines, by_powers=False) if lines else None


def circumstances(title: str, stores: Stores) -> str | None:
    """A panel for each store, with a bar for each circumstance that we were in."""
    panels = _panels(stores, lambda one: plain(one.what))
    return bars(title, RATE, panels) if panels else None


def limits(title: str, stores: Stores) -> str | None:
    """A panel for each store: our worker, and what it is measured by."""
    panels = _panels(stores, _what_of_limit)
    return bars(title, RATE, panels) if panels else None


def _what_of_limit(one: Figure) -> str:
    return f"{one.who}, {one.what.removeprefix('a worker, ')}"


def half_load(title: str, stores: Stores) -> str | None:
    """From p50 to p99 on each store."""
    rows = [
        row
        for name, figures in stores.items()
        for one in figures
        if one.unit == P50 and one.what == "half load"
        for row in range_of(one, figures, f"{one.who} on {name}")
    ]
    return ranges(title, "ms", ("the median", "the 99th percentile"), rows) if rows else None


def silence(title: str, stores: Stores) -> str | None:
    """A panel for each store, with everybody."""
    figures = {
        name: sorted((one for one in own if one.unit == "ms since the return"), key=lambda one: one.median)
        for name, own in stores.items()
    }
    panels = [Panel(name, [_not_below_nought(one) for one in own]) for name, own in figures.items() if own]
    return bars(title, f"ms, {LESS}", panels) if panels else None


def _not_below_nought(one: Figure) -> Bar:
    """A job may start before its caller goes on."""
    value = max(one.median, 0)
    return structs.replace(bar(one, one.who), value=value, least=value, most=value)


def _panels(stores: Stores, label: Callable[[Figure], str]) -> list[Panel]:
    made = []
    for name, figures in stores.items():
        rows = [bar(one, label(one)) for one in figures if one.unit == RATE]
        if rows:
            made.append(Panel(name, rows))
    return made


# ------------------------------------------------------------------------------------------------ at a glance


def overview(title: str, drains: Stores) -> str | None:
    """How many jobs everybody runs at its best, a panel for each store; of a peer's variants the best."""
    panels = []
    for name, figures in drains.items():
        best: dict[str, Bar] = {}
        for one in best_of(figures):
            program = one.who if one.who.startswith(APART) else one.who.partition(",")[0]
            best.setdefault(program, bar(one, program))
        if best.keys() - {OURS}:
            panels.append(Panel(name, list(best.values())))
    unit = f"{RATE} of one worker process, each at its best number of slots; a scale for each store"
    return bars(title, unit, panels, columns=2) if len(panels) > 1 else None
