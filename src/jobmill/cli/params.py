"""What may stand on the command line: instants, durations, JSON, rates, and the filters that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

# Written out, so that help and completion know them without importing the core; a test holds them to it.
STATES = ("waiting", "running", "succeeded", "failed", "cancelled")

_RELATIVE = re.compile(r"(?:in\s+(?P<ahead>\S+))|(?:(?P<back>\S+)\s+ago)")


class Duration(click.ParamType):
    """Seconds as a number, or a text such as 10m, which the library checks."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A number where it is one."""
        try:
            return float(value)
        except ValueError:
            return value


class Instant(click.ParamType):
    """ISO 8601 (without an offset: the local zone), "now", "in 5m" or "7d ago"."""

    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """An aware datetime."""
        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        now = datetime.now().astimezone()
        if text == "now":
            return now
        if match := _RELATIVE.fullmatch(text):
            try:
                return now + _timedelta(match["ahead"]) if match["ahead"] else now - _timedelta(match["back"])
            except OverflowError:
                self.fail(f"{text!r} lies outside of the years that can be told", param, ctx)
        try:
            return datetime.fromisoformat(text).astimezone()
        except (ValueError, OverflowError):
            self.fail(f'expected an instant such as 2026-01-31T09:00+01:00, "in 5m" or "7d ago", got {text!r}', param, ctx)


def _timedelta(text: str) -> timedelta:
    from jobmill.core.durations import to_ms

    return timedelta(milliseconds=to_ms(text, "instant"))


class Rate(click.ParamType):
    """How many in how long: 100/1s, 100/s."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, str]:
        """The count and the window."""
        if isinstance(value, tuple):
            return value
        count, _, per = str(value).partition("/")
        if not count.strip().isdecimal() or not per.strip():
            self.fail(f"expected a rate such as 100/1s, got {value!r}", param, ctx)
        window = per.strip()
        return int(count), window if window[0].isdigit() else f"1{window}"


DURATION = Duration()
INSTANT = Instant()
RATE = Rate()


def read_payload(text: str | None) -> Any:
    """JSON from the command line, or from stdin for "-"."""
    if text is None:
        return None
    import msgspec

    given = click.get_text_stream("stdin").read() if text == "-" else text
    try:
        return msgspec.json.decode(given)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise click.BadParameter(f"the payload is not JSON ({error}): {given[:60]!r}") from None


_FILTERS = (
    click.option("--queue", metavar="QUEUE", help="In this queue."),
    click.option("--name", metavar="NAME", help="Of this handler."),
    click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="In this state; may be repeated."),
    click.option("--tenant", metavar="TENANT", help="Of this tenant."),
    click.option("--unique-key", metavar="KEY", help="With this unique key."),
    *(
        click.option(f"--{what}-{side}", type=INSTANT, metavar="INSTANT", help=f"{what.capitalize()} {said}.")
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
