"""`jobmill worker`: claims, runs and settles the jobs of a client's handlers, in one process or several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import click

from jobmill.cli.output import duration_text, one_line
from jobmill.cli.params import duration, given_options, log_options, port_or_path, shutdown_timeout_option, url_option
from jobmill.cli.runner import loop_factory, run_forever
from jobmill.cli.serving import WithDashboard, dashboard_beside, dashboard_option
from jobmill.cli.target import is_url_given, load_client, use_url

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.core.events import Event


@click.command(cls=WithDashboard, short_help="Run jobs with the handlers of a client.")
@click.argument("target", metavar="MODULE:CLIENT")
@click.option("--concurrency", "-c", type=int, metavar="N", help="Number of jobs that run at once (default 20).")
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUE",
    help="Claim only from this queue; can be given several times (default: all queues of the handlers).",
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Number of worker processes; each runs its own --concurrency jobs at once (default 1).",
)
@click.option(
    "--spawn", is_flag=True, help="Start each of --processes as a new interpreter (default: fork if that is safe)."
)
@click.option("--name", metavar="NAME", help="Name of the worker (default: hostname, process id and a random part).")
@click.option("--lease", type=duration, help="How long a job stays reserved after its worker dies (default 15s).")
@shutdown_timeout_option("running jobs", default=None)
@click.option(
    "--health",
    type=port_or_path,
    metavar="PORT",
    envvar="JOBMILL_HEALTH",
    help="Serve /livez, /readyz and /metrics on this port (default: JOBMILL_HEALTH, else no port).",
)
@click.option("--health-host", metavar="HOST", help="Address for --health (default 127.0.0.1).")
@dashboard_option("Serve the dashboard")
@click.option(
    "--no-wait",
    "wait_for_store",
    is_flag=True,
    flag_value=False,
    default=None,
    help="Exit if the store is unavailable at the start (default: wait for it).",
)
@click.option("--max-jobs", type=int, metavar="N", help="End with exit code 4 after this number of jobs.")
@click.option("--max-memory", metavar="SIZE", help="End with exit code 4 above this memory (RSS), such as 512MB.")
@click.option(
    "--claim-ahead",
    type=int,
    metavar="N",
    help="At most this number of claimed jobs wait in the worker; 0 for none (default 500).",
)
@click.option("--verbose", "-v", is_flag=True, help="Log every event of every job, and the traceback of every error.")
@log_options
@click.option("--checks-url", is_flag=True, hidden=True)
@url_option
def worker(
    target: str,
    processes: int,
    spawn: bool,
    dashboard: int | None,
    verbose: bool,
    quiet: bool,
    log_format: str,
    url: str | None,
    checks_url: bool,
    **given: Any,
) -> None:
    """Run jobs with the handlers of a client: mymodule:jobs, app.py:jobs, or mymodule if it has one client.

    After SIGTERM or Ctrl-C the worker claims no more jobs, waits for running
    jobs and exits with code 0. A second signal releases running jobs at once.
    A process that reaches --max-jobs or --max-memory claims no more jobs, waits
    for running jobs without a limit, and exits with code 4; with --processes it
    is replaced at once.
    """
    from jobmill.worker.stderr_log import log_to_stderr

    options = given_options(given)
    log_to_stderr(verbose=verbose, quiet=quiet, log_format=log_format)
    use_url(url)
    checks_url = checks_url or is_url_given()
    if processes > 1:
        if dashboard is not None:
            why = f"--dashboard works with one process only: run `jobmill dashboard {target}` beside this worker"
            raise click.UsageError(why, click.get_current_context())
        # The URL is in the environment: a command line is visible to every user of the machine.
        flags = {"checks_url": checks_url, "verbose": verbose, "quiet": quiet, "log_format": log_format}
        click.get_current_context().exit(_supervise(target, processes, spawn, options, flags))
    click.get_current_context().exit(_run(_load(target, checks_url, verbose), options, dashboard))


def _load(target: str, checks_url: bool, verbose: bool) -> Client:
    client = load_client(target, checks_url=checks_url)
    if verbose:
        log_events(client)
    return client


def _run(client: Client, options: dict[str, Any], dashboard: int | None = None) -> int:
    return run_forever(_work(client, options, dashboard))


async def _work(client: Client, options: dict[str, Any], dashboard: int | None) -> int:
    import logging

    from jobmill.worker.recycle import RECYCLED
    from jobmill.worker.worker import Worker

    worker = Worker(client, **options)
    try:
        async with dashboard_beside(client, dashboard) as link:
            if link is not None:
                logging.getLogger("jobmill").info("the dashboard is at %s", link)
            await worker.run()
    finally:
        await client.close()
    return RECYCLED if worker.recycled else 0


# ---------------------------------------------------------------------------------------------------- several


def _supervise(target: str, processes: int, spawn: bool, options: dict[str, Any], flags: dict[str, Any]) -> int:
    from jobmill.worker.options import worker_settings
    from jobmill.worker.supervisor import check_processes, supervise, supervise_forks

    if "name" in options:
        why = "--name works with one process only: each worker needs its own name"
        raise click.UsageError(why, click.get_current_context())
    # Checked in the parent, which reports an error once.
    settings = worker_settings(options, ())  # type: ignore[arg-type]
    check_processes(processes)
    supervised: dict[str, Any] = {
        "shutdown_timeout": settings.shutdown_timeout,
        "health": settings.health,
        "health_host": settings.health_host,
    }
    of_process = {**options, "health": None, "health_host": None}
    if not spawn:
        client = _load_to_fork(target, flags, {**options, **flags, "processes": processes, "spawn": True})
        if client is not None:
            return supervise_forks(
                lambda socket: _run(client, given_options({**of_process, "health": socket or None})),
                processes,
                **supervised,
            )
    return supervise(["worker", target, *to_argv({**of_process, **flags})], processes, **supervised)


def _load_to_fork(target: str, flags: dict[str, Any], spawning: dict[str, Any]) -> Client | None:
    """Import the application and everything that a worker needs. None if this process must not be forked.

    If the import has started threads or opened connections, this process begins again, without the application.
    """
    from jobmill.worker import forking

    if why := forking.why_unsafe():
        _log_spawn(why)
        return None
    with forking.watched_imports() as threaded:
        client = _load(target, flags["checks_url"], flags["verbose"])
        # What is imported here, all processes share. A handler with a cron has imported what that needs.
        import concurrent.futures.thread  # noqa: F401 - asyncio imports it when it first uses a thread

        from jobmill.worker import worker  # noqa: F401

        loop_factory()
    if why := forking.why_unsafe(next(iter(threaded), None)):
        _log_spawn(why)
        _begin_again(["worker", target, *to_argv(spawning)])
    return client


def _log_spawn(why: str) -> None:
    import logging

    logging.getLogger("jobmill").info("each worker process is a new interpreter, not a fork: %s", why)


def _begin_again(argv: list[str]) -> NoReturn:
    """Replace the program of this process."""
    import os
    import sys

    from jobmill.worker.supervisor import PROGRAM

    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(PROGRAM[0], [*PROGRAM, *argv])


def to_argv(options: dict[str, Any]) -> list[str]:
    """Options in the form of command-line arguments."""
    argv: list[str] = []
    for name, value in options.items():
        if name == "queues":
            argv += [f"--queue={queue}" for queue in value]
        elif name == "wait_for_store":
            argv += [] if value else ["--no-wait"]
        elif value is True:
            argv.append(f"--{name.replace('_', '-')}")
        elif value is not None and value is not False:
            argv.append(f"--{name.replace('_', '-')}={value}")
    return argv


def log_events(client: Client) -> None:
    """Log every event of every job, with the fields that all lines about a job have."""
    names: list[str] = []
    client.on("start")(lambda worker: names.append(worker.name))
    client.on("*")(lambda event: _log_event(event, names[-1] if names else ""))


def _log_event(event: Event, worker: str) -> None:
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
    job = {"job_id": event.job_id, "job_name": event.name, "queue": event.queue, "attempt": event.attempt}
    logging.getLogger("jobmill").debug("%s", line, extra={**job, "worker": worker})
