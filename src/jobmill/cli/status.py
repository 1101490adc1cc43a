"""`jobmill status`: one screen about queues, workers, errors and late recurrences."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from jobmill.cli.output import cell, duration_text, make_table, one_line, plural, print_json, print_rich, relative
from jobmill.cli.params import duration, store_options
from jobmill.cli.runner import run, with_spinner
from jobmill.cli.workers import workers_table
from jobmill.errors import StoreUnavailable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from jobmill.client.client import Client
    from jobmill.core.announcing import WorkerCard
    from jobmill.core.job import Job
    from jobmill.core.tallies import ErrorGroup
    from jobmill.core.values import Depth, QueueSettings

#: A recurrence is late when it has been due for this time.
LATE_MS = 60_000
ERRORS_SHOWN = 10
LATE_SHOWN = 100


@click.command()
@click.option("--watch", is_flag=True, help="Update the screen until Ctrl-C.")
@click.option("--every", type=duration, default=2.0, help="Time between two updates of --watch (default 2s).")
@store_options
def status(watch: bool, every: float | str, url: str | None, as_json: bool) -> None:
    """Show queues, workers, the errors of the last hour and late recurrences on one screen."""
    if watch and as_json:
        raise click.UsageError("--watch and --json cannot be combined", click.get_current_context())
    if watch:
        run(url, lambda client: _watch(client, every))
        return
    found = run(url, lambda client: with_spinner(_collect(client), "reading the store"))
    if as_json:
        print_json(found.document())
    else:
        print_rich(*found.screen())


async def _watch(client: Client, every: float | str) -> None:
    import asyncio

    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from jobmill.core.durations import to_ms

    pause = to_ms(every, "every", least=100) / 1000
    shown = (await _collect(client)).screen()  # if the store is unavailable at the start, the command ends
    with Live(Group(*shown), console=Console(), screen=sys.stdout.isatty(), auto_refresh=False) as live:
        while True:
            await asyncio.sleep(pause)
            try:
                shown, notes = (await _collect(client)).screen(), list[Text]()
            except StoreUnavailable as error:
                text = f"the store is unavailable, and the screen shows older values: {one_line(str(error))}\n"
                notes = [Text(text, "bold red")]
            live.update(Group(*notes, *shown), refresh=True)


async def _collect(client: Client) -> Overview:
    import asyncio

    from jobmill.metrics.late import late_recurrences

    await client.open()
    depths, settings, workers, tallies = await asyncio.gather(
        client.depths(), client.store.settings(), client.workers(), client.tallies("1h", step="10m")
    )
    now_ms = client.store.now()
    late = await late_recurrences(client.store, now_ms - LATE_MS, LATE_SHOWN)
    return Overview(now_ms, depths, settings, workers, _groups(tallies), late)


def _groups(tallies: Any) -> list[tuple[str, ErrorGroup]]:
    """The errors of the last hour with the names of their jobs, the most frequent first."""
    from jobmill.core.tallies import added_groups

    by_name: dict[str, list[ErrorGroup]] = {}
    for tally in tallies:
        by_name.setdefault(tally.name, []).extend(tally.error_groups)
    groups = [(name, group) for name, all_groups in by_name.items() for group in added_groups(all_groups)]
    return sorted(groups, key=lambda one: -one[1].count)[:ERRORS_SHOWN]


class Overview:
    """The values of one screen."""

    def __init__(
        self,
        now_ms: int,
        depths: list[Depth],
        settings: dict[str, QueueSettings],
        workers: list[WorkerCard],
        errors: list[tuple[str, ErrorGroup]],
        late: list[tuple[Job, int]],
    ) -> None:
        self.now_ms = now_ms
        self.depths = depths
        self.settings = settings
        self.workers = workers
        self.errors = errors
        self.late = late

    def document(self) -> dict[str, Any]:
        """The screen as a document for programs."""
        import msgspec

        return {
            "queues": [
                {**msgspec.to_builtins(one), "paused": self._is_paused(one.queue), "workers": self._claiming(one.queue)}
                for one in self.depths
            ],
            "workers": msgspec.to_builtins(self.workers),
            "errors": [{"name": name, **msgspec.to_builtins(group)} for name, group in self.errors],
            "late": [
                {"id": job.id, "name": job.name, "key": job.unique_key, "late_ms": self.now_ms - due_ms}
                for job, due_ms in self.late
            ],
        }

    def screen(self) -> list[RenderableType]:
        """The screen as text for people."""
        from rich.text import Text

        shown: list[RenderableType] = [self._queues() if self.depths else Text("no queues")]
        room = sum(card.concurrency for card in self.workers)
        about = f", room for {plural(room, 'job')}" if self.workers else ""
        shown.append(Text(f"\n{plural(len(self.workers), 'worker')}{about}", "bold"))
        if self.workers:
            shown.append(workers_table(self.workers, self.now_ms))
        if self.errors:
            shown += [Text("\nerrors of the last hour", "bold"), self._errors()]
        if self.workers or self.errors:
            parts = [what for what, is_shown in (("workers", self.workers), ("errors", self.errors)) if is_shown]
            from jobmill.core.announcing import ANNOUNCE_EVERY_S

            old = f"{' and '.join(parts)}: up to {ANNOUNCE_EVERY_S:g} s old; queues: now"
            shown.append(Text(f"\n{old}", "dim"))
        if self.late:
            shown.append(Text("\nlate recurrences", "bold red"))
            for job, due_ms in self.late:
                late = duration_text(self.now_ms - due_ms)
                shown.append(cell(f"{job.name} {job.unique_key}: {late} late (jobmill jobs why {job.id})"))
        return shown

    def _queues(self) -> Any:
        from rich.text import Text

        figures = ("due", "later", "held", "running", "failed", "oldest")
        table = make_table(("queue", *figures, "workers", ""), right=(*figures, "workers"), cut=("queue",))
        for depth in self.depths:
            claiming = self._claiming(depth.queue)
            oldest = "" if depth.oldest_due_ms is None else duration_text(max(0, self.now_ms - depth.oldest_due_ms))
            alarm = "paused" if self._is_paused(depth.queue) else "no worker" if depth.due and not claiming else ""
            counts = [self._count(depth, getattr(depth, name)) for name in figures[:-1]]
            table.add_row(cell(depth.queue, "bold"), *counts, oldest, str(claiming), Text(alarm, "yellow"))
        return table

    @staticmethod
    def _count(depth: Depth, count: int) -> str:
        from jobmill.core.values import DEPTH_LIMIT

        return f"{count:,}+" if count >= DEPTH_LIMIT and not depth.exact else f"{count:,}"

    def _errors(self) -> Any:
        table = make_table(("count", "error", "handler", "at", "last", "job"), right=("count",), cut=("error", "at"))
        for name, group in self.errors:
            last = relative(group.last_ms, self.now_ms)
            error, at = cell(one_line(group.error_type)), cell(group.location)
            table.add_row(f"{group.count:,}", error, name, at, last, group.last_job_id)
        return table

    def _is_paused(self, queue: str) -> bool:
        return queue in self.settings and self.settings[queue].paused

    def _claiming(self, queue: str) -> int:
        return sum(queue in card.queues and not card.stopping for card in self.workers)
