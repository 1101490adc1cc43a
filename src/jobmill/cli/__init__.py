"""The command line: one module per command of `jobmill --help`.

At the top, the modules import only click and each other. Stores, rich and asyncio are imported when a command runs, so
that `--help`, completion and usage errors answer at once.
"""

from __future__ import annotations

import click

from jobmill._version import __version__
from jobmill.cli import (
    audit,
    crontab,
    dashboard,
    demo,
    doctor,
    enqueue,
    events,
    flows,
    health,
    http,
    import_jobs,
    jobs,
    metrics,
    migrate,
    queues,
    status,
    worker,
    workers,
)
from jobmill.cli.runner import MainGroup

HELP = ["-h", "--help"]


@click.group("jobmill", cls=MainGroup, context_settings={"help_option_names": HELP})
@click.version_option(__version__, prog_name="jobmill", message="%(prog)s %(version)s")
def main() -> None:
    """Background jobs in the database that you already have.

    \b
    Exit codes: 0 success; 1 failed, refused or not found; 2 wrong usage or an
    invalid value; 3 the store is unavailable or busy; 4 a worker reached
    --max-jobs or --max-memory; 130 interrupted.
    JOBMILL_URL is the URL of the store. JOBMILL_DEBUG=1 shows tracebacks.
    """


for command in (
    demo.demo,
    worker.worker,
    health.health,
    http.http,
    dashboard.dashboard,
    crontab.crontab,
    enqueue.enqueue,
    status.status,
    jobs.jobs,
    queues.queues,
    flows.flows,
    workers.workers,
    events.events,
    audit.audit,
    audit.mark,
    metrics.metrics,
    doctor.doctor,
    doctor.fsck,
    migrate.migrate,
    import_jobs.import_group,
):
    # click keeps the help option of the first call of a command, which may be without this group.
    for one in (command, *(command.commands.values() if isinstance(command, click.Group) else ())):
        one.context_settings.setdefault("help_option_names", HELP)
    main.add_command(command)

__all__ = ["main"]
