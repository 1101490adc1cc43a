"""What may stand on the command line: instants, durations, JSON, rates, and the filters that several commands share."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

# Written out, so that help and completion know them without importing the core; a test holds them to it.
STATES = ("waiting", "running", "succeeded", "failed", "cancelled")

_JSON = """expected JSON in quotes, such as '{"to": "ada@example.com"}'"""
_RELATIVE = re.compile(r"(?:in\s+(?P<ahead>\S+))|(?:(?P<back>\S+)\s+ago)")


def duration(text: str) -> float | str:
    """Seconds as a number, or a text such as 10m, which the library checks."""
    try:
        return float(text)
    except ValueError:
        return text


def instant(text: str) -> datetime:
    """ISO 8601 (without an offset: the local zone), "now", "in 5m" or "7d ago", as an aware datetime."""
    said = text.strip()
    try:
        if said == "now":
            return _now()
        if match := _RELATIVE.fullmatch(said):
            return _now() + _timedelta(match["ahead"]) if match["ahead"] else _now() - _timedelta(match["back"])
        return datetime.fromisoformat(said).astimezone()
    except (ValueError, OverflowError):
        expected = 'expected an instant such as 2026-01-31T09:00+01:00, "in 5m" or "7d ago"'
        raise click.BadParameter(f"{expected}, got {text!r}") from None


def _now() -> datetime:
    return datetime.now().astimezone()


def _timedelta(text: str) -> timedelta:
    from jobmill.core.durations import to_ms

    return timedelta(milliseconds=to_ms(text, "instant"))


def rate(text: str) -> tuple[int, str]:
    """How many in how long: 100/1s, or 100/s."""
    count, _, per = text.partition("/")
    window = per.strip()
    if not count.strip().isdecimal() or not window:
        raise click.BadParameter(f"expected a rate such as 100/1s, got {text!r}")
    return int(count), window if window[0].isdigit() else f"1{window}"


def read_payload(text: str | None) -> Any:
    """JSON from the command line, or from stdin for "-"."""
    if text is None:
        return None
    import msgspec

    try:
        said = sys.stdin.read() if text == "-" else text
        if not said.strip():
            raise click.BadParameter(f"{_JSON}, got nothing", param_hint="PAYLOAD")
        return msgspec.json.decode(said)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise click.BadParameter(f"{_JSON}: {error}", param_hint="PAYLOAD") from None


_FILTERS = (
    click.option("--queue", metavar="QUEUE", help="In this queue."),
    click.option("--name", metavar="NAME", help="Of this handler."),
    click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="In this state; may be repeated."),
    click.option("--tenant", metavar="TENANT", help="Of this tenant."),
    click.option("--unique-key", metavar="KEY", help="With this unique key."),
    *(
        click.option(f"--{what}-{side}", type=instant, metavar="INSTANT", help=f"{what.capitalize()} {said}.")
        for what in ("created", "due", "finished")
        for side, said in (("after", "then or later"), ("before", "earlier"))
    ),
)

FILTERS = (
    *("queue", "name", "states", "tenant", "unique_key", "created_after", "created_before"),
    *("due_after", "due_before", "finished_after", "finished_before"),
)


def filter_options(command: F) -> F:
    """Which jobs are meant."""
    for option in reversed(_FILTERS):
        command = option(command)
    return command


def given_filters(given: dict[str, Any]) -> dict[str, Any]:
    """The filters among a command's options that were given."""
    return {name: given[name] for name in FILTERS if given.get(name) not in (None, ())}
