"""`jobmill queues lanes` and `jobmill queues lane`: list the lanes of a queue, and change their limits."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from jobmill.cli.output import cell, iso, make_table, print_json, print_rich, relative
from jobmill.cli.params import given_options, options, rate, store_options
from jobmill.cli.queue_settings import configure, lane_limits_text, pause_text, unknown_queue
from jobmill.cli.runner import run, with_spinner

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.core.queue_settings import LaneRule
    from jobmill.core.values import Lane

KINDS = ("running", "admitted", "ready", "later")

limit_options = options(
    click.option("--running", type=int, metavar="N", help="Run at most N jobs of a lane at once, over all workers."),
    click.option("--rate", type=rate, metavar="N/DURATION", help="Start at most N jobs of a lane per period."),
    click.option(
        "--strict/--no-strict",
        default=None,
        help="Let a job that waits for its next attempt block its lane; with --running 1, jobs end in their order.",
    ),
)
note_option = click.option("--note", metavar="TEXT", help="Why, for the audit log.")


@click.command()
@click.argument("name", metavar="QUEUE")
@limit_options
@click.option("--none", is_flag=True, help="Remove the rule; lanes keep limits of their own.")
@note_option
@click.option("--after", metavar="LANE", help="List the lanes after this one.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, help="Maximum number of lanes (default 50).")
@store_options
def lanes(
    name: str, none: bool, note: str | None, after: str | None, limit: int, url: str | None, as_json: bool, **given: Any
) -> None:
    """List the lanes of a queue, or set the limits of each of them.

    Limits replace the whole rule: a limit that you leave out is removed.
    `jobmill queues lane` gives one lane limits of its own.
    """
    rule = given_options(given)
    if none and rule:
        raise click.UsageError("--none cannot be combined with limits", click.get_current_context())
    if rule and not rule.keys() & {"running", "rate"}:
        raise click.UsageError("give the whole rule: --running or --rate as well", click.get_current_context())
    if rule.get("strict") and "running" not in rule:
        raise click.UsageError("--strict needs --running", click.get_current_context())
    if note is not None and not (none or rule):
        raise click.UsageError("--note needs a change: limits or --none", click.get_current_context())
    if none or rule:
        configure(name, url, as_json, lambda queue: queue.lanes(**({"running": None} | rule), note=note))
    else:
        _list(name, after, limit, url, as_json)


@click.command(short_help="Show one lane, limit it or pause it.")
@click.argument("name", metavar="QUEUE")
@click.argument("lane")
@limit_options
@click.option(
    "--default",
    is_flag=True,
    help="Remove the limits of this lane: the rule of the queue applies again, except for limits that are given here.",
)
@click.option("--pause", is_flag=True, help="Start no more jobs of this lane; running jobs continue.")
@click.option("--resume", is_flag=True, help="End the pause of this lane.")
@note_option
@store_options
def lane(
    name: str,
    lane: str,
    default: bool,
    pause: bool,
    resume: bool,
    note: str | None,
    url: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Show one lane of a queue, give it limits of its own, or pause it.

    A limit that is not given stays as it is.
    """
    own = given_options(given)
    if pause and resume:
        raise click.UsageError("--pause and --resume cannot be combined", click.get_current_context())
    if note is not None and not (default or own or pause):
        raise click.UsageError("--note needs a change: limits, --default or --pause", click.get_current_context())
    change = dict.fromkeys(("running", "rate", "strict")) | own if default else own

    async def work(client: Client) -> tuple[str | None, Lane, LaneRule | None, int]:
        from jobmill.core.values import Lane

        queue = client.queue(name)
        handle = queue.lane(lane, **change, note=note if change else None)
        if pause:
            await handle.pause(note=note)
        elif resume:
            await handle.resume()
        else:
            await handle
        found = await client.store.lanes(name, [lane]) or [Lane(queue=name, name=lane)]
        unknown = await unknown_queue(client, name)
        return unknown, found[0], (await queue.settings()).lanes, client.store.now()

    unknown, found, rule, now_ms = run(url, work)
    if as_json:
        print_json(_document(found, rule, now_ms))
    else:
        counts = ", ".join(f"{_count(found, kind)} {kind}" for kind in KINDS)
        parts = [_state(found, rule, now_ms), counts]
        click.echo(f"lane {lane} of queue {name} ({_limits(found, rule)}): {'; '.join(part for part in parts if part)}")
    if unknown is None and not any(getattr(found, kind) for kind in KINDS):
        unknown = f"the lane {lane} has no jobs now that run or wait for a slot"
    if unknown is not None:
        click.echo(f"jobmill: {unknown}", err=True)
    if _is_strict_without_limit(found, rule):
        click.echo("jobmill: strict has no effect without a limit: --running 1 keeps jobs in their order", err=True)


