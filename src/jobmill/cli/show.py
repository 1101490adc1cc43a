"""`jobmill jobs show`: all fields of one job, for people."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from jobmill.cli.output import LEVEL_COLORS, STATE_COLORS, duration_text, relative

if TYPE_CHECKING:
    from rich.console import RenderableType

    from jobmill.core.due import Held
    from jobmill.core.job import Job
    from jobmill.core.recurrence import Recurrence
    from jobmill.core.values import LogLine


def details(job: Job, lines: list[LogLine] | None, now_ms: int) -> list[RenderableType]:
    """The fields that have a value, then the attempts that did not succeed, then the log lines."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in _fields(job, now_ms):
        if value not in (None, ""):
            grid.add_row(name, value if isinstance(value, Text) else Text(str(value)))
    shown: list[RenderableType] = [grid]
    for attempt in job.attempts:
        number = "" if attempt.number is None else f" {attempt.number}"
        parts = [attempt.worker and f"on {attempt.worker}", attempt.started_ms and f"from {_clock(attempt.started_ms)}"]
        parts.append(attempt.finished_ms and f"to {_clock(attempt.finished_ms)}")
        about = " ".join(part for part in parts if part)
        shown.append(Text(f"\nattempt{number} {attempt.outcome} {about}".rstrip(), "bold"))
        shown.append(Text((attempt.traceback or attempt.error or "").rstrip()))
    if lines is not None:
        shown.append(Text("\nlog" if lines else "\nlog: no lines", "bold"))
        shown += [_log_line(line) for line in lines]
    return shown


def _log_line(line: LogLine) -> RenderableType:
    from rich.text import Text

    attempt = "" if line.attempt is None else f"  {line.attempt}"
    level = "" if line.level == "info" else f"{line.level:<7}  "
    return Text(f"{_clock(line.at_ms)}{attempt}  {level}{line.text}", LEVEL_COLORS[line.level])


def _fields(job: Job, now_ms: int) -> list[tuple[str, Any]]:
    from rich.text import Text

    rule = job.recurrence
    return [
        ("id", job.id),
        ("name", job.name),
        ("queue", job.queue),
        ("state", Text(job.state, STATE_COLORS[job.state])),
        ("held", None if job.held is None else _held(job.held)),
        ("priority", job.priority),
        ("headers", _pretty(job.headers) if job.headers else None),
        ("payload", _pretty(job.payload)),
        ("progress", _progress(job)),
        ("result", None if job.result is None else _pretty(job.result)),
        ("error", job.error),
        ("attempt", _attempt(job)),
        ("claims", job.claims),
        ("worker", job.worker),
        ("created", _instant(job.created_ms, now_ms)),
        ("due", _due(job, now_ms)),
        ("started", _instant(job.started_ms, now_ms)),
        ("finished", _instant(job.finished_ms, now_ms)),
        ("updated", _instant(job.updated_ms, now_ms)),
        ("unique key", job.unique_key),
        ("flow", job.flow),
        ("waits for", job.waits_for and f"signal {job.waits_for}"),
        ("tenant", job.tenant),
        ("lane", job.lane),
        ("options", _options(job)),
        ("recurrence", rule and _recurrence(rule)),
        ("runs", rule and f"{job.runs}, {job.failed_runs} of them failed"),
        ("last error", job.last_error),
        ("last finished", _instant(job.last_finished_ms, now_ms)),
    ]


def _recurrence(rule: Recurrence) -> str:
    times = f"cron {rule.cron}" if rule.cron is not None else f"every {duration_text(rule.every_ms or 0)}"
    until = "" if rule.until_ms is None else f", until {_clock(rule.until_ms)}"
    return f"{times} ({rule.timezone}{until}), key {rule.key}" + (", declared by its handler" if rule.declared else "")


def _attempt(job: Job) -> str:
    from jobmill.core.limits import shown_limit

    parts = [str(job.attempt)]
    if (limit := shown_limit(job.options.max_attempts)) is not None:
        parts[0] += f" of {limit}"
    if job.errors:
        parts.append(f"{job.errors} errored")
    if job.crashes:
        parts.append(f"{job.crashes} crashed")
    return ", ".join(parts)


def _held(held: Held) -> str:
    return f"by {held.who or ' and '.join(held.by)}" + (f": {held.note}" if held.note else "")


def _due(job: Job, now_ms: int) -> str | None:
    if job.held is None:
        return _instant(job.due_ms, now_ms)
    return "after its release" if job.held.due.at_ms is None else f"held; {_instant(job.held.due.at_ms, now_ms)}"


def _progress(job: Job) -> str | None:
    if job.progress is None:
        return None
    return f"{job.progress.value:g} %" + (f", {job.progress.message}" if job.progress.message else "")


def _options(job: Job) -> str | None:
    import msgspec

    options = msgspec.to_builtins(job.options)
    options.pop("headers", None)
    return _pretty(options) if options else None


def _pretty(value: Any) -> str:
    """JSON, on one line if it is short."""
    import json

    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= 80 else json.dumps(value, ensure_ascii=False, indent=2)


def _instant(ms: int | None, now_ms: int) -> str | None:
    return None if ms is None else f"{_clock(ms)}  ({relative(ms, now_ms)})"


def _clock(ms: int) -> str:
    """Local time with its offset."""
    from jobmill.core.durations import to_datetime

    moment: datetime = to_datetime(ms).astimezone()
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03}{moment:%z}"
