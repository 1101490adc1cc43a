"""The view of `jobmill demo` on a terminal: one row per job, the last lines, and a summary."""

from __future__ import annotations

from collections import Counter

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from jobmill.cli.demo.story import SIGNS, Story, StoryRow
from jobmill.cli.output import STATE_COLORS, cell, one_line
from jobmill.core.job import STATES, Job

STYLES = {**STATE_COLORS, "errored": "magenta", "crashed": "magenta", "retrying": "magenta"}
LINES = 7
#: The height of the view without rows and last lines.
FRAME = 8


def view(story: Story, now_ms: int, height: int, *, final: bool = False) -> RenderableType:
    """The whole view. A low terminal shows fewer last lines, and the final view shows none."""
    above = (_header(story), _table(story, now_ms))
    room = max(1, min(LINES, height - FRAME - len(story.rows)))
    return Group(*above) if final else Group(*above, _last_lines(story, room))


def _header(story: Story) -> RenderableType:
    grid = Table.grid(expand=True)
    grid.add_column()
    grid.add_column(justify="right")
    grid.add_row(
        Text.assemble((" Jobmill ", "bold reverse"), "  on SQLite, in a temporary file"),
        Text(f"{story.seconds:.1f} s", "bold"),
    )
    return grid


def _table(story: Story, now_ms: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False, header_style="bold", padding=0)
    for name, width in {"kind": 11, "job": 13, "state": 9, "attempts": 8}.items():
        table.add_column(name, width=width, no_wrap=True)
    table.add_column("", ratio=1, no_wrap=True)
    for row in story.rows.values():
        state = _state(row)
        table.add_row(row.kind, Text(row.name, "bold"), Text(state, STYLES[state]), _signs(row), _detail(row, now_ms))
    return table


def _state(row: StoryRow) -> str:
    """The state of a job; a waiting job that has errored is shown as retrying."""
    if row.job is None:
        return "waiting"
    return "retrying" if row.job.state == "waiting" and row.job.errors else row.job.state


def _signs(row: StoryRow) -> Text:
    signs = list(row.attempts[-8:])
    if row.job is None or row.job.state == "waiting":
        signs.append("waiting")
    return Text.assemble(*((SIGNS[one], STYLES[one]) for one in signs))


def _detail(row: StoryRow, now_ms: int) -> RenderableType:
    job = row.job
    if job is None:
        return ""
    if job.state == "running" and job.progress is not None:
        return _progress(job.progress.value, job.progress.message or "")
    detail = cell(_detail_text(job, now_ms), "red" if job.state == "failed" else "")
    return detail.append(f"  ({row.note})", "dim") if row.note else detail


def _detail_text(job: Job, now_ms: int) -> str:
    wait = f"{max(0, job.due_ms - now_ms) / 1000:.1f} s"
    if job.state == "running":
        return f"for {max(0, now_ms - (job.started_ms or now_ms)) / 1000:.1f} s"
    if job.state == "failed":
        return one_line(job.error or "")
    if job.state == "cancelled":
        return "by jobs.cancel(id), while it ran"
    if job.state == "succeeded":
        return f"{job.runs} runs" if job.recurrence is not None else str(job.result)
    if job.errors:
        return f"in {wait}: {one_line(job.error or '')}"
    if job.recurrence is not None:
        return f"run {job.runs + 1} in {wait}"
    return f"due in {wait}" if job.due_ms > now_ms else "due, waiting for a free slot"


def _progress(value: float, message: str) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_row(ProgressBar(total=100, completed=value, width=14), f"{value:3.0f} %", Text(message, "dim"))
    return grid


def _last_lines(story: Story, room: int) -> RenderableType:
    lines = [line for line in story.lines if not line.text.startswith("progress")][-room:]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=6)
    grid.add_column(width=13)
    grid.add_column(no_wrap=True)
    for line in lines:
        grid.add_row(Text(f"{line.at_s:4.1f} s", "dim"), Text(line.name, "bold"), cell(line.text))
    for _ in range(room - len(lines)):
        grid.add_row("", "", "")
    foot: RenderableType = Text("  ".join(f"{SIGNS[one]} {one}" for one in SIGNS), "dim")
    if story.burst is not None:
        foot = _progress(100 * story.burst_done / story.burst, f"a burst of {story.burst:,} jobs")
    return Group(Panel(grid, box=box.ROUNDED, border_style="dim"), foot)


def counted(states: Counter[str]) -> Text:
    """Counts by state, in the states' colors."""
    parts = [(f"{states[state]:,} {state}", STYLES[state] if states[state] else "dim") for state in STATES]
    return Text("   ").join(Text(text, style) for text, style in parts)