# ---------------------------------------------------------------------------------------------------- list


def _list(name: str, after: str | None, limit: int, url: str | None, as_json: bool) -> None:
    async def work(client: Client) -> tuple[list[Lane], LaneRule | None, int, str | None]:
        queue = client.queue(name)
        # One more, which says whether there is another page.
        found = await with_spinner(queue.list_lanes(after=after, limit=limit + 1), "counting jobs")
        unknown = None if found else await unknown_queue(client, name)
        return found, (await queue.settings()).lanes, client.store.now(), unknown

    import msgspec

    found, rule, now_ms, unknown = run(url, work)
    page = found[:limit]
    if as_json:
        print_json([_document(one, rule, now_ms) for one in page])
    elif page:
        print_rich(_table(page, rule, now_ms))
    else:
        text = "" if rule is None else f"; each lane: {lane_limits_text(msgspec.to_builtins(rule))}"
        click.echo(f"no lanes with live jobs or limits of their own{text}", err=True)
    if unknown is not None:
        click.echo(f"jobmill: {unknown}", err=True)
    if len(found) > limit:
        click.echo(f"next page: --after {shlex.quote(page[-1].name)}", err=True)


def _table(found: Sequence[Lane], rule: LaneRule | None, now_ms: int) -> Any:
    table = make_table(("lane", *KINDS, "limits", "state"), right=KINDS, cut=("lane", "state"))
    for one in found:
        counts = [_count(one, kind) for kind in KINDS]
        table.add_row(cell(one.name, "bold"), *counts, _limits(one, rule), cell(_state(one, rule, now_ms), "yellow"))
    return table


def _document(lane: Lane, rule: LaneRule | None, now_ms: int) -> dict[str, Any]:
    """A lane as JSON: its state, how many jobs it has, its own settings, and the limits that apply."""
    import msgspec

    from jobmill.core.lane_state import lane_word
    from jobmill.core.lanes import LaneLimits

    document = {
        "queue": lane.queue,
        "lane": lane.name,
        "state": lane_word(lane, rule, now_ms),
        **{kind: getattr(lane, kind) for kind in KINDS},
    }
    is_limited = lane.limited_until_ms is not None and lane.limited_until_ms > now_ms
    limited_until = iso(lane.limited_until_ms or 0) if is_limited else None
    limits = msgspec.to_builtins(LaneLimits.of(rule, lane.settings))
    return document | {"limits": limits, "own": msgspec.to_builtins(lane.settings), "limited_until": limited_until}


def _count(lane: Lane, kind: str) -> str:
    from jobmill.core.values import LANE_LIMIT

    count: int = getattr(lane, kind)
    return f"{count:,}" + ("+" if count >= LANE_LIMIT else "")


def _limits(lane: Lane, rule: LaneRule | None) -> str:
    """The limits that apply, and whether some of them are of this lane only."""
    import msgspec

    from jobmill.core.lanes import LaneLimits

    text = lane_limits_text(msgspec.to_builtins(LaneLimits.of(rule, lane.settings))) or "no limits"
    own = [field for field in ("running", "rate", "strict") if getattr(lane.settings, field) is not None]
    return f"{text}; own: {', '.join(own)}" if own else text


def _is_strict_without_limit(lane: Lane, rule: LaneRule | None) -> bool:
    """Whether a lane is strict, and has no limit that makes jobs wait for each other."""
    from jobmill.core.lanes import LaneLimits

    limits = LaneLimits.of(rule, lane.settings)
    return limits.strict and limits.running is None


def _state(lane: Lane, rule: LaneRule | None, now_ms: int) -> str:
    """Why jobs of the lane wait, if they do."""
    import msgspec

    from jobmill.core.lane_state import lane_word

    word = lane_word(lane, rule, now_ms)
    if lane.settings.pause is not None:
        return pause_text(msgspec.to_builtins(lane.settings.pause))
    if word == "limited":
        return f"rate reached, next {relative(lane.limited_until_ms or now_ms, now_ms)}"
    return "full" if word == "full" else ""
