"""The commands of `jobmill` inside the command line of a framework, with the client of its application."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from jobmill.client.client import Client

#: What click needs so that everything after the name of the command goes to `jobmill`, also --help.
SETTINGS = {"ignore_unknown_options": True, "help_option_names": []}
#: Commands whose first argument is the module of a client.
_WITH_TARGET = ("worker", "dashboard", "http")


def run_jobmill(jobs: Client, arguments: Sequence[str], *, target: str, name: str) -> NoReturn:
    """Run `jobmill *arguments`, and exit. Other processes find the client of the application under `target`."""
    from jobmill.cli import main
    from jobmill.cli.runner import user

    command, *rest = arguments or ["--help"]
    if command in _WITH_TARGET and not {"-h", "--help"} & set(rest):
        rest = [target, *rest]
    jobs.who = user()
    # `worker --processes` starts processes that must find the modules of the application as this one does.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (*sys.path[:1], os.environ.get("PYTHONPATH"))))
    main.main([command, *rest], name, obj=jobs)
    raise AssertionError("a command always exits")
