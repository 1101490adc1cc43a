"""The kinds of picture that the report has: bars, ranges from one value to another, and curves."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from bench.axes import Axis, ByPowers, FromNought, short
from bench.svg import FAINT, GRID, INK, SIZE, Drawing, width_of

OURS, THEIRS = "#2f6fde", "#a3b1bf"
OURS_DARK, THEIRS_DARK = "#1b4699", "#6b7a88"
#: Of curves, which have to be told apart by their colours.
COLOURS = ("#d9480f", "#2b8a3e", "#9c36b5", "#0b7285", "#c2255c", "#846358", "#5c940d", "#495057", "#a87b00", "#212529")
WIDTH, WIDE, MARGIN, TOP = 760.0, 960.0, 20.0, 62.0
ROW, THICK = 24.0, 14.0
PLOT = 300.0
#: Between the labels at the ends of curves.
LEAST_APART = 15.0


class Bar(Struct, frozen=True):
    """A value with the least and the most of its rounds."""

    label: str
    value: float
    least: float
    most: float
    is_ours: bool
    #: A part of the value that is drawn darker.
    part: float | None = None
    #: There is no value, only a word about that; the bar is hollow.
    note: str | None = None


class Panel(Struct, frozen=True):
    """Bars that share an axis."""

    title: str
    bars: Sequence[Bar]


class Range(Struct, frozen=True):
    """From one value to another, both above 0."""

    label: str
    low: float
    high: float
    is_ours: bool


class Curve(Struct, frozen=True):
    """Points from left to right."""

    label: str
    points: Sequence[tuple[float, float]]
    is_ours: bool


def bars(title: str, unit: str, panels: Sequence[Panel], columns: int = 1) -> str:
    """Panels in rows of so many, each with an axis of its own that begins at nought."""
    has_rounds = any(bar.most > bar.least for panel in panels for bar in panel.bars)
    told = "; a thin line is from the least to the most of several rounds" if has_rounds else ""
    width = WIDTH if columns == 1 else WIDE
    drawing = _begun(title, unit + told, width)
    rooms = [_room(panels[n::columns], n, (width - MARGIN) / columns) for n in range(min(columns, len(panels)))]
    y = TOP
    for first in range(0, len(panels), columns):
        row = zip(panels[first : first + columns], rooms, strict=False)
        y = 40 + max(_panel(drawing, panel, room, y) for panel, room in row)
    return drawing.done(y - 10)


class _Room(Struct, frozen=True):
    """Across: where the titles of a column begin, and where its bars begin and end."""

    titles: float
    left: float
    right: float


def _room(panels: Sequence[Panel], column: int, width: float) -> _Room:
    titles = MARGIN + column * width
    shown = [bar for panel in panels for bar in panel.bars]
    behind = 60 if all(bar.part is None for bar in shown) else 100
    return _Room(titles, titles + max(width_of(bar.label) for bar in shown) + 10, titles + width - MARGIN - behind)


def _panel(drawing: Drawing, panel: Panel, room: _Room, y: float) -> float:
    """How far down it goes."""
    left, right = room.left, room.right
    axis = FromNought(max(bar.most for bar in panel.bars))
    if panel.title:
        drawing.text(room.titles, y + 12, panel.title, bold=True)
        y += 22
    bottom = y + ROW * len(panel.bars)
    _ticks_below(drawing, axis, left, right, y, bottom)
    for number, bar in enumerate(panel.bars):
        _bar(drawing, axis, bar, left, right, y + ROW * number + ROW / 2)
    return bottom


def _bar(drawing: Drawing, axis: Axis, bar: Bar, left: float, right: float, y: float) -> None:
    def at(value: float) -> float:
        return left + (right - left) * axis.at(value)

    drawing.text(left - 8, y + 4.5, bar.label, anchor="end", bold=bar.is_ours)
    if bar.note is not None:
        drawing.box(left, y - THICK / 2, right - left, THICK, OURS if bar.is_ours else THEIRS)
        drawing.text(left + 8, y + 4, bar.note, size=12, bold=bar.is_ours)
        return
    drawing.bar(left, y - THICK / 2, at(bar.value) - left, THICK, OURS if bar.is_ours else THEIRS)
    if bar.part is not None:
        drawing.bar(left, y - THICK / 2, at(bar.part) - left, THICK, OURS_DARK if bar.is_ours else THEIRS_DARK)
    if bar.most > bar.least:
        drawing.line(at(bar.least), y, at(bar.most), y, stroke=INK, width=1.2)
    told = short(bar.value) if bar.part is None else f"{short(bar.part)} – {short(bar.value)}"
    drawing.text(at(bar.most) + 7, y + 4.5, told, bold=bar.is_ours)


def ranges(title: str, unit: str, ends: tuple[str, str], rows: Sequence[Range]) -> str:
    """A line for each, by powers of ten; `ends` says what its hollow left end is and its filled right one."""
    drawing = _begun(title, f"{unit}, by powers of ten: from {ends[0]} (hollow) to {ends[1]} (filled)")
    left = MARGIN + max(width_of(row.label) for row in rows) + 18
    right = WIDTH - MARGIN - 120
    axis = ByPowers(min(row.low for row in rows), max(row.high for row in rows))
    bottom = TOP + ROW * len(rows)
    _ticks_below(drawing, axis, left, right, TOP, bottom)
    for number, row in enumerate(rows):
        y = TOP + ROW * number + ROW / 2
        colour = OURS if row.is_ours else FAINT
        low, high = (left + (right - left) * axis.at(value) for value in (row.low, row.high))
        drawing.text(left - 14, y + 4.5, row.label, anchor="end", bold=row.is_ours)
        drawing.line(low, y, high, y, stroke=colour, width=2.5)
        drawing.dot(high, y, 5, colour)
        drawing.dot(low, y, 4.5, "#ffffff", colour)
        drawing.text(right + 16, y + 4.5, f"{short(row.low)} – {short(row.high)}", bold=row.is_ours)
    return drawing.done(bottom + 32)


def curves(title: str, x_title: str, y_title: str, lines: Sequence[Curve], by_powers: bool) -> str:
    """Across by powers of ten, with a tick for each value there is; upwards likewise if so told, or from nought."""
    drawing = _begun(title, y_title + (", by powers of ten" if by_powers else ""))
    left, right = MARGIN + 40, WIDTH - MARGIN - max(width_of(line.label) for line in lines) - 14
    top, bottom = TOP + 6, TOP + 6 + PLOT
    across = sorted({x for line in lines for x, _ in line.points})
    upward = [y for line in lines for _, y in line.points]
    x_axis = ByPowers(across[0], across[-1], across)
    y_axis: Axis = ByPowers(min(upward), max(upward)) if by_powers else FromNought(max(upward))
    for tick in y_axis.ticks:
        y = bottom - PLOT * y_axis.at(tick)
        drawing.line(left, y, right, y)
        drawing.text(left - 8, y + 4.5, short(tick), anchor="end", fill=FAINT, size=12)
    for tick in x_axis.ticks:
        x = left + (right - left) * x_axis.at(tick)
        drawing.line(x, bottom, x, bottom + 5, stroke=FAINT)
        drawing.text(x, bottom + 20, short(tick), anchor="middle", fill=FAINT, size=12)
    drawing.text((left + right) / 2, bottom + 40, x_title, anchor="middle", fill=FAINT)

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return left + (right - left) * x_axis.at(point[0]), bottom - PLOT * y_axis.at(point[1])

    placed = [[place(point) for point in line.points] for line in lines]
    _draw_curves(drawing, lines, placed, right, (top, bottom))
    return drawing.done(bottom + 56)


def _draw_curves(
    drawing: Drawing,
    lines: Sequence[Curve],
    placed: Sequence[Sequence[tuple[float, float]]],
    right: float,
    room: tuple[float, float],
) -> None:
    """Ours above all others, and each one's name at its end."""
    theirs = (number for number, line in enumerate(lines) if not line.is_ours)
    colours = {number: COLOURS[count % len(COLOURS)] for count, number in enumerate(theirs)}
    heights = _spread([points[-1][1] for points in placed], room)
    for number in sorted(range(len(lines)), key=lambda number: lines[number].is_ours):
        line, points, colour = lines[number], placed[number], colours.get(number, OURS)
        if right - points[-1][0] > LEAST_APART:
            drawing.path([points[-1], (right + 8, heights[number])], THEIRS, 0.7)
        drawing.path(points, colour, 3.2 if line.is_ours else 1.8)
        for x, y in points:
            drawing.dot(x, y, 4 if line.is_ours else 3, colour)
        drawing.text(right + 12, heights[number] + 4.5, line.label, fill=colour, bold=line.is_ours)


def _spread(heights: Sequence[float], room: tuple[float, float]) -> list[float]:
    """The same heights, moved so far that no two labels lie on each other; from the lowest place upwards."""
    moved = list(heights)
    floor = room[1]
    for number in sorted(range(len(heights)), key=lambda number: -heights[number]):
        moved[number] = min(heights[number], floor)
        floor = moved[number] - LEAST_APART
    above = room[0] - min(moved, default=room[0])
    return [height + above if above > 0 else height for height in moved]


def _begun(title: str, unit: str, width: float = WIDTH) -> Drawing:
    drawing = Drawing(width, title)
    drawing.text(MARGIN, 27, title, size=16, bold=True)
    drawing.text(MARGIN, 46, unit, size=12, fill=FAINT)
    return drawing


def _ticks_below(drawing: Drawing, axis: Axis, left: float, right: float, top: float, bottom: float) -> None:
    for tick in axis.ticks:
        x = left + (right - left) * axis.at(tick)
        drawing.line(x, top, x, bottom, stroke=GRID)
        drawing.text(x, bottom + SIZE + 3, short(tick), anchor="middle", size=12, fill=FAINT)
