"""The command line: one module per command of `jobmill --help`.

The group imports the module of the command that is called. At the top, the modules import only click and each other.
Stores, rich and asyncio are imported when a command runs, so that `--help`, completion and usage errors answer at once.
"""

from __future__ import annotations

import click

from jobmill._version import __version__
from jobmill.cli.runner import HELP, MainGroup


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


__all__ = ["main"]
