"""The commands: `jobmill --help`.

Modules here import nothing but click and each other at the top. Stores, rich and asyncio come in when a command runs,
so that `--help`, completion and a mistyped option answer at once.
"""

from __future__ import annotations

import click

from jobmill._version import __version__
from jobmill.cli.demo import demo
from jobmill.cli.enqueue import enqueue
from jobmill.cli.events import events
from jobmill.cli.jobs import jobs
from jobmill.cli.migrate import migrate
from jobmill.cli.queues import queues
from jobmill.cli.shell import Shell
from jobmill.cli.worker import worker


@click.group(cls=Shell, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="jobmill", message="%(prog)s %(version)s")
def main() -> None:
    """Jobs on the database that you already have.

    \b
    Exit codes: 0 done; 1 failed, refused or not found; 2 wrong usage or an
    invalid value; 3 the store is away or busy; 130 interrupted.
    JOBMILL_URL names the store, JOBMILL_DEBUG=1 shows where errors come from.
    """


for command in (demo, worker, enqueue, jobs, queues, events, migrate):
    main.add_command(command)

__all__ = ["main"]
