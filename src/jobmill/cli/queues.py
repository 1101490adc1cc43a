"""`jobmill queues`: counts the jobs of queues, and changes the settings of queues."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from jobmill.cli import lanes
from jobmill.cli.output import cell, duration_text, is_narrow, make_table, print_json, print_rich
from jobmill.cli.params import STATES, instant, rate, store_options
from jobmill.cli.queue_settings import configure, settings_text
from jobmill.cli.runner import run, with_spinner

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.client.queue import Queue
    from jobmill.core.values import QueueSettings, Stats


@click.group(invoke_without_command=True, short_help="Count, pause and limit queues.")
@store_options
@click.pass_context
def queues(ctx: click.Context, url: str | None, as_json: bool) -> None:
    """Count, pause and limit queues. Without a command, this runs `counts`."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(counts, url=url, as_json=as_json)


queues.add_command(lanes.lanes)
queues.add_command(lanes.lane)


# ---------------------------------------------------------------------------------------------------- counts


@queues.command()
@store_options
def counts(url: str | None, as_json: bool) -> None:
    """Count jobs by queue and handler, and show how long they take."""

    async def work(client: Client) -> list[dict[str, Any]]:
        stats = await with_spinner(client.stats(), "counting jobs")
        return _by_queue(stats, await client.store.settings())

    found = run(url, work)
    if as_json:
        print_json(found)
    elif found:
        print_rich(_table(found))
    else:
        click.echo("no queues", err=True)


def _by_queue(stats: list[Stats], settings: dict[str, QueueSettings]) -> list[dict[str, Any]]:
    """One document per queue, with its handlers in it: percentiles of several handlers cannot be combined."""
    import msgspec

    from jobmill.core.values import QueueSettings

    documents: dict[str, dict[str, Any]] = {}
    for queue in sorted({one.queue for one in stats} | set(settings)):
        own = [one for one in stats if one.queue == queue]
        oldest = [one.oldest_waiting_ms for one in own if one.oldest_waiting_ms is not None]
        documents[queue] = {
            "queue": queue,
            **{state: sum(getattr(one, state) for one in own) for state in STATES},
            "oldest_waiting_ms": max(oldest, default=None),
            **msgspec.to_builtins(settings.get(queue, QueueSettings())),
            "names": [_named(one) for one in sorted(own, key=lambda one: one.name)],
        }
    return list(documents.values())


def _named(stats: Stats) -> dict[str, Any]:
    return {name: getattr(stats, name) for name in stats.__struct_fields__ if name != "queue"}


def _table(found: list[dict[str, Any]]) -> Any:
    from rich.text import Text

    times = {"oldest": "oldest_waiting_ms", "p50": "p50_ms", "p95": "p95_ms"}
    left_out = ("cancelled", "p50") if is_narrow(100) else ()
    figures = [name for name in (*STATES, *times) if name not in left_out]
    table = make_table(("queue", *figures), right=figures, cut=("queue",))

    def shown(counted: dict[str, Any], style: str = "") -> list[Text]:
        values = (_duration(counted.get(times[name])) if name in times else f"{counted[name]:,}" for name in figures)
        return [Text(value, style) for value in values]

    for queue in found:
        settings = settings_text(queue)
        table.add_row(
            cell(queue["queue"], "bold").append(settings and f" ({settings})", "yellow"), *shown(queue, "bold")
        )
        for one in queue["names"]:
            table.add_row(cell(f"  {one['name']}"), *shown(one))
    return table


def _duration(ms: float | None) -> str:
    return "" if ms is None else duration_text(ms)


# ---------------------------------------------------------------------------------------------------- settings


@queues.command()
@click.argument("name")
@click.option("--note", metavar="TEXT", help="Why the queue is paused.")
@click.option("--until", type=instant, help="Resume the queue by itself at this time.")
@store_options
def pause(name: str, note: str | None, until: datetime | None, url: str | None, as_json: bool) -> None:
    """Pause a queue: workers claim no more jobs from it, and running jobs continue."""
    configure(name, url, as_json, lambda queue: queue.pause(note=note, until=until))


@queues.command()
@click.argument("name")
@store_options
def resume(name: str, url: str | None, as_json: bool) -> None:
    """Resume a paused queue."""
    configure(name, url, as_json, lambda queue: queue.resume())


@queues.command()
@click.argument("name")
@click.option("--rate", type=rate, metavar="N/DURATION", help="Limit claims to N per period, over all workers.")
@click.option("--no-rate", is_flag=True, help="Remove the rate limit.")
@click.option("--running", type=int, metavar="N", help="Limit running jobs to N, over all workers.")
@click.option("--no-running", is_flag=True, help="Remove the limit on running jobs.")
@click.option("--note", metavar="TEXT", help="Why, for the audit log.")
@store_options
def limits(
    name: str, rate: tuple[int, str] | None, no_rate: bool, running: int | None, no_running: bool, **given: Any
) -> None:
    """Change the limits of a queue, or show them."""
    if (rate and no_rate) or (running is not None and no_running):
        raise click.UsageError(
            "--rate and --no-rate cannot be combined, nor can --running and --no-running", click.get_current_context()
        )

    async def change(queue: Queue) -> QueueSettings:
        if rate is not None:
            await queue.rate_limit(*rate, note=given["note"])
        elif no_rate:
            await queue.rate_limit(None, note=given["note"])
        if running is not None or no_running:
            await queue.running_limit(running, note=given["note"])
        return await queue.settings()

    configure(name, given["url"], given["as_json"], change)


@queues.command()
@click.argument("name")
@click.argument("switch", type=click.Choice(["on", "off"]))
@store_options
def feed(name: str, switch: str, url: str | None, as_json: bool) -> None:
    """Turn the event feed of a queue on or off (see `jobmill events`)."""
    configure(name, url, as_json, lambda queue: queue.feed(switch == "on"))
