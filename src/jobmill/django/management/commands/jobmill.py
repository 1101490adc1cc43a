"""`manage.py jobmill COMMAND`: the commands of `jobmill` on the store of TASKS; `worker` runs the Tasks."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from pathlib import Path
from typing import Any

import click
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from jobmill.cli import main
from jobmill.django.backend import BACKEND_VARIABLE, JobmillBackend, backends
from jobmill.django.discovery import find_tasks
from jobmill.django.interface import task_backends

TARGET = "jobmill.django.worker:jobs"
#: Commands that know the Tasks; all others need only the URL of the store.
_WITH_HANDLERS = ("worker", "dashboard")


class Command(BaseCommand):
    """Run a command of Jobmill."""

    help = (
        "Run a command of Jobmill on the store of TASKS: worker, migrate, jobs, queues, dashboard, doctor and others."
    )
    requires_system_checks: list[str] = []  # noqa: RUF012 - `migrate` must run where checks complain

    def run_from_argv(self, argv: list[str]) -> None:
        """Give everything but the options of Django, and --backend, to the command line of Jobmill."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--settings")
        parser.add_argument("--pythonpath")
        parser.add_argument("--backend", default="default")
        parser.add_argument("--skip-checks", action="store_true")
        options, rest = parser.parse_known_args(argv[2:])
        try:
            self._run(rest, options.backend, options.skip_checks, f"{Path(argv[0]).name} {argv[1]}")
        except CommandError as error:
            self.stderr.write(f"{type(error).__name__}: {error}")
            sys.exit(error.returncode)
        finally:
            connections.close_all()

    def add_arguments(self, parser: Any) -> None:
        """For `call_command("jobmill", "migrate")`."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER)
        parser.add_argument("--backend", default="default")

    def handle(self, *_: Any, arguments: list[str], backend: str, skip_checks: bool = True, **__: Any) -> None:
        """Run a command; CommandError if it fails."""
        if arguments[:1] == ["worker"]:
            # The program that calls this is not ours to fork.
            arguments = [*arguments, "--spawn"]
        try:
            self._run(arguments, backend, skip_checks, "manage.py jobmill")
        except SystemExit as end:
            if end.code not in (None, 0):
                raise CommandError(f"jobmill {' '.join(arguments)} failed", returncode=int(end.code)) from None

    def _run(self, arguments: list[str], alias: str, skip_checks: bool, name: str) -> None:
        if alias not in task_backends.settings or not isinstance(task_backends[alias], JobmillBackend):
            known = ", ".join(one.alias for one in backends()) or "none"
            raise CommandError(f"TASKS[{alias!r}] is not a backend of Jobmill; these are: {known}")
        backend = task_backends[alias]
        command, *rest = arguments or ["--help"]
        if {"-h", "--help"} & {command, *rest}:
            self.stdout.write(f"On the store of TASKS[{alias!r}]; --backend NAME chooses another entry of TASKS.")
            if command in _WITH_HANDLERS:
                self.stdout.write("Here leave out MODULE:CLIENT and --url: the tasks are those of your apps.")
            self.stdout.write("")
        elif command in _WITH_HANDLERS:
            if command == "worker":
                if not skip_checks:
                    self.check()
                rest = _with_queues(rest, backend.queue_names)
                self._warn_of_queues(rest, backend)
            rest = [TARGET, *rest]
        elif command == "enqueue":
            rest = _as_task(rest, backend)
        os.environ["JOBMILL_URL"] = backend.url
        os.environ[BACKEND_VARIABLE] = alias
        # Where `worker --processes` starts others, they find the modules of the project as this process does.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (sys.path[0], os.environ.get("PYTHONPATH"))))
        main([command, *rest], prog_name=name + backend.backend_argument)

    def _warn_of_queues(self, arguments: list[str], backend: JobmillBackend) -> None:
        """Tasks of this entry of TASKS are never in another queue, so a worker for that queue has nothing to run."""
        for queue in _params("worker", [TARGET, *arguments]).get("queues") or ():
            if backend.queues and queue not in backend.queues:
                others = [one for one in backends() if queue in one.queues]
                advice = f"; add{others[0].backend_argument}" if others else ""
                self.stderr.write(f"QUEUES of TASKS[{backend.alias!r}] does not have the queue {queue!r}{advice}")


def _params(command: str, arguments: list[str]) -> dict[str, Any]:
    """The options and arguments of a command line, as the command reads them."""
    found = main.get_command(click.Context(main), command)
    return found.make_context(command, list(arguments), resilient_parsing=True).params if found else {}


def _as_task(arguments: list[str], backend: JobmillBackend) -> list[str]:
    """With the queue and the priority of the task that the command line names, unless it has others."""
    given = _params("enqueue", arguments)
    name, tasks = given.get("name"), find_tasks()
    if name is None:
        return arguments
    if name not in tasks:
        near = difflib.get_close_matches(name, tasks, 1)
        advice = f"; the nearest path is {near[0]!r}" if near else ""
        raise CommandError(f"{name!r} is not the path of a Task{advice}")
    own = {"queue": tasks[name].queue_name, "priority": backend.to_priority(tasks[name].priority)}
    return [*(f"--{option}={value}" for option, value in own.items() if given.get(option) is None), *arguments]


def _with_queues(arguments: list[str], queues: tuple[str, ...]) -> list[str]:
    """With the queues of the settings, unless the command line names some."""
    if any(one == "--queue" or one.startswith("--queue=") for one in arguments):
        return arguments
    return [*arguments, *(f"--queue={queue}" for queue in queues)]
