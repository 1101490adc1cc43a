"""`jobmill jobs cancel, requeue, reschedule, reprioritize, hold, release, remove`: change jobs by id or by filter."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from jobmill.cli.output import plural, print_json
from jobmill.cli.params import duration, filter_options, given_options, instant, options, store_options
from jobmill.cli.queue_settings import unknown_queue
from jobmill.cli.runner import FAILED, CommandFailed, run, with_spinner

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.core.changes import Changed

#: The options of a change; all others select jobs.
CHANGE_OPTIONS = ("spread", "keep_steps", "delay", "due_at", "priority", "note")
#: A change needs one of its options, except of these.
OPTIONAL = ("note",)


class Verb(NamedTuple):
    """A change, which is a method of the client, and how messages name it."""

    name: str
    doing: str
    done: str


SELECT = 'Select the jobs by IDS ("-" reads ids from stdin), by filters, or with --all.'


def _command(verb: Verb, what: str, *own: Callable[[Any], Any]) -> click.Command:
    """A command that changes jobs by IDS, filters or --all. `own` are the options of this change."""
    shared = options(
        click.argument("ids", nargs=-1),
        filter_options,
        click.option("--all", "everything", is_flag=True, help="Select all jobs that can be changed this way."),
        click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation."),
        store_options,
    )

    @click.command(verb.name, help=f"{what}.\n\n{SELECT}")
    @options(*own, shared)
    def command(ids: Sequence[str], everything: bool, yes: bool, url: str | None, as_json: bool, **given: Any) -> None:
        change: dict[str, Any] = {name: given.pop(name) for name in CHANGE_OPTIONS if name in given}
        if change.keys() - OPTIONAL and not given_options(change):
            flags = " or ".join(f"--{name.replace('_', '-')}" for name in change)
            raise click.UsageError(f"give {flags}", click.get_current_context())
        which, filters = _ids(ids), given_options(given)
        _check_which(which, filters, everything)
        if which is None and not yes and _can_ask():
            _confirm(url, verb, filters)

        async def work(client: Client) -> tuple[Changed, str | None]:
            selected: dict[str, Any] = {"which": which} if which is not None else {"all": everything, **filters}
            changing: Awaitable[Changed] = getattr(client, verb.name)(**selected, **change)
            changed = await with_spinner(changing, f"{verb.doing} jobs")
            asks = not changed.ids and "queue" in filters
            return changed, await unknown_queue(client, filters["queue"]) if asks else None

        changed, unknown = run(url, work)
        if unknown is not None:
            click.echo(f"jobmill: {unknown}", err=True)
        _answer(verb, changed, which, as_json)

    return command


cancel = _command(Verb("cancel", "cancelling", "cancelled"), "Cancel waiting and running jobs")
requeue = _command(
    Verb("requeue", "requeueing", "requeued"),
    "Run final jobs again",
    click.option(
        "--spread", type=duration, default=0.0, help="Spread the due times evenly over this period (default 0)."
    ),
    click.option("--keep-steps", is_flag=True, help="Do not take the recorded steps of durable handlers again."),
)
reschedule = _command(
    Verb("reschedule", "rescheduling", "rescheduled"),
    "Change the due time of waiting jobs",
    click.option("--delay", type=duration, help="Run the jobs after this time."),
    click.option("--due-at", type=instant, help="Run the jobs at this time."),
)
reprioritize = _command(
    Verb("reprioritize", "reprioritizing", "reprioritized"),
    "Change the priority of waiting jobs",
    click.option("--priority", type=int, required=True, help="New priority; 0 runs first, larger numbers wait longer."),
)
hold = _command(
    Verb("hold", "holding", "held"),
    "Hold waiting jobs: no worker claims them until they are released",
    click.option("--note", metavar="TEXT", help="Why the jobs are held."),
)
release = _command(Verb("release", "releasing", "released"), "Release held jobs")
remove = _command(Verb("remove", "removing", "removed"), "Remove jobs that are not running")


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


def _confirm(url: str | None, verb: Verb, filters: dict[str, Any]) -> None:
    """Ask outside of an event loop: inside one, the first Ctrl-C would not end the question."""
    from jobmill.core import changes

    allowed = changes.CHANGES_FROM[getattr(changes, verb.name.capitalize())]
    counts = run(url, lambda client: with_spinner(client.count(**filters), "counting jobs"))
    count = sum(one.count for one in counts if one.state in allowed)
    if count > 1 and not click.confirm(f"{verb.name} {plural(count)}?", err=True):
        raise CommandFailed(f"no jobs {verb.done}")


def _answer(verb: Verb, changed: Changed, ids: list[str] | None, as_json: bool) -> None:
    if as_json:
        print_json({"changed": changed.ids, "refused": changed.refused})
    elif ids is not None and len(changed.ids) == 1:
        click.echo(f"{changed.ids[0]} {verb.done}")
    elif changed.ids or not changed.refused:
        click.echo(f"{plural(len(changed.ids))} {verb.done}")
    for id, why in changed.refused.items():
        click.echo(f"jobmill: {id} not {verb.done}: {why}", err=True)
    if changed.refused:
        click.get_current_context().exit(FAILED)
