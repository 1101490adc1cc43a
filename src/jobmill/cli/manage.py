"""`jobmill jobs cancel, requeue, reschedule, reprioritize, remove`: change one job, several, or all that match."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from jobmill.cli.output import plural, print_json
from jobmill.cli.params import duration, filter_options, given_filters, instant
from jobmill.cli.runner import FAILED, Failure, json_option, patiently, run, url_option

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.core.changes import Changed

F = TypeVar("F", bound=Callable[..., Any])

#: How each verb is said when it is going on, and when it is done.
WORDS = {
    "cancel": ("cancelling", "cancelled"),
    "requeue": ("requeueing", "requeued"),
    "reschedule": ("rescheduling", "rescheduled"),
    "reprioritize": ("reprioritising", "reprioritised"),
    "remove": ("removing", "removed"),
}


def which_options(command: F) -> F:
    """IDS, filters or --all; and the common rest."""
    command = json_option(url_option(command))
    command = click.option("--yes", "-y", is_flag=True, help="Do not ask.")(command)
    command = click.option("--all", "everything", is_flag=True, help="All jobs that allow it.")(command)
    return click.argument("ids", nargs=-1)(filter_options(command))


@click.command()
@which_options
def cancel(**given: Any) -> None:
    """Cancel waiting and running jobs: IDS ("-": from stdin), filters or --all."""
    _act("cancel", given)


@click.command()
@click.option("--spread", type=duration, default=0.0, metavar="DURATION", help="Due evenly over this period.")
@which_options
def requeue(spread: Any, **given: Any) -> None:
    """Have final jobs run again: IDS ("-": from stdin), filters or --all."""
    _act("requeue", given, spread=spread)


@click.command()
@click.option("--delay", type=duration, metavar="DURATION", help="Due so long from now.")
@click.option("--due-at", type=instant, metavar="INSTANT", help="Due then.")
@which_options
def reschedule(delay: Any, due_at: datetime | None, **given: Any) -> None:
    """Give waiting jobs another due time: IDS ("-": from stdin), filters or --all."""
    if delay is None and due_at is None:
        raise click.UsageError("say --delay or --due-at", click.get_current_context())
    _act("reschedule", given, delay=delay, due_at=due_at)


@click.command()
@click.option("--priority", type=int, required=True, help="0 runs first, larger waits longer.")
@which_options
def reprioritize(priority: int, **given: Any) -> None:
    """Give waiting jobs another priority: IDS ("-": from stdin), filters or --all."""
    _act("reprioritize", given, priority=priority)


@click.command()
@which_options
def remove(**given: Any) -> None:
    """Remove jobs that are not running: IDS ("-": from stdin), filters or --all."""
    _act("remove", given)


# ---------------------------------------------------------------------------------------------------- doing it


def _act(verb: str, given: dict[str, Any], **options: Any) -> None:
    ids, filters = _ids(given["ids"]), given_filters(given)
    _check_which(ids, filters, given["everything"])
    if ids is None and not given["yes"] and _is_asked():
        _confirm(given["url"], verb, filters)

    async def work(client: Client) -> Changed:
        which: dict[str, Any] = {"which": ids} if ids is not None else {"all": given["everything"], **filters}
        change: Awaitable[Changed] = getattr(client, verb)(**which, **options)
        return await patiently(change, f"{WORDS[verb][0]} jobs")

    _answer(verb, run(given["url"], work), ids, given["as_json"])


def _ids(given: Sequence[str]) -> list[str] | None:
    if list(given) == ["-"]:
        return sys.stdin.read().split()
    return list(dict.fromkeys(given)) or None


def _check_which(ids: list[str] | None, filters: dict[str, Any], everything: bool) -> None:
    said = [ids is not None, bool(filters), everything]
    if sum(said) == 1:
        return
    wrong = (
        "say which jobs: ids, filters or --all" if not any(said) else "say ids, or filters, or --all: only one of them"
    )
    raise click.UsageError(wrong, click.get_current_context())


def _is_asked() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty()


def _confirm(url: str | None, verb: str, filters: dict[str, Any]) -> None:
    """Ask, while no event loop runs: inside one, the first Ctrl-C would not end the question."""
    from jobmill.core import changes

    allowed = changes.CHANGES_FROM[getattr(changes, verb.capitalize())]
    counts = run(url, lambda client: patiently(client.count(**filters), "counting jobs"))
    several = sum(one.count for one in counts if one.state in allowed)
    if several > 1 and not click.confirm(f"{verb} {plural(several)}?", err=True):
        raise Failure(f"nothing {WORDS[verb][1]}")


def _answer(verb: str, changed: Changed, ids: list[str] | None, as_json: bool) -> None:
    done = WORDS[verb][1]
    if as_json:
        print_json({"changed": changed.ids, "refused": changed.refused})
    elif ids is not None and len(changed.ids) == 1:
        click.echo(f"{changed.ids[0]} {done}")
    elif changed.ids or not changed.refused:
        click.echo(f"{plural(len(changed.ids))} {done}")
    for id, why in changed.refused.items():
        click.echo(f"jobmill: {id} not {done}: {why}", err=True)
    if changed.refused:
        click.get_current_context().exit(FAILED)
