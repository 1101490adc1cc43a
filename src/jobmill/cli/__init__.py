"""The commands: `jobmill --help`.

Modules here import nothing but click and each other at the top. Stores, rich and asyncio come in when a command runs,
so that `--help`, completion and a mistyped option answer at once.
"""

from __future__ import annotations

import click

from jobmill._version import __version__
from jobmill.cli import crontab, demo, enqueue, events, http, jobs, migrate, queues, worker
from jobmill.cli.runner import Shell


@click.group("jobmill", cls=Shell, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="jobmill", message="%(prog)s %(version)s")
def main() -> None:
    """Jobs on the database that you already have.

    \b
    Exit codes: 0 done; 1 failed, refused or not found; 2 wrong usage or an
    invalid value; 3 the store is away or busy; 130 interrupted.
    JOBMILL_URL names the store, JOBMILL_DEBUG=1 shows where errors come from.
    """


for command in (
    demo.demo,
    worker.worker,
    http.http,
    crontab.crontab,
    enqueue.enqueue,
    jobs.jobs,
    queues.queues,
    events.events,
    migrate.migrate,
):
    main.add_command(command)

__all__ = ["main"]
