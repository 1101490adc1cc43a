"""`jobmill worker`: claims, runs and settles the jobs of a client's handlers, in one process or several."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from jobmill.cli.output import duration_text, one_line
from jobmill.cli.params import duration
from jobmill.cli.runner import Unusable, url_option

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from jobmill.client.client import Client
    from jobmill.core.events import Event

#: Options that are passed to the worker unchanged, also to each of several processes.
WORKER_OPTIONS = ("concurrency", "queues", "name", "lease", "shutdown_timeout", "health", "health_host")


@click.command(short_help="Run jobs with the handlers of a client.")
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
    help="Number of worker processes; each runs its own --concurrency jobs at once (default 1).",
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
@click.option("--health", type=int, metavar="PORT", help="Serve /livez and /readyz on this port (default: no port).")
@click.option("--health-host", metavar="HOST", help="Address for --health (default 127.0.0.1).")
@click.option("--verbose", "-v", is_flag=True, help="Log every event of every job.")
@click.option("--quiet", "-q", is_flag=True, help="Log only warnings and errors.")
@click.option("--checks-url", is_flag=True, hidden=True)
@url_option
def worker(target: str, processes: int, verbose: bool, quiet: bool, url: str | None, **given: Any) -> None:
    """Run jobs with the handlers of a client: mymodule:jobs, app.py:jobs, or mymodule if it has one client.

    After SIGTERM or Ctrl-C the worker claims no more jobs, waits for running
    jobs and exits with code 0. A second signal releases running jobs at once.
    """
    options = {name: given[name] for name in WORKER_OPTIONS if given[name] not in (None, ())}
    log_to_stderr(verbose, quiet)
    if url is not None:
        # A module that calls connect() without a URL gets this one.
        os.environ["JOBMILL_URL"] = url
    if processes > 1:
        # The URL is in the environment: a command line is visible to every user of the machine.
        flags = {"checks_url": _checks_url(), "verbose": verbose, "quiet": quiet}
        click.get_current_context().exit(_supervise(target, processes, options, flags))
    _work(target, verbose, options)


# ---------------------------------------------------------------------------------------------------- one process


def _work(target: str, verbose: bool, options: dict[str, Any]) -> None:
    import asyncio

    from jobmill.cli.target import load_client

    client = load_client(target)
    check_url(client, target)
    if verbose:
        client.on("*")(_log_event)

    async def work() -> None:
        try:
            await client.run_worker(**options)
        finally:
            await client.close()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(work())


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop factory of uvloop, if the extra `uvloop` is installed; otherwise None."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _checks_url() -> bool:
    """Whether --url is on the command line. A module may override the URL of the environment."""
    context = click.get_current_context()
    on_command_line = context.get_parameter_source("url") is click.core.ParameterSource.COMMANDLINE
    return on_command_line or context.params.get("checks_url", False)


def check_url(client: Client, target: str) -> None:
    """Refuse a --url that the module does not use: the worker would run the jobs of another store."""
    if not _checks_url():
        return
    from jobmill.stores import store_for

    given = store_for(os.environ["JOBMILL_URL"])
    if (given.name, given.address) != (client.store.name, client.store.address):
        raise Unusable(f"{target} connects to another store, so that --url has no effect; use connect() without a URL")


# ---------------------------------------------------------------------------------------------------- several


def _supervise(target: str, processes: int, options: dict[str, Any], flags: dict[str, Any]) -> int:
    from jobmill.worker.options import worker_settings
    from jobmill.worker.supervisor import supervise

    if "health" in options:
        raise click.UsageError(
            "--health works with one process only: several processes cannot share a port", click.get_current_context()
        )
    if "name" in options:
        raise click.UsageError(
            "--name works with one process only: each worker needs its own name", click.get_current_context()
        )
    # Checked in the parent, which reports an error once. Only the children import the module: it may start threads.
    settings = worker_settings(options, ())  # type: ignore[arg-type]
    argv = ["worker", target, *_to_argv({**options, **flags})]
    return supervise(argv, processes, shutdown_timeout=settings.shutdown_timeout)


def _to_argv(options: dict[str, Any]) -> list[str]:
    """Options in the form of command-line arguments."""
    argv: list[str] = []
    for name, value in options.items():
        if name == "queues":
            argv += [f"--queue={queue}" for queue in value]
        elif value is True:
            argv.append(f"--{name.replace('_', '-')}")
        elif value not in (None, False):
            argv.append(f"--{name.replace('_', '-')}={value}")
    return argv


# ---------------------------------------------------------------------------------------------------- logging


def log_to_stderr(verbose: bool, quiet: bool) -> None:
    """Log to stderr, including the logs of handlers. A module may add its own logging configuration."""
    import logging

    logging.basicConfig(
        level=logging.WARNING if quiet else logging.INFO,
        format="%(asctime)s %(levelname)-7s %(message)s",
        datefmt="%H:%M:%S",
    )
    if verbose:
        logging.getLogger("jobmill").setLevel(logging.DEBUG)


def _log_event(event: Event) -> None:
    import logging

    data = event.data
    detail = {
        "claimed": "",
        "progress": f"{data.get('value', 0):g} % {data.get('message') or ''}",
        "errored": one_line(str(data.get("error"))),
        "retrying": f"in {duration_text(data.get('delay_ms', 0))}",
        "failed": one_line(str(data.get("error"))),
    }.get(event.type, "")
    line = f"job {event.job_id} ({event.name}), attempt {event.attempt}: {event.type} {detail}".rstrip()
    logging.getLogger("jobmill").debug("%s", line)
