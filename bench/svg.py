"""A picture as SVG text: dark on white, in the reader's own sans-serif, without any style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from xml.sax.saxutils import escape

INK, FAINT, GRID = "#1f2933", "#52606d", "#e4e7eb"
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
SIZE = 13.0
#: Of the size of the font, what a character takes on average; readers' fonts differ.
WIDTH_OF_ONE = 0.56

Anchor = Literal["start", "middle", "end"]


def width_of(text: str, size: float = SIZE) -> float:
    """About how wide a text is."""
    return len(text) * size * WIDTH_OF_ONE


class Drawing:
    """What was drawn so far; later things lie above earlier ones."""

    def __init__(self, width: float, title: str) -> None:
        self.width = width
        self._title = title
        self._parts: list[str] = []

    def text(
        self, x: float, y: float, text: str, *, anchor: Anchor = "start", size: float = SIZE, fill: str = INK,
        bold: bool = False,
    ) -> None:  # fmt: skip
        """One line of text; y is where its letters stand."""
        weight = ' font-weight="600"' if bold else ""
        place = f'x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}"'
        self._parts.append(f'<text {place} font-size="{_number(size)}" fill="{fill}"{weight}>{escape(text)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, *, stroke: str = GRID, width: float = 1) -> None:
        """From one point to another."""
        ends = f'x1="{_number(x1)}" y1="{_number(y1)}" x2="{_number(x2)}" y2="{_number(y2)}"'
        self._parts.append(f'<line {ends} stroke="{stroke}" stroke-width="{_number(width)}"/>')

    def bar(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        """A filled rectangle; one of no width is still seen."""
        box = f'x="{_number(x)}" y="{_number(y)}" width="{_number(max(width, 1))}" height="{_number(height)}"'
        self._parts.append(f'<rect {box} fill="{fill}"/>')

    def box(self, x: float, y: float, width: float, height: float, stroke: str) -> None:
        """A hollow rectangle with a broken outline."""
        box = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
        self._parts.append(f'<rect {box} fill="none" stroke="{stroke}" stroke-dasharray="4 3"/>')

    def dot(self, x: float, y: float, radius: float, fill: str, stroke: str = "none") -> None:
        """A filled circle."""
        place = f'cx="{_number(x)}" cy="{_number(y)}" r="{_number(radius)}"'
        self._parts.append(f'<circle {place} fill="{fill}" stroke="{stroke}" stroke-width="2"/>')

    def path(self, points: Sequence[tuple[float, float]], stroke: str, width: float) -> None:
        """Straight lines from point to point."""
        joined = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        ends = 'fill="none" stroke-linejoin="round" stroke-linecap="round"'
        self._parts.append(f'<polyline points="{joined}" {ends} stroke="{stroke}" stroke-width="{_number(width)}"/>')

    def done(self, height: float) -> str:
        """All of it, in a white box of this height."""
        w, h = _number(self.width), _number(height)
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img"'
        title = escape(self._title)
        box = f'<rect width="{w}" height="{h}" rx="6" fill="#ffffff"/>'
        return "\n".join([f'{head} font-family="{FONT}">', f"<title>{title}</title>", box, *self._parts, "</svg>", ""])


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
