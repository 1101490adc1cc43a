"""The pictures of a report: bars as SVG text, dark on white, in the reader's own sans-serif."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from msgspec import Struct

from bench.figures import RATE, Figure, amount
from bench.grounds import TITLES

OVERVIEW, TITLE = "overview", "Jobs that one worker process runs in a second"
#: By kind of measure: the title, the unit that is drawn, and whether less is better.
DRAWN = {
    "drain": (TITLE, RATE, False),
    "enqueue": ("Jobs enqueued in a second", RATE, False),
    "pickup": ("From the call of an enqueue to the start of its job, p50", "p50 ms", True),
    "memory": ("Resident memory of a worker process", "MB", True),
}
INK, FAINT, OURS, THEIRS = "#1f2933", "#52606d", "#0f766e", "#9fb3c8"
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
WIDTH, LABELS, VALUES, ROW, HEAD = 760.0, 250.0, 90.0, 22.0, 30.0


class Bar(Struct, frozen=True):
    """One row."""

    name: str
    value: float
    #: The range of the rounds, drawn as a thin line.
    low: float
    high: float

    @property
    def is_ours(self) -> bool:
        """Drawn in our color."""
        return self.name.startswith("jobmill")

    @classmethod
    def of(cls, figure: Figure, name: str) -> Bar:
        """The median of a figure."""
        return cls(name, figure.median, min(figure.values), max(figure.values))


def pictures(figures: Sequence[Figure]) -> dict[str, str]:
    """By the name of the file: the overview, and one for each measure that is drawn."""
    drawn: dict[str, str] = {}
    overview = {}
    for measure in dict.fromkeys(one.measure for one in figures):
        store, _, kind = measure.partition(" ")
        if kind not in DRAWN:
            continue
        title, unit, is_less = DRAWN[kind]
        own = [one for one in figures if one.measure == measure and one.unit == unit]
        panels: dict[str, list[Bar]] = {}
        for one in own:
            if one.what != "since its return":
                panels.setdefault(one.what, []).append(Bar.of(one, one.who))
        if panels:
            drawn[measure.replace(" ", "-")] = bars(f"{TITLES[store]}: {title}", unit, panels, is_less)
        if kind == "drain" and len({one.who for one in own}) > 1:
            overview[TITLES[store]] = best(own)
    return ({OVERVIEW: bars(TITLE, RATE, overview, False)} if overview else {}) | drawn


def best(figures: Sequence[Figure]) -> list[Bar]:
    """Of each program the best of its variants and of its numbers of slots; BullMQ's two are two programs."""
    found: dict[str, Bar] = {}
    for one in figures:
        name = one.who if one.who.startswith("bullmq") else one.who.partition(",")[0]
        if name not in found or found[name].value < one.median:
            found[name] = Bar.of(one, name)
    return list(found.values())


def bars(title: str, unit: str, panels: dict[str, list[Bar]], is_less: bool) -> str:
    """A panel for each circumstance, the best bar first, all of a panel on one scale."""
    parts: list[str] = []
    y = 28.0
    note = f"{unit}, less is better" if is_less else unit
    parts += [_text(16, y, title, size=16, bold=True), _text(16, y + 20, note, color=FAINT)]
    y += 34
    for name, rows in panels.items():
        y += HEAD
        parts.append(_text(16, y - 8, name, bold=True))
        scale = (WIDTH - LABELS - VALUES - 16) / (max(row.high for row in rows) or 1.0)
        for row in sorted(rows, key=lambda row: row.value if is_less else -row.value):
            width, end = max(1.0, row.value * scale), LABELS + max(1.0, row.high * scale)
            color = OURS if row.is_ours else THEIRS
            parts.append(_text(LABELS - 8, y + 14, row.name, anchor="end", bold=row.is_ours))
            parts.append(f'<rect x="{LABELS:.0f}" y="{y + 2:.0f}" width="{width:.1f}" height="16" fill="{color}"/>')
            if row.low < row.high:
                line = f'x1="{LABELS + row.low * scale:.1f}" x2="{end:.1f}" y1="{y + 10:.0f}" y2="{y + 10:.0f}"'
                parts.append(f'<line {line} stroke="{INK}" stroke-width="1"/>')
            parts.append(_text(end + 6, y + 14, amount(row.value), color=FAINT))
            y += ROW
    height = y + 14
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img"'
    box = f'<rect width="{WIDTH:.0f}" height="{height:.0f}" rx="6" fill="#ffffff"/>'
    return "\n".join([f'{head} font-family="{FONT}">', f"<title>{escape(title)}</title>", box, *parts, "</svg>", ""])


def _text(
    x: float, y: float, text: str, *, size: int = 13, color: str = INK, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text {place} fill="{color}"{weight}>{escape(text)}</text>'
