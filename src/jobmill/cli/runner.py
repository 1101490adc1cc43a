"""How every command runs: its store opened and closed, errors told in one line, exit codes that mean something."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from jobmill import errors
from jobmill.cli.output import drop_output

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.store import Store

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

FAILED, WRONG, AWAY, INTERRUPTED = 1, 2, 3, 130

#: What a group without a command raises since click 8.2, with its whole help as the message.
NO_COMMAND: tuple[type[click.UsageError], ...] = tuple(
    kind for kind in [getattr(click.exceptions, "NoArgsIsHelpError", None)] if kind
)

#: Below this nobody misses a sign of life.
PATIENCE_S = 0.5


class Failure(click.ClickException):
    """Ends a command with one line on stderr."""

    exit_code = FAILED


class Unusable(Failure):
    """Something on the command line cannot be used."""

    exit_code = WRONG


class Shell(click.Group):
    """The outermost group: what a command raises becomes one line and an exit code."""

    def main(self, args: Any = None, prog_name: str | None = None, *_: Any, **extra: Any) -> Any:
        """Run the command that the arguments name, and exit."""
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
            code = _tell(error)
        sys.exit(code)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; whoever reads what it prints may have seen enough: `jobmill jobs list | head`."""
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            drop_output()
            return 0
        return answer

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which somebody new needs them."""
        return list(self.commands)


def _tell(error: Exception) -> int:
    """Say what went wrong in one line; the exit code for it."""
    if os.environ.get("JOBMILL_DEBUG", "") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    message, code = _explained(error)
    with contextlib.suppress(OSError):
        click.echo("jobmill: " + " ".join(message.split()), err=True)
    return code


def _explained(error: Exception) -> tuple[str, int]:
    if isinstance(error, click.UsageError):
        # Shown with the help of which command to turn to, not with a usage line of its own.
        command = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        return error.format_message().rstrip(".") + command, WRONG
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
    if isinstance(error, errors.InvalidValue | errors.MissingExtra):
        return str(error), WRONG
    if isinstance(error, errors.StoreUnavailable):
        return str(error), AWAY
    if isinstance(error, errors.JobmillError | OSError):
        return str(error), FAILED
    return f"unexpected {type(error).__name__}: {error} (JOBMILL_DEBUG=1 shows where)", FAILED


def url_option(command: F) -> F:
    """--url: which store."""
    return click.option(
        "--url", envvar="JOBMILL_URL", metavar="URL", help="The store; JOBMILL_URL, else sqlite:///jobmill.db."
    )(command)


def json_option(command: F) -> F:
    """--json: for programs."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document for programs.")(command)


def run(url: str | None, work: Callable[[Client], Awaitable[T]], *, creates: bool = False) -> T:
    """Do one thing with a store and close it; only what `creates` may make a database where there is none."""
    import asyncio

    return asyncio.run(_with_client(url, work, creates))


async def _with_client(url: str | None, work: Callable[[Client], Awaitable[T]], creates: bool) -> T:
    from jobmill.client.client import connect

    client = connect(url)
    _check_place(client.store, creates)
    try:
        return await work(client)
    finally:
        await client.close()


def _check_place(store: Store, creates: bool) -> None:
    if store.name == "memory":
        raise Unusable("a memory:// store lives inside one process, where no command can see it; use sqlite:///path")
    path = getattr(store, "path", None)
    if path is not None and not creates and not Path(path).exists():
        raise Failure(
            f"there is no database at {Path(path).absolute()}; enqueue, worker or migrate make one, --url names another"
        )


async def patiently(call: Awaitable[T], doing: str) -> T:
    """Await something; when it takes its time, a terminal shows that it goes on."""
    import asyncio

    task = asyncio.ensure_future(call)
    try:
        done, _ = await asyncio.wait([task], timeout=PATIENCE_S)
        if done or not sys.stderr.isatty():
            return await task
        from rich.console import Console

        with Console(stderr=True).status(doing):
            return await task
    finally:
        task.cancel()
