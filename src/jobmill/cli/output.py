"""Output: tables for people, plain columns for pipes, JSON for programs, and readable times."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

STATE_COLORS = {
    "waiting": "yellow",
    "running": "cyan",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "bright_black",
}
LEVEL_COLORS = {"debug": "bright_black", "info": "", "warning": "yellow", "error": "red"}

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))


def print_json(document: Any) -> None:
    """One JSON document: indented for a terminal, on one line for programs."""
    import json

    click.echo(json.dumps(document, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def print_rich(*renderables: RenderableType) -> None:
    """Print with rich, as wide as the terminal. Without a terminal there are no colors, and nothing is cut."""
    console = _console()
    with console.capture() as captured:
        for one in renderables:
            console.print(one)
    # Through click, which handles a closed pipe. A pipe needs no padding.
    text = captured.get()
    if not console.is_terminal:
        text = "".join(line.rstrip() + "\n" for line in text.splitlines())
    click.echo(text, nl=False, color=console.is_terminal)


def _console() -> Console:
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    return Console(width=None if is_terminal else 10_000, highlight=False, emoji=False, markup=False)


def make_table(columns: Sequence[str], *, right: Sequence[str] = (), cut: Sequence[str] = ()) -> Table:
    """An empty table. Columns in `right` are aligned right; a narrow terminal cuts columns in `cut` (see `cell`)."""
    from rich import box
    from rich.table import Table

    # The box adds a space between columns.
    shape, gap = (box.SIMPLE_HEAD, 1) if sys.stdout.isatty() else (None, 2)
    table = Table(box=shape, padding=(0, gap, 0, 0), show_edge=False, pad_edge=False, header_style="bold")
    for name in columns:
        # rich narrows only columns that may wrap. Their cells are cut instead.
        table.add_column(name, justify="right" if name in right else "left", no_wrap=name not in cut)
    return table


def is_narrow(columns: int) -> bool:
    """Whether stdout is a terminal with fewer columns."""
    import shutil

    return sys.stdout.isatty() and shutil.get_terminal_size().columns < columns


def cell(text: str, style: str = "") -> Text:
    """The content of a column that may be cut."""
    from rich.text import Text

    return Text(text, style, no_wrap=True, overflow="ellipsis")


def iso(ms: int) -> str:
    """An instant for programs, as `Job.to_dict` has it."""
    import msgspec

    from jobmill.core.durations import to_datetime

    text: str = msgspec.to_builtins(to_datetime(ms))
    return text


def duration_text(ms: float) -> str:
    """A duration in one unit: "12 ms", "1.4 s", "5 m", "3 d"."""
    if 0 < ms < 10:
        return f"{ms:.1f} ms" if ms != int(ms) else f"{int(ms)} ms"
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 10_000:
        return f"{ms / 1000:.1f} s"
    for size, unit in _UNITS:
        # Up to about twice a unit the smaller unit is more exact: "90 m" instead of "1 h".
        if ms >= (1.95 * size if size > 1_000 else size):
            return f"{ms / size:.0f} {unit}"
    return f"{ms / 1000:.0f} s"


def relative(then_ms: int, now_ms: int) -> str:
    """An instant relative to now: "in 5 m", "3 s ago", "now"."""
    delta = then_ms - now_ms
    if abs(delta) < 1_000:
        return "now"
    text = duration_text(abs(delta) if abs(delta) >= 10_000 else abs(delta) // 1_000 * 1_000).replace(".0 ", " ")
    return f"in {text}" if delta > 0 else f"{text} ago"


def one_line(text: str, max_length: int = 200) -> str:
    """A text on one line, cut at a maximum length."""
    line = " ".join(text.split())
    return line if len(line) <= max_length else line[: max_length - 1] + "…"


def plural(count: int, noun: str = "job") -> str:
    """ "1 job", "1,204 jobs"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def drop_output() -> None:
    """The reader of stdout has gone: drop buffered output, which would cause an error at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
