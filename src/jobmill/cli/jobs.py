"""`jobmill jobs list`, `jobmill jobs show` and `jobmill jobs why`; `manage` has the commands that change jobs."""

from __future__ import annotations

import re
import shlex
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from jobmill.cli import manage
from jobmill.cli.output import (
    STATE_COLORS,
    cell,
    duration_text,
    is_narrow,
    iso,
    make_table,
    one_line,
    print_json,
    print_rich,
    relative,
)
from jobmill.cli.params import filter_options, given_options, store_options
from jobmill.cli.queue_settings import unknown_queue
from jobmill.cli.runner import as_called, run, with_spinner
from jobmill.cli.show import details

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.core.job import Job
    from jobmill.core.reasons import Reason
    from jobmill.core.values import LogLine, Page

PAGE = 1_000
#: In a terminal with fewer columns, the ids leave no room for the column with errors.
WIDE = 120


@click.group()
def jobs() -> None:
    """List, show and change jobs."""


for command in (
    *(manage.cancel, manage.requeue, manage.reschedule, manage.reprioritize),
    *(manage.hold, manage.release, manage.remove),
):
    jobs.add_command(command)


# ---------------------------------------------------------------------------------------------------- list


@jobs.command("list")
@filter_options
@click.option("--limit", type=click.IntRange(min=1), default=50, help="Maximum number of jobs (default 50).")
@click.option("--cursor", metavar="CURSOR", help="Continue where another listing ended.")
@store_options
def list_jobs(limit: int, cursor: str | None, url: str | None, as_json: bool, **given: Any) -> None:
    """List all jobs, or only the jobs that match the filters.

    An INSTANT is ISO 8601 (local time if it has no offset), "now", "in 5m" or
    "7d ago".
    """
    filters = given_options(given)

    async def work(client: Client) -> tuple[Page, int, str | None]:
        page = await with_spinner(_pages(client, cursor, limit, filters), "finding jobs")
        asks = not page.jobs and "queue" in filters
        return page, client.store.now(), await unknown_queue(client, filters["queue"]) if asks else None

    page, now_ms, unknown = run(url, work)
    if as_json:
        print_json([job.to_dict() for job in page.jobs])
    elif page.jobs:
        print_rich(_narrow_listing(page.jobs, now_ms) if is_narrow(WIDE) else _listing(page.jobs, now_ms))
    else:
        click.echo("no jobs match" if filters else "no jobs", err=True)
    if unknown is not None:
        click.echo(f"jobmill: {unknown}", err=True)
    # On stderr, so that stdout has only the jobs.
    for way, cursor_there in (("next page", page.next), ("previous page", page.previous)):
        if cursor_there is not None:
            # Quoted, because users paste it into a shell.
            click.echo(f"{way}: --cursor {shlex.quote(cursor_there)}", err=True)


async def _pages(client: Client, cursor: str | None, limit: int, filters: dict[str, Any]) -> Page:
    """Enough pages for the limit, joined into one."""
    from jobmill.core.values import Page

    found: list[Job] = []
    first: Page | None = None
    while True:
        page = await client.find(cursor=cursor, limit=min(PAGE, limit - len(found)), **filters)
        first = first or page
        found += page.jobs
        cursor = page.next
        if cursor is None or len(found) >= limit:
            return Page(found, cursor, first.previous)


def _listing(found: list[Job], now_ms: int) -> Any:
    from rich.text import Text

    table = make_table(
        ("id", "name", "queue", "state", "attempt", "when", "error"), right=("attempt",), cut=("name", "queue", "error")
    )
    for job in found:
        table.add_row(
            job.id,
            cell(job.name),
            cell(job.queue),
            Text(job.state, STATE_COLORS[job.state]),
            str(job.attempt),
            _when(job, now_ms),
            cell(one_line(job.error or "")),
        )
    return table


def _narrow_listing(found: list[Job], now_ms: int) -> Any:
    """Two lines per job."""
    from rich.console import Group
    from rich.text import Text

    lines: list[Text] = []
    for job in found:
        state = (f"{job.state:<9}", STATE_COLORS[job.state])
        lines.append(Text.assemble((job.id, "bold"), "  ", state, "  ", _when(job, now_ms)))
        parts = [job.name, job.queue, f"attempt {job.attempt}", one_line(job.error or "")]
        lines.append(cell("  " + ", ".join(part for part in parts if part), "dim" if job.error is None else ""))
    return Group(*lines)


def _when(job: Job, now_ms: int) -> str:
    """When a waiting job is due, how long a running job has run, or when a final job finished."""
    if job.held is not None and job.held.by == ("lane",):
        joined_ms = job.held.due.resolve(now_ms)
        return f"due {relative(joined_ms, now_ms)}" if joined_ms > now_ms else f"waits in lane {job.lane}"
    if job.held is not None:
        return f"held by {job.held.who or ' and '.join(job.held.by)}"
    if job.state == "waiting":
        return f"due {relative(job.due_ms, now_ms)}"
    if job.state == "running" and job.started_ms is not None:
        progress = "" if job.progress is None else f", {job.progress.value:.0f} %"
        return f"for {duration_text(max(0, now_ms - job.started_ms))}{progress}"
    return "" if job.finished_ms is None else relative(job.finished_ms, now_ms)


# ---------------------------------------------------------------------------------------------------- show


@jobs.command()
@click.argument("id")
@click.option("--logs", is_flag=True, help="Show the log lines of the job too.")
@store_options
def show(id: str, logs: bool, url: str | None, as_json: bool) -> None:
    """Show all fields of one job."""

    async def work(client: Client) -> tuple[Job, list[LogLine], int]:
        job = await with_spinner(client.get(id), "finding the job")
        return job, await client.logs(id) if logs else [], client.store.now()

    job, lines, now_ms = run(url, work)
    if as_json:
        document = job.to_dict()
        if logs:
            document["logs"] = [
                {"at": iso(line.at_ms), "attempt": line.attempt, "level": line.level, "text": line.text}
                for line in lines
            ]
        print_json(document)
    else:
        print_rich(*details(job, lines if logs else None, now_ms))


# ---------------------------------------------------------------------------------------------------- why


@jobs.command()
@click.argument("id")
@store_options
def why(id: str, url: str | None, as_json: bool) -> None:
    """Say why a job does not run, and what to do about it."""

    async def work(client: Client) -> list[Reason]:
        return await with_spinner(client.explain(id), "collecting facts")

    reasons = run(url, work)
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(reasons))
        return
    from rich.text import Text

    lines: list[Text] = []
    for number, reason in enumerate(reasons, 1):
        lines.append(Text.assemble((f"{number}. ", "bold"), _local_times(reason.text), (f"  [{reason.code}]", "dim")))
        if reason.remedy is not None:
            lines.append(Text(f"   {as_called(reason.remedy)}", "green"))
    print_rich(*lines)


def _local_times(text: str) -> str:
    """A reason with its times in the local timezone, as other commands show them. In JSON they are UTC."""
    return re.sub(
        r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)",
        lambda found: f"{datetime.fromisoformat(found[0]).astimezone():%Y-%m-%d %H:%M:%S %Z}",
        text,
    )
