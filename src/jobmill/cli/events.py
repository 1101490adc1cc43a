"""`jobmill events`: prints the event feed of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jobmill.cli.output import iso, one_line
from jobmill.cli.params import store_options
from jobmill.cli.runner import CommandFailed, run

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.core.events import Event


@click.command(short_help="Print the events of a queue.")
@click.argument("queue")
@click.option("--follow", "-f", is_flag=True, help="Keep printing new events until Ctrl-C.")
@click.option("--after", metavar="ID", help="Print only events after the event with this id.")
@store_options
def events(queue: str, follow: bool, after: str | None, url: str | None, as_json: bool) -> None:
    """Print the event feed of QUEUE; with --json one JSON document per line.

    `jobmill queues feed QUEUE on` turns the feed on.
    """

    async def work(client: Client) -> None:
        if not (await client.queue(queue).settings()).feed:
            raise CommandFailed(f"the feed of queue {queue!r} is off; turn it on with `jobmill queues feed {queue} on`")
        async for event in client.events(queue, after=after, follow=follow):
            click.echo(_json(event) if as_json else _line(event))

    run(url, work)


def _json(event: Event) -> str:
    import json

    document = event.to_dict()
    return json.dumps({**document, "at": iso(document.pop("at_ms"))}, ensure_ascii=False)


def _line(event: Event) -> str:
    from jobmill.core.durations import to_datetime

    clock = to_datetime(event.at_ms).astimezone().strftime("%H:%M:%S.%f")[:-3]
    data = {name: value for name, value in event.data.items() if name != "traceback" and value is not None}
    fields = " ".join(f"{name}={one_line(str(value), 80)}" for name, value in data.items())
    return f"{clock}  {event.type:<10} {event.name} {event.job_id} attempt {event.attempt}  {fields}".rstrip()
