"""Runs commands: opens and closes the store, logs, prints errors in one line, and sets the exit code."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import os
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from jobmill import errors
from jobmill.cli.output import drop_output

if TYPE_CHECKING:
    import asyncio

    from jobmill.client.client import Client
    from jobmill.store import Store

T = TypeVar("T")

FAILED, WRONG, UNAVAILABLE, INTERRUPTED = 1, 2, 3, 130

HELP = ["-h", "--help"]

#: The commands, and the modules that define them, in the order in which a new user needs them.
MODULES = {
    "demo": "demo",
    "worker": "worker",
    "health": "health",
    "http": "http",
    "dashboard": "dashboard",
    "crontab": "crontab",
    "enqueue": "enqueue",
    "status": "status",
    "jobs": "jobs",
    "queues": "queues",
    "flows": "flows",
    "workers": "workers",
    "events": "events",
    "audit": "audit",
    "mark": "audit",
    "metrics": "metrics",
    "doctor": "doctor",
    "fsck": "doctor",
    "migrate": "migrate",
    "import": "import_jobs",
}

#: Since click 8.2, a group without a command raises this, with its help as the message.
NO_COMMAND: tuple[type[click.UsageError], ...] = tuple(
    kind for kind in [getattr(click.exceptions, "NoArgsIsHelpError", None)] if kind
)

#: A spinner appears after this time.
SPINNER_AFTER_S = 0.5


class CommandFailed(click.ClickException):
    """Ends a command with one line on stderr."""

    exit_code = FAILED


class Unusable(CommandFailed):
    """A value on the command line cannot be used."""

    exit_code = WRONG


class MainGroup(click.Group):
    """The outermost group. It imports a command when it is called, and turns its error into a line and an exit code."""

    def main(self, args: Any = None, prog_name: str | None = None, *_: Any, **extra: Any) -> Any:
        """Run the command of the arguments, and exit."""
        extra["standalone_mode"] = False
        try:
            answer = super().main(args, prog_name or self.name, **extra)
            code = answer if isinstance(answer, int) else 0
        except (click.Abort, KeyboardInterrupt):
            code = INTERRUPTED
        except NO_COMMAND as error:
            click.echo(error.format_message(), err=True)
            code = WRONG
        except Exception as error:
            code = _print_error(error, prog_name)
        sys.exit(code)

    def get_help(self, ctx: click.Context) -> str:
        """The help. Another program that has these commands has its own setting for the URL."""
        text = super().get_help(ctx)
        return text if ctx.info_name == self.name else text.replace("JOBMILL_URL is the URL of the store. ", "")

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. The reader of its output may close the pipe: `jobmill jobs list | head`."""
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            drop_output()
            return 0
        return answer

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands, in the order in which a new user needs them."""
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name."""
        if cmd_name in MODULES and cmd_name not in self.commands:
            module = importlib.import_module(f"jobmill.cli.{MODULES[cmd_name]}")
            command: click.Command = next(
                one for one in vars(module).values() if isinstance(one, click.Command) and one.name == cmd_name
            )
            # click keeps the help option of the first call of a command, which may be without this group.
            for one in (command, *(command.commands.values() if isinstance(command, click.Group) else ())):
                one.context_settings.setdefault("help_option_names", HELP)
            self.add_command(command)
        return super().get_command(ctx, cmd_name)


def as_called(text: str, program: str | None = None) -> str:
    """A text whose commands begin as the user called this one: `manage.py jobmill migrate` in Django."""
    context = click.get_current_context(silent=True)
    program = program or (None if context is None else context.find_root().info_name)
    if program in (None, "jobmill"):
        return text
    text = text.replace("jobmill worker app.py:jobs", "jobmill worker")
    return re.sub(rf"\bjobmill (?=(?:{'|'.join(MODULES)})\b)", lambda _: f"{program} ", text)


def _print_error(error: Exception, program: str | None) -> int:
    """Print an error in one line; returns the exit code."""
    if os.environ.get("JOBMILL_DEBUG", "") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    message, code = _explained(error)
    message = as_called(message, program)
    with contextlib.suppress(OSError):
        click.echo("jobmill: " + " ".join(message.split()), err=True)
    return code


def _explained(error: Exception) -> tuple[str, int]:
    if isinstance(error, click.UsageError):
        # Names the command whose help to read, instead of a usage line.
        command = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        return error.format_message().rstrip(".") + command, WRONG
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
    if isinstance(error, errors.InvalidValue | errors.MissingExtra):
        return str(error), WRONG
    if isinstance(error, errors.StoreUnavailable):
        return str(error), UNAVAILABLE
    if isinstance(error, errors.JobmillError | OSError):
        return str(error), FAILED
    return f"unexpected {type(error).__name__}: {error} (JOBMILL_DEBUG=1 shows where)", FAILED


def run(url: str | None, work: Callable[[Client], Awaitable[T]], *, creates: bool = False) -> T:
    """Call `work` with a client, and close it. Only with `creates` may it create a database file."""
    import asyncio

    return asyncio.run(_with_client(url, work, creates))


async def _with_client(url: str | None, work: Callable[[Client], Awaitable[T]], creates: bool) -> T:
    from jobmill.client.client import Client, connect

    # A framework that runs this command gives the client of its application.
    client = click.get_current_context().find_object(Client)
    if client is None:
        client = connect(url, who=user())
        # At its end, Python searches all objects for garbage several times: 10 of the 90 ms of `jobmill enqueue`.
        atexit.register(gc.freeze)
    check_store(client.store, creates)
    try:
        return await work(client)
    finally:
        await client.close()


def user() -> str:
    """The name of the person, for the audit log."""
    import getpass

    from jobmill.core.limits import storable

    try:
        return storable(getpass.getuser()).strip() or "unknown"
    except (OSError, KeyError, ImportError):
        return "unknown"


def check_store(store: Store, creates: bool) -> None:
    """Refuse a store that lives in another process, and a file that does not exist and may not be created."""
    if store.name == "memory":
        raise Unusable("a memory:// store exists inside one process, and commands cannot reach it; use sqlite:///path")
    path = getattr(store, "path", None)
    if path is not None and not creates and not Path(path).exists():
        advice = "the commands enqueue, worker and migrate create it; --url selects another database"
        raise CommandFailed(f"there is no database at {Path(path).absolute()}; {advice}")


async def with_spinner(call: Awaitable[T], doing: str) -> T:
    """Await a call. If it takes long, a terminal shows a spinner."""
    import asyncio

    task = asyncio.ensure_future(call)
    try:
        done, _ = await asyncio.wait([task], timeout=SPINNER_AFTER_S)
        if done or not sys.stderr.isatty():
            return await task
        from rich.console import Console

        with Console(stderr=True).status(doing):
            return await task
    finally:
        task.cancel()


# ---------------------------------------------------------------------------------------------------- long commands


def run_forever(main: Coroutine[Any, Any, T]) -> T:
    """Run a command that ends only after a signal, or at a limit."""
    import asyncio

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


@functools.cache  # so that a forked process need not search for the module again
def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop factory of uvloop, if the extra `uvloop` is installed; otherwise None."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
