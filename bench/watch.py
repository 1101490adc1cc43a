"""Progress on stderr: a bar for each measure."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Watch:
    """Tells somebody who waits how far the run is. Where stderr is no terminal, a line for each measure."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.fields[measure]:<17}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", style="dim"),
            console=console,
            disable=not console.is_terminal,
        )
        self._bar: TaskID | None = None
        self._begun = 0

    def __enter__(self) -> Watch:
        """Show the bars."""
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave them as they are."""
        self._bars.stop()

    def measure(self, name: str) -> None:
        """The next measure."""
        if not self._console.is_terminal:
            self._console.print(name)
        self._bar = self._bars.add_task("", measure=name, total=None)
        self._begun = 0

    def begin(self, measure: str, steps: int) -> None:
        """See the protocol of the lab."""
        if self._bar is not None:
            self._bars.update(self._bar, total=self._begun + steps)

    def step(self, text: str) -> None:
        """See the protocol of the lab."""
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
