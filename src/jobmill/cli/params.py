"""Values on the command line (instants, durations, JSON, rates), and the options that several commands share."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

# A copy of the core's states, so that help and completion need not import the core; a test compares the two.
STATES = ("waiting", "running", "succeeded", "failed", "cancelled")

_JSON = """expected JSON in quotes, such as '{"to": "ada@example.com"}'"""
_RELATIVE = re.compile(r"(?:in\s+(?P<ahead>\S+))|(?:(?P<back>\S+)\s+ago)")


def duration(text: str) -> float | str:
    """A number of seconds, or a text such as 10m, which the library validates."""
    try:
        return float(text)
    except ValueError:
        return text


def port_or_path(text: str) -> int | str:
    """A port, or the path of a unix socket, which the library validates."""
    return int(text) if text.isdecimal() else text


def instant(text: str) -> datetime:
    """ISO 8601 (local time if it has no offset), "now", "in 5m" or "7d ago", as an aware datetime."""
    given = text.strip()
    try:
        if given == "now":
            return _now()
        if match := _RELATIVE.fullmatch(given):
            return _now() + _timedelta(match["ahead"]) if match["ahead"] else _now() - _timedelta(match["back"])
        return datetime.fromisoformat(given).astimezone()
    except (ValueError, OverflowError):
        expected = 'expected an instant such as 2026-01-31T09:00+01:00, "in 5m" or "7d ago"'
        raise click.BadParameter(f"{expected}, got {text!r}") from None


def _now() -> datetime:
    return datetime.now().astimezone()


def _timedelta(text: str) -> timedelta:
    from jobmill.core.durations import to_ms

    return timedelta(milliseconds=to_ms(text, "instant"))


def rate(text: str) -> tuple[int, str]:
    """A number per period: 100/1s or 100/s."""
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
        content = sys.stdin.read() if text == "-" else text
        if not content.strip():
            raise click.BadParameter(f"{_JSON}, got nothing", param_hint="PAYLOAD")
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise click.BadParameter(f"{_JSON}: {error}", param_hint="PAYLOAD") from None


def payload_field(text: str) -> tuple[str, Any]:
    """A field of the payload and its value: `to=ada`, `count=3`; `zip="12345"` is a text that looks like a number."""
    import msgspec

    field, equals, value = text.partition("=")
    if not field or not equals:
        raise click.BadParameter(f"expected a field and its value, such as to=ada, got {text!r}")
    try:
        return field, msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError):
        return field, value


def options(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several arguments and options as one decorator, in the order of the help."""

    def decorate(command: F) -> F:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def given_options(values: dict[str, Any]) -> dict[str, Any]:
    """The options of a command that were given."""
    return {name: value for name, value in values.items() if value not in (None, ())}


def shutdown_timeout_option(what: str, default: str | None = "30s") -> Callable[[F], F]:
    """The option --shutdown-timeout."""
    help = f"How long {what} may take to finish at shutdown (default 30s)."
    return click.option("--shutdown-timeout", type=duration, default=default, help=help)


log_options = options(
    click.option("--quiet", "-q", is_flag=True, help="Log only warnings and errors."),
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        help="Log text, or one JSON object per line (default text).",
    ),
)
url_option = click.option(
    "--url",
    envvar="JOBMILL_URL",
    metavar="URL",
    help="URL of the store (default: JOBMILL_URL, else sqlite:///jobmill.db).",
)
#: The options of commands that use a store, and print what they find.
store_options = options(url_option, click.option("--json", "as_json", is_flag=True, help="Print JSON."))
#: The options that select jobs.
filter_options = options(
    click.option("--queue", metavar="QUEUE", help="Select jobs in this queue."),
    click.option("--name", metavar="NAME", help="Select jobs of this handler."),
    click.option(
        "--state",
        "states",
        multiple=True,
        type=click.Choice(STATES),
        help="Select jobs in this state; can be given several times.",
    ),
    click.option("--tenant", metavar="TENANT", help="Select jobs of this tenant."),
    click.option("--lane", metavar="LANE", help="Select jobs of this lane."),
    click.option("--unique-key", metavar="KEY", help="Select the job with this unique key."),
    click.option("--flow", metavar="ID", help="Select the jobs of this flow."),
    click.option("--name-prefix", metavar="TEXT", help="Select jobs whose handler's name begins with this text."),
    click.option("--error-type", metavar="CLASS", help="Select jobs whose last error is of this class."),
    click.option(
        "--payload",
        metavar="FIELD=VALUE",
        type=payload_field,
        multiple=True,
        callback=lambda context, option, fields: dict(fields) or None,
        help="Select jobs whose payload has this field; can be given several times.",
    ),
    click.option("--held/--not-held", default=None, help="Select only held jobs, or only others."),
    click.option("--recurring/--not-recurring", default=None, help="Select only recurring jobs, or only others."),
    click.option("--errored/--not-errored", default=None, help="Select only jobs that had errors, or only others."),
    *(
        click.option(f"--{what}-{side}", type=instant, help=f"Select jobs {what} {when} this time.")
        for what in ("created", "due", "finished")
        for side, when in (("after", "at or after"), ("before", "before"))
    ),
)
