"""`jobmill workers`: which workers run, and ordering them to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jobmill.cli.output import cell, duration_text, is_narrow, make_table, plural, print_json, print_rich, relative
from jobmill.cli.params import store_options
from jobmill.cli.runner import FAILED, run, with_spinner

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.core.announcing import WorkerCard

#: With fewer columns, the host and the queues are left out.
WIDE = 100


@click.group(invoke_without_command=True, short_help="Show the workers that run, or stop them.")
@store_options
@click.pass_context
def workers(ctx: click.Context, url: str | None, as_json: bool) -> None:
    """Show the workers that run now. Each announces itself every ten seconds."""
    if ctx.invoked_subcommand is not None:
        return

    async def work(client: Client) -> tuple[list[WorkerCard], int]:
        return await with_spinner(client.workers(), "finding workers"), client.store.now()

    found, now_ms = run(url, work)
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(found))
    elif found:
        print_rich(workers_table(found, now_ms))
    else:
        click.echo("no workers", err=True)


@workers.command()
@click.argument("ids", nargs=-1, required=True)
@store_options
def stop(ids: tuple[str, ...], url: str | None, as_json: bool) -> None:
    """Order workers to stop gracefully, by id or name.

    A worker receives the order with its next announcement, at most ten seconds
    later.
    """

    async def work(client: Client) -> tuple[list[str], list[str]]:
        known = await client.workers()
        found = [card.id for card in known if {card.id, card.name} & set(ids)]
        ordered = await client.stop_workers(*found)
        answered = {text for card in known if card.id in ordered for text in (card.id, card.name)}
        return ordered, [one for one in ids if one not in answered]

    ordered, unknown = run(url, work)
    if as_json:
        print_json({"ordered": ordered, "unknown": unknown})
    elif ordered:
        click.echo(f"{plural(len(ordered), 'worker')} ordered to stop")
    for one in unknown:
        click.echo(f"jobmill: there is no worker {one}", err=True)
    if unknown:
        click.get_current_context().exit(FAILED)


def workers_table(found: list[WorkerCard], now_ms: int) -> Any:
    """One row per worker."""
    left_out = ("host", "queues") if is_narrow(WIDE) else ()
    columns = [one for one in ("worker", "host", "version", "up", "running", "queues", "state") if one not in left_out]
    table = make_table(columns, right=("running",), cut=("worker", "host", "queues"))
    for card in found:
        ours = card.system == "jobmill"
        row: dict[str, Any] = {
            "worker": cell(card.name or card.id),
            "host": cell(f"{card.host} {card.pid or ''}".strip()),
            "version": card.version if ours else card.system,
            "up": duration_text(max(0, now_ms - card.started_ms)) if card.started_ms else "",
            "running": f"{card.running}/{card.concurrency}" if ours else "",
            "queues": cell(", ".join(card.queues)),
            "state": _state(card, now_ms),
        }
        table.add_row(*[row[column] for column in columns])
    return table


def _state(card: WorkerCard, now_ms: int) -> str:
    parts = ["stopping"] if card.stopping else []
    if abs(card.clock_skew_ms) > 1_000:
        parts.append(f"clock off by {duration_text(abs(card.clock_skew_ms))}")
    if card.system == "jobmill" and now_ms - card.seen_ms > 15_000:
        parts.append(f"seen {relative(card.seen_ms, now_ms)}")
    return ", ".join(parts) or "ok"
