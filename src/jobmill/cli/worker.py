"""`jobmill worker`: claim, run and settle the jobs of a client's handlers, in one process or in several."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from jobmill.cli.output import lasting, one_line
from jobmill.cli.params import duration
from jobmill.cli.runner import Unusable, url_option

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from jobmill.client.client import Client
    from jobmill.core.events import Event

#: Options that go to the worker as they are; the same to each process of several.
PASSED = ("concurrency", "queues", "name", "lease", "shutdown_timeout", "health", "health_host")


@click.command(short_help="Run the jobs of a client's handlers.")
@click.argument("target", metavar="MODULE:CLIENT")
@click.option("--concurrency", "-c", type=int, metavar="N", help="Number of jobs that run at once (default 20).")
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUE",
    help="Claim only from this queue; repeatable (default: all queues of the handlers).",
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Number of worker processes; each runs its own --concurrency jobs at once.",
)
@click.option("--name", metavar="NAME", help="Name of the worker (default: hostname, process id and a random part).")
@click.option(
    "--lease",
    type=duration,
    metavar="DURATION",
    help="How long a job stays reserved after its worker dies (default 15s).",
)
@click.option(
    "--shutdown-timeout",
    type=duration,
    metavar="DURATION",
    help="How long running jobs may take to finish at shutdown (default 30s).",
)
@click.option("--health", type=int, metavar="PORT", help="Serve /livez and /readyz on this port.")
@click.option("--health-host", metavar="HOST", help="Address for --health (default 127.0.0.1).")
@click.option("--verbose", "-v", is_flag=True, help="Log every event of every job.")
@click.option("--quiet", "-q", is_flag=True, help="Log only warnings and errors.")
@url_option
def worker(target: str, processes: int, verbose: bool, quiet: bool, url: str | None, **given: Any) -> None:
    """Run the jobs of a client: mymodule:jobs, app.py:jobs, or mymodule with one client in it.

    SIGTERM or Ctrl-C: claim nothing more, let running jobs end, exit with 0;
    a second one gives them back at once.
    """
    options = {name: given[name] for name in PASSED if given[name] not in (None, ())}
    log_to_stderr(verbose, quiet)
    if url is not None:
        # Where the module says connect() without a URL, this is the URL.
        os.environ["JOBMILL_URL"] = url
    if processes > 1:
        flags = {"url": _said_url(), "verbose": verbose, "quiet": quiet}
        click.get_current_context().exit(_supervise(target, processes, options, flags))
    _work(target, verbose, options)


# ---------------------------------------------------------------------------------------------------- one process


def _work(target: str, verbose: bool, options: dict[str, Any]) -> None:
    import asyncio

    from jobmill.cli.target import load_client

    client = load_client(target)
    check_url(client, target)
    if verbose:
        client.on("*")(_narrate)

    async def work() -> None:
        try:
            await client.run_worker(**options)
        finally:
            await client.close()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(work())


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where the extra of that name is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _said_url() -> str | None:
    """--url, if it stands on the command line: what the environment says, a module may overrule."""
    context = click.get_current_context()
    on_line = context.get_parameter_source("url") is click.core.ParameterSource.COMMANDLINE
    return context.params["url"] if on_line else None


def check_url(client: Client, target: str) -> None:
    """A --url that the module did not take must not go unnoticed: jobs would be looked for in another place."""
    url = _said_url()
    if url is None:
        return
    from jobmill.stores import store_for

    asked = store_for(url)
    if (asked.name, asked.address) != (client.store.name, client.store.address):
        raise Unusable(f"{target} names a store of its own, so that --url has no effect; use connect() without a URL")


# ---------------------------------------------------------------------------------------------------- several


def _supervise(target: str, processes: int, options: dict[str, Any], flags: dict[str, Any]) -> int:
    from jobmill.worker.options import worker_settings
    from jobmill.worker.supervisor import supervise

    if "health" in options:
        raise click.UsageError("--health is for one process: several cannot share a port", click.get_current_context())
    if "name" in options:
        raise click.UsageError("--name is for one process: each has a name of its own", click.get_current_context())
    # Checked here, where it is said once. The module is imported in the processes alone: it may start threads.
    settings = worker_settings(options, ())  # type: ignore[arg-type]
    argv = ["worker", target, *_written_out({**options, **flags})]
    return supervise(argv, processes, shutdown_timeout=settings.shutdown_timeout)


def _written_out(options: dict[str, Any]) -> list[str]:
    """Options as they stand on a command line."""
    said: list[str] = []
    for name, value in options.items():
        if name == "queues":
            said += [f"--queue={queue}" for queue in value]
        elif value is True:
            said.append(f"--{name}")
        elif value not in (None, False):
            said.append(f"--{name.replace('_', '-')}={value}")
    return said


# ---------------------------------------------------------------------------------------------------- lines


def log_to_stderr(verbose: bool, quiet: bool) -> None:
    """Lines for people, of handlers as well; a module that sets logging up by itself adds to it."""
    import logging

    logging.basicConfig(
        level=logging.WARNING if quiet else logging.INFO,
        format="%(asctime)s %(levelname)-7s %(message)s",
        datefmt="%H:%M:%S",
    )
    if verbose:
        logging.getLogger("jobmill").setLevel(logging.DEBUG)


def _narrate(event: Event) -> None:
    """A line for a fact."""
    import logging

    data = event.data
    said = {
        "claimed": "",
        "progress": f"{data.get('value', 0):g} % {data.get('message') or ''}",
        "errored": one_line(str(data.get("error"))),
        "retrying": f"in {lasting(data.get('delay_ms', 0))}",
        "failed": one_line(str(data.get("error"))),
    }.get(event.type, "")
    line = f"job {event.job_id} ({event.name}), attempt {event.attempt}: {event.type} {said}".rstrip()
    logging.getLogger("jobmill").debug("%s", line)
