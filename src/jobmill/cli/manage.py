"""`jobmill jobs cancel, requeue, reschedule, reprioritize, remove`: change jobs by id or by filter."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from jobmill.cli.output import plural, print_json
from jobmill.cli.params import duration, filter_options, given_options, instant, options, store_options
from jobmill.cli.runner import FAILED, CommandFailed, run, with_spinner

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.core.changes import Changed

#: Present and past participle of each verb.
WORDS = {
    "cancel": ("cancelling", "cancelled"),
    "requeue": ("requeueing", "requeued"),
    "reschedule": ("rescheduling", "rescheduled"),
    "reprioritize": ("reprioritizing", "reprioritized"),
    "remove": ("removing", "removed"),
}


#: IDS, filters or --all, and the options that these commands share.
which_options = options(
    click.argument("ids", nargs=-1),
    filter_options,
    click.option("--all", "everything", is_flag=True, help="Select all jobs that can be changed this way."),
    click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation."),
    store_options,
)


@click.command()
@which_options
def cancel(**given: Any) -> None:
    """Cancel waiting and running jobs, selected by IDS ("-" reads them from stdin), filters or --all."""
    _change("cancel", {}, **given)


@click.command()
@click.option("--spread", type=duration, default=0.0, help="Spread the due times evenly over this period (default 0).")
@which_options
def requeue(spread: Any, **given: Any) -> None:
    """Run final jobs again, selected by IDS ("-" reads them from stdin), filters or --all."""
    _change("requeue", {"spread": spread}, **given)


@click.command()
@click.option("--delay", type=duration, help="Run the jobs after this time.")
@click.option("--due-at", type=instant, help="Run the jobs at this time.")
@which_options
def reschedule(delay: Any, due_at: datetime | None, **given: Any) -> None:
    """Change the due time of waiting jobs, selected by IDS ("-" reads them from stdin), filters or --all."""
    if delay is None and due_at is None:
        raise click.UsageError("give --delay or --due-at", click.get_current_context())
    _change("reschedule", {"delay": delay, "due_at": due_at}, **given)


@click.command()
@click.option("--priority", type=int, required=True, help="New priority; 0 runs first, larger numbers wait longer.")
@which_options
def reprioritize(priority: int, **given: Any) -> None:
    """Change the priority of waiting jobs, selected by IDS ("-" reads them from stdin), filters or --all."""
    _change("reprioritize", {"priority": priority}, **given)


@click.command()
@which_options
def remove(**given: Any) -> None:
    """Remove jobs that are not running, selected by IDS ("-" reads them from stdin), filters or --all."""
    _change("remove", {}, **given)


# ---------------------------------------------------------------------------------------------------- change


def _change(
    verb: str,
    change: dict[str, Any],
    *,
    ids: Sequence[str],
    everything: bool,
    yes: bool,
    url: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    which, filters = _ids(ids), given_options(given)
    _check_which(which, filters, everything)
    if which is None and not yes and _can_ask():
        _confirm(url, verb, filters)

    async def work(client: Client) -> Changed:
        selected: dict[str, Any] = {"which": which} if which is not None else {"all": everything, **filters}
        changing: Awaitable[Changed] = getattr(client, verb)(**selected, **change)
        return await with_spinner(changing, f"{WORDS[verb][0]} jobs")

    _answer(verb, run(url, work), which, as_json)


def _ids(given: Sequence[str]) -> list[str] | None:
    if list(given) == ["-"]:
        return sys.stdin.read().split()
    return list(dict.fromkeys(given)) or None


def _check_which(ids: list[str] | None, filters: dict[str, Any], everything: bool) -> None:
    given = [ids is not None, bool(filters), everything]
    if sum(given) == 1:
        return
    wrong = "select jobs by ids, by filters or with --all" + ("; give only one of the three" if any(given) else "")
    raise click.UsageError(wrong, click.get_current_context())


def _can_ask() -> bool:
    """Whether a person can answer a question."""
    return sys.stdin.isatty()


def _confirm(url: str | None, verb: str, filters: dict[str, Any]) -> None:
    """Ask outside of an event loop: inside one, the first Ctrl-C would not end the question."""
    from jobmill.core import changes

    allowed = changes.CHANGES_FROM[getattr(changes, verb.capitalize())]
    counts = run(url, lambda client: with_spinner(client.count(**filters), "counting jobs"))
    count = sum(one.count for one in counts if one.state in allowed)
    if count > 1 and not click.confirm(f"{verb} {plural(count)}?", err=True):
        raise CommandFailed(f"no jobs {WORDS[verb][1]}")


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
