"""`jobmill audit` and `jobmill mark`: who changed what, and marks of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jobmill.cli.output import cell, iso, make_table, one_line, print_json, print_rich
from jobmill.cli.params import instant, store_options
from jobmill.cli.runner import run, with_spinner

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.core.audit import AuditEntry, AuditPage


@click.command()
@click.option("--who", metavar="WHO", help="Show what this person or program did.")
@click.option("--what", metavar="ACTION", help="Show actions of this kind, such as cancel or pause.")
@click.option("--queue", metavar="QUEUE", help="Show actions on this queue.")
@click.option("--job", "job_id", metavar="ID", help="Show actions on this job.")
@click.option("--after", type=instant, help="Show actions at or after this time.")
@click.option("--before", type=instant, help="Show actions before this time.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, help="Maximum number of actions (default 50).")
@click.option("--cursor", metavar="CURSOR", help="Continue where another listing ended.")
@store_options
def audit(url: str | None, as_json: bool, **given: Any) -> None:
    """Show who changed jobs, queues and workers, newest first.

    The audit log keeps entries for 90 days.
    """

    async def work(client: Client) -> AuditPage:
        return await with_spinner(client.audit_log(**given), "reading the audit log")

    from jobmill.core.durations import to_datetime

    page = run(url, work)
    if as_json:
        print_json([_document(entry) for entry in page.entries])
    elif page.entries:
        table = make_table(("when", "who", "what", "on", "note"), cut=("who", "on", "note"))
        for entry in page.entries:
            when = to_datetime(entry.at_ms).astimezone().strftime("%Y-%m-%d %H:%M:%S")
            table.add_row(when, cell(entry.who), entry.what, cell(_target(entry)), cell(one_line(entry.note or "")))
        print_rich(table)
    else:
        click.echo("no actions", err=True)
    if page.next is not None:
        click.echo(f"next page: --cursor {page.next}", err=True)


@click.command()
@click.argument("text")
@store_options
def mark(text: str, url: str | None, as_json: bool) -> None:
    """Add a mark to the audit log, such as the version that was deployed."""
    run(url, lambda client: client.mark(text))
    if as_json:
        print_json({"marked": text})
    else:
        click.echo(f"marked: {text}")


def _target(entry: AuditEntry) -> str:
    """What an act was about: a job, a number of jobs, a queue."""
    parts = [f"queue {entry.queue}"] if entry.queue else []
    if entry.count == 1 and entry.ids:
        parts.append(entry.ids[0])
    elif entry.count:
        parts.append(f"{entry.count:,} {'workers' if entry.what == 'stop_workers' else 'jobs'}")
    if entry.filter:
        parts.append(", ".join(f"{field}={value}" for field, value in entry.filter.items() if field != "queue"))
    return "; ".join(part for part in parts if part)


def _document(entry: AuditEntry) -> dict[str, Any]:
    import msgspec

    document: dict[str, Any] = msgspec.to_builtins(entry)
    document["at"] = iso(document.pop("at_ms"))
    return document
