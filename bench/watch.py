"""Progress on stderr: a bar for the whole run with the time that is left, and one for the measure that runs."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

#: The time left is told by the pace of the last so many seconds.
PACE_S = 600.0


class Watch:
    """Tells somebody who waits how far the run is. Where stderr is no terminal, a line for each turn."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.fields[name]:<17}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.description}", style="dim", table_column=Column(no_wrap=True, ratio=1)),
            console=console,
            expand=True,
            disable=not console.is_terminal,
            speed_estimate_period=PACE_S,
        )
        self._began = time.monotonic()
        #: Of each measure that is to come, how much of the run it is.
        self._shares: dict[str, float] = {}
        self._whole: TaskID | None = None
        self._done = 0.0
        self._measure = ""
        self._share = 0.0
        self._bar: TaskID | None = None
        self._steps = self._begun = 0

    def __enter__(self) -> Watch:
        """Show the bars."""
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave them as they are."""
        self._bars.stop()

    def plan(self, shares: Mapping[str, float]) -> None:
        """What is to come: of each measure how much of the run it is, in any unit."""
        self._shares = dict(shares)
        self._whole = self._bars.add_task("", name="the whole run", total=sum(shares.values()) or None)

    def measure(self, name: str) -> None:
        """The next measure."""
        self._finish()
        self._measure, self._share = name, self._shares.get(name, 0.0)
        self._steps = self._begun = 0
        self._bar = self._bars.add_task("", name=name, total=None)

    def begin(self, measure: str, steps: int) -> None:
        """See the protocol of the lab."""
        self._steps = self._begun + steps
        if self._bar is not None:
            self._bars.update(self._bar, total=self._steps)

    def step(self, text: str) -> None:
        """See the protocol of the lab."""
        if not self._console.is_terminal:
            minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
            self._console.print(f"{minutes:02}:{seconds:02} {self._measure}, {text}", highlight=False, soft_wrap=True)
        self._show(text, self._begun)
        self._begun += 1

    def prepare(self, text: str) -> None:
        """See the protocol of the lab."""
        self._show(text, max(0, self._begun - 1))

    def end(self) -> None:
        """See the protocol of the lab."""
        self._show("", self._begun)

    def _show(self, text: str, done: int) -> None:
        if self._bar is not None:
            self._bars.update(self._bar, description=text, completed=done)
        if self._whole is not None:
            part = self._share * done / self._steps if self._steps else 0.0
            self._bars.update(self._whole, completed=self._done + part)

    def _finish(self) -> None:
        """The last measure is over: its bar makes room, and its share of the run is done."""
        self._done += self._share
        if self._bar is not None:
            self._bars.remove_task(self._bar)
