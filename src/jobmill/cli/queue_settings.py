"""What `jobmill queues` says about the settings of queues and lanes, and how it changes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from jobmill.cli.output import print_json
from jobmill.cli.runner import run

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.client.queue import Queue
    from jobmill.core.values import QueueSettings


def configure(name: str, url: str | None, as_json: bool, change: Callable[[Queue], Awaitable[QueueSettings]]) -> None:
    """Change the settings of a queue, and print them."""
    import msgspec

    async def work(client: Client) -> tuple[str | None, QueueSettings]:
        return await unknown_queue(client, name), await change(client.queue(name))

    unknown, settings = run(url, work)
    document = {"queue": name, **msgspec.to_builtins(settings)}
    if as_json:
        print_json(document)
    else:
        click.echo(f"queue {name}: {settings_text(document) or 'no limits'}")
    if unknown is not None:
        click.echo(f"jobmill: {unknown}", err=True)


async def unknown_queue(client: Client, name: str) -> str | None:
    """A sentence if nothing knows this queue, because its name may be wrong. It is no error: jobs may come later."""
    from jobmill.core.nearest import nearest

    known = set(await client.queues())
    if name in known:
        return None
    known.update(queue for card in await client.workers() for queue in card.queues)
    if name in known:
        return None
    near = nearest(name, known)
    hint = f"; the nearest name is {near}" if near else ""
    return f"the queue {name} is not known: it has no jobs, and no worker claims from it{hint}"


def settings_text(queue: dict[str, Any]) -> str:
    """The settings that differ from the defaults; empty if none does."""
    parts = [pause_text(queue["pause"] or {})] if queue["paused"] else []
    if queue["rate_limit"] is not None:
        parts.append(_rate_text(queue["rate_limit"]))
    if queue["running_limit"] is not None:
        parts.append(f"running {queue['running_limit']:,}")
    if queue["lanes"] is not None:
        parts.append(f"each lane: {lane_limits_text(queue['lanes'])}")
    if queue["feed"]:
        parts.append("feed")
    return ", ".join(parts)


def _rate_text(rate: dict[str, Any]) -> str:
    from jobmill.core.durations import shown_ms

    return f"rate {rate['count']:,}/{shown_ms(rate['per_ms'])}"


def lane_limits_text(limits: dict[str, Any]) -> str:
    """The limits of a lane, or of each lane of a queue; empty if there are none."""
    parts = [] if limits.get("running") is None else [f"at most {limits['running']:,} at once"]
    if limits.get("rate") is not None:
        parts.append(_rate_text(limits["rate"]))
    if limits.get("strict"):
        parts.append("strict")
    return " and ".join(parts)


def pause_text(pause: dict[str, Any]) -> str:
    """Who paused a queue or a lane, until when and why; a program that gives no name is left out."""
    from jobmill.cli.output import iso

    by = f" by {pause['who']}" if pause.get("who") else ""
    until = f" until {iso(pause['until_ms'])}" if pause.get("until_ms") else ""
    note = f" ({pause['note']})" if pause.get("note") else ""
    return f"paused{by}{until}{note}"
