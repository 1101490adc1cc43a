"""`jobmill enqueue`: enqueue one job by name, and wait for its result if asked to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from jobmill.cli.output import one_line, print_json
from jobmill.cli.params import duration, instant, read_payload
from jobmill.cli.runner import FAILED, json_option, patiently, run, url_option

if TYPE_CHECKING:
    from jobmill.client.client import Client

#: What may follow --wait without being the name or the payload.
_DURATION = re.compile(r"\d+(\.\d+)?|(\d+(w|d|h|m|s|ms))+")
FOR_EVER = "for ever"

OPTIONS = (
    *("id", "delay", "due_at", "priority", "unique_key", "queue", "tenant", "max_attempts", "timeout"),
    *("cron", "every", "timezone", "until", "key"),
)


class WithWait(click.Command):
    """--wait takes a timeout only if a duration follows it: `enqueue --wait NAME` is as good as `--wait 30s NAME`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Write a lone --wait out."""
        said: list[str] = []
        for place, arg in enumerate(args):
            following = args[place + 1] if place + 1 < len(args) else ""
            lone = arg == "--wait" and "--" not in args[:place] and not _DURATION.fullmatch(following)
            said.append(f"--wait={FOR_EVER}" if lone else arg)
        return super().parse_args(ctx, said)


@click.command(cls=WithWait, short_help="Enqueue a job by the name of its handler.")
@click.argument("name")
@click.argument("payload", required=False)
@click.option("--id", metavar="ID", help="An id of your own: enqueueing it again makes no second job.")
@click.option("--delay", type=duration, metavar="DURATION", help="Due so long from now: 30, 30s, 10m, 1h30m.")
@click.option("--due-at", type=instant, metavar="INSTANT", help='Due then: ISO 8601, or "in 5m".')
@click.option("--priority", type=int, help="0 (default) runs first, larger waits longer.")
@click.option("--unique-key", metavar="KEY", help="At most one live job of the name has it.")
@click.option("--queue", metavar="QUEUE", help="Another queue than default.")
@click.option("--tenant", metavar="TENANT", help="Whose job it is.")
@click.option("--max-attempts", type=int, metavar="N", help="How often it may err, at most, until it fails.")
@click.option("--timeout", type=duration, metavar="DURATION", help="How long one attempt may take.")
@click.option("--cron", metavar="CRON", help='Again at "0 9 * * mon"; needs --key.')
@click.option("--every", type=duration, metavar="DURATION", help="Again and again; needs --key.")
@click.option("--timezone", metavar="NAME", help="Time zone of --cron, such as Europe/Berlin (default UTC).")
@click.option("--until", type=instant, metavar="INSTANT", help="The end of --cron or --every.")
@click.option("--key", metavar="KEY", help="How the recurring job is known.")
@click.option("--wait", metavar="[TIMEOUT]", help="Wait until the job is final; print its result.")
@url_option
@json_option
def enqueue(name: str, payload: str | None, wait: str | None, url: str | None, as_json: bool, **given: Any) -> None:
    """Enqueue a job for the handler NAME, with PAYLOAD as JSON ("-": from stdin).

    Prints the job's id and created, exists (same id), duplicate (of a live
    job with the unique key) or updated (a live recurring job).
    """
    options = {option: given[option] for option in OPTIONS if given[option] is not None}
    arguments = read_payload(payload)

    async def work(client: Client) -> int:
        enqueued = await patiently(client.enqueue(name, arguments, **options), "enqueueing")
        if not as_json:
            click.echo(f"{enqueued.id} {enqueued.status}")
        answer = {"id": enqueued.id, "how": enqueued.status}
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
    """What a job came to; a job that failed is an answer here, not an exception, so that --json can show it."""
    from jobmill.errors import JobCancelled, JobFailed

    timeout = None if wait == FOR_EVER else duration(wait)
    try:
        result = await patiently(
            client.result(id, timeout=timeout), f"waiting for job {id} to be final (needs a worker)"
        )
    except JobCancelled:
        return {"state": "cancelled", "error": "it was cancelled"}
    except JobFailed:
        return {"state": "failed", "error": (await client.get(id)).error}
    return {"state": "succeeded", "result": result}
