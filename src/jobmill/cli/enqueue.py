"""`jobmill enqueue`: enqueues one job by the name of its handler; with --wait it prints the result."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from jobmill.cli.output import one_line, print_json
from jobmill.cli.params import duration, given_options, instant, read_payload, store_options
from jobmill.cli.runner import FAILED, run, with_spinner

if TYPE_CHECKING:
    from jobmill.client.client import Client

#: An argument after --wait that matches this is the timeout, not the name of the handler.
_DURATION = re.compile(r"\d+(\.\d+)?|(\d+(w|d|h|m|s|ms))+")
NO_TIMEOUT = "no timeout"


class EnqueueCommand(click.Command):
    """The timeout of --wait is optional: `enqueue --wait NAME` is valid, and so is `enqueue --wait 30s NAME`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Add a value to a --wait without one."""
        completed: list[str] = []
        for index, arg in enumerate(args):
            following = args[index + 1] if index + 1 < len(args) else ""
            lone = arg == "--wait" and "--" not in args[:index] and not _DURATION.fullmatch(following)
            completed.append(f"--wait={NO_TIMEOUT}" if lone else arg)
        return super().parse_args(ctx, completed)


@click.command(cls=EnqueueCommand, short_help="Enqueue a job.")
@click.argument("name")
@click.argument("payload", required=False)
@click.option(
    "--id", metavar="ID", help="Your own id for the job; enqueueing it again creates no second job (default: a new id)."
)
@click.option("--delay", type=duration, help="Run the job after this time: 30, 30s, 10m or 1h30m (default 0).")
@click.option("--due-at", type=instant, help='Run the job at this time: ISO 8601 or "in 5m" (default: now).')
@click.option("--priority", type=int, help="Priority; 0 runs first, larger numbers wait longer (default 0).")
@click.option("--unique-key", metavar="KEY", help="Create no second job while a live job of this name has the key.")
@click.option("--unique-for", type=duration, help="Create no second job for this time, even after the job is final.")
@click.option("--debounce", type=duration, help="Run the job after this time; a further enqueue starts it anew.")
@click.option(
    "--when-live",
    type=click.Choice(["skip", "replace", "cancel"]),
    help="What happens to a live job that has the unique key (default skip: it stays, and this job is a duplicate).",
)
@click.option("--queue", metavar="QUEUE", help='Queue of the job (default "default", not that of its handler).')
@click.option("--tenant", metavar="TENANT", help="Tenant that the job belongs to.")
@click.option(
    "--lane", metavar="LANE", help="Lane of the job, which shares its limits (default none, not that of its handler)."
)
@click.option(
    "--max-attempts",
    type=int,
    metavar="N",
    help="Give up after this many failed attempts (default: the option of the handler).",
)
@click.option("--timeout", type=duration, help="Maximum duration of one attempt (default: the option of the handler).")
@click.option("--cron", metavar="CRON", help='Repeat the job at these times, such as "0 9 * * mon"; needs --key.')
@click.option("--every", type=duration, help="Repeat the job at this interval; needs --key.")
@click.option("--timezone", metavar="NAME", help="Time zone of --cron, such as Europe/Berlin (default UTC).")
@click.option("--until", type=instant, help="Stop repeating after this time (default: never).")
@click.option("--key", metavar="KEY", help="Key that identifies the recurring job.")
@click.option("--wait", metavar="[TIMEOUT]", help="Wait until the job is final, and print its result.")
@store_options
def enqueue(name: str, payload: str | None, wait: str | None, url: str | None, as_json: bool, **given: Any) -> None:
    """Enqueue a job for the handler NAME, with PAYLOAD as JSON ("-" reads it from stdin).

    Prints the id of the job and a status: created, exists (a job has this id),
    duplicate (this unique key is taken), updated (a live job has this key, and
    got the new values) or pinned (a person has pinned the rule of the live
    recurring job).
    """
    arguments = read_payload(payload)

    async def work(client: Client) -> int:
        enqueued = await with_spinner(client.enqueue(name, arguments, **given_options(given)), "enqueueing")
        if not as_json:
            click.echo(f"{enqueued.id} {enqueued.status}")
        answer = {"id": enqueued.id, "status": enqueued.status}
        final = {} if wait is None else await _final(client, enqueued.id, wait)
        if as_json:
            print_json({**answer, **final})
        elif "error" in final:
            click.echo(f"jobmill: job {enqueued.id} {final['state']}: {one_line(final['error'])}", err=True)
        elif final:
            print_json(final["result"])
        return FAILED if "error" in final else 0

    click.get_current_context().exit(run(url, work, creates=True))


async def _final(client: Client, id: str, wait: str) -> dict[str, Any]:
    """The final state of a job. A failed job is no exception, so that --json can print it."""
    from jobmill.errors import JobCancelled, JobFailed

    timeout = None if wait == NO_TIMEOUT else duration(wait)
    try:
        result = await with_spinner(
            client.result(id, timeout=timeout), f"waiting for job {id} to be final (needs a worker)"
        )
    except JobCancelled:
        return {"state": "cancelled", "error": "it was cancelled"}
    except JobFailed:
        return {"state": "failed", "error": (await client.get(id)).error}
    return {"state": "succeeded", "result": result}
