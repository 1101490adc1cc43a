"""What happened to a job, in order: when it was enqueued, each attempt, and what comes next."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from itertools import groupby
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from jobmill.core.due import in_lane
from jobmill.core.job import ATTEMPTS_KEPT, Attempt, Job
from jobmill.dashboard.shown import duration

#: The shape and color of an entry, or of a part of the bar.
Shape: TypeAlias = Literal["due", "later", "retrying", "held", "running", "succeeded", "failed", "cancelled"]
#: Attempts with the same error are one entry, from this number on.
_FOLDED: Final = 3
#: Each part of the bar is at least this wide, in percent: also the shortest run stays visible.
_MIN_WIDTH: Final = 1.0


class TimelineEntry(Struct, frozen=True, kw_only=True):
    """One entry: what happened, when, on which worker, how long the job had waited before and how long it ran."""

    shape: Shape
    text: str
    at_ms: int | None = None
    worker: str | None = None
    waited_ms: int | None = None
    ran_ms: int | None = None
    error: str | None = None
    traceback: str | None = None
    #: How the traceback differs from the one before, as lines that begin with "-", "+" or a space.
    diff: list[str] = []
    #: Attempts that this entry stands for.
    folded: list[TimelineEntry] = []
    note: str | None = None


class BarPart(Struct, frozen=True, kw_only=True):
    """A part of the bar, in percent of its width."""

    shape: Shape
    x: float
    width: float
    text: str


def state_of(job: Job, now_ms: int) -> tuple[Shape, str]:
    """The shape of a job and the word for it."""
    if job.state != "waiting":
        return job.state, job.state
    if job.held is not None:
        return "held", "held"
    if job.due_ms <= now_ms:
        return "due", "due"
    return ("retrying", "retrying") if job.errors or job.crashes else ("later", "later")


def steps(job: Job, now_ms: int, max_attempts: int | None = None) -> list[TimelineEntry]:
    """The entries, the oldest first."""
    made = [TimelineEntry(shape="due", text="Enqueued", at_ms=job.created_ms)]
    made += _folded(list(_attempts(job)))
    made += _last(job, now_ms, max_attempts)
    return made


def _attempts(job: Job) -> Iterator[TimelineEntry]:
    before: Attempt | None = None
    for attempt in job.attempts:
        number = "An attempt" if attempt.number is None else f"Attempt {attempt.number}"
        waited = None
        if before is not None and before.finished_ms is not None and attempt.started_ms is not None:
            waited = max(0, attempt.started_ms - before.finished_ms)
        elif before is None and attempt.number == 1 and attempt.started_ms is not None:
            waited = max(0, attempt.started_ms - job.created_ms)
        yield TimelineEntry(
            shape="failed",
            text=f"{number} {attempt.outcome}",
            at_ms=attempt.started_ms if attempt.started_ms is not None else attempt.finished_ms,
            worker=attempt.worker,
            waited_ms=waited,
            ran_ms=_between(attempt.started_ms, attempt.finished_ms),
            error=_error(attempt),
            traceback=attempt.traceback,
            diff=_diff(before, attempt),
        )
        before = attempt


def _error(attempt: Attempt) -> str | None:
    if attempt.error is None or attempt.error_type is None or attempt.error.startswith(_short(attempt.error_type)):
        return attempt.error
    return f"{_short(attempt.error_type)}: {attempt.error}"


def _short(error_type: str) -> str:
    return error_type.rpartition(".")[2]


def _diff(before: Attempt | None, attempt: Attempt) -> list[str]:
    if before is None or before.traceback is None or attempt.traceback is None or before.traceback == attempt.traceback:
        return []
    lines = difflib.unified_diff(before.traceback.splitlines(), attempt.traceback.splitlines(), n=1, lineterm="")
    return [line for line in list(lines)[2:] if not line.startswith("@@")]


def _folded(attempts: list[TimelineEntry]) -> Iterator[TimelineEntry]:
    """Attempts with the same error in a row as one entry; the last attempt stands alone."""
    if not attempts:
        return
    for _, group in groupby(attempts[:-1], key=lambda step: (step.text.rpartition(" ")[2], step.error)):
        equal = list(group)
        if len(equal) < _FOLDED:
            yield from equal
            continue
        first, last = equal[0].text, equal[-1].text
        span = f"{first.rpartition(' ')[0].replace('Attempt', 'Attempts')} to {last.split(' ')[1]}"
        text = f"{span} {last.rpartition(' ')[2]}"
        if not last.startswith("Attempt "):
            text = f"{len(equal)} attempts {last.rpartition(' ')[2]}"
        yield TimelineEntry(shape="failed", text=text, at_ms=equal[0].at_ms, error=equal[0].error, folded=equal)
    yield attempts[-1]


def _last(job: Job, now_ms: int, max_attempts: int | None) -> Iterator[TimelineEntry]:
    number = f"Attempt {job.attempt}" + (f" of {max_attempts}" if max_attempts else "")
    if job.state == "running":
        ran = None if job.started_ms is None else max(0, now_ms - job.started_ms)
        yield TimelineEntry(shape="running", text=f"{number} runs", at_ms=job.started_ms, worker=job.worker, ran_ms=ran)
    elif job.state == "succeeded":
        waited = None if job.attempts or job.started_ms is None else max(0, job.started_ms - job.created_ms)
        ran = _between(job.started_ms, job.finished_ms)
        yield TimelineEntry(
            shape="succeeded",
            text=f"{number} succeeded",
            at_ms=job.started_ms if job.started_ms is not None else job.finished_ms,
            worker=job.worker,
            waited_ms=waited,
            ran_ms=ran,
        )
    elif job.state == "failed":
        if not job.attempts:
            yield TimelineEntry(
                shape="failed", text="Failed", at_ms=job.finished_ms, error=job.error, worker=job.worker
            )
    elif job.state == "cancelled":
        yield TimelineEntry(shape="cancelled", text="Cancelled", at_ms=job.finished_ms)
    else:
        shape, _ = state_of(job, now_ms)
        at_ms = None if job.due_at is None else int(job.due_at.timestamp() * 1000)
        yield TimelineEntry(shape=shape, text=number, at_ms=at_ms, note=_waits(job, at_ms, now_ms))


def _waits(job: Job, due_ms: int | None, now_ms: int) -> str:
    """What a waiting job waits for, before the time when it is due or has joined its lane."""
    is_due = due_ms is not None and due_ms <= now_ms
    if in_lane(job.held):
        return f"in lane {job.lane} since" if is_due else f"in lane {job.lane}, due at"
    if job.held is not None:
        held = f"held, by {', '.join(job.held.by)}"
        return held if due_ms is None else f"{held}, due at"
    return "due since" if is_due else "due at"


def bar(job: Job, now_ms: int) -> list[BarPart]:
    """The time of a job to scale: how long it waited, ran and was held; nothing for a job that did not wait or run."""
    spans = list(_spans(job, now_ms))
    total = sum(ms for _, ms in spans)
    if total <= 0:
        return []
    widths = [max(_MIN_WIDTH, ms / total * 100) for _, ms in spans]
    scale = 100 / sum(widths)
    parts, x = list[BarPart](), 0.0
    for (shape, ms), width in zip(spans, widths, strict=True):
        parts.append(
            BarPart(shape=shape, x=round(x, 2), width=round(width * scale, 2), text=f"{_WORDS[shape]} {duration(ms)}")
        )
        x += width * scale
    return parts


def time_spent(job: Job, now_ms: int) -> str | None:
    """How long ago a job was enqueued or how long it took, and for how much of that time it ran.

    None for a job that never ran, for a recurring job, and if attempts are missing because only the last ones are kept.
    """
    spans = list(_spans(job, now_ms))
    ran_ms = sum(ms for shape, ms in spans if shape in _RAN)
    if not job.claims or job.recurrence is not None or len(job.attempts) >= ATTEMPTS_KEPT:
        return None
    if job.finished_ms is None:
        return f"{duration(now_ms - job.created_ms)} since it was enqueued, {duration(ran_ms)} of it running"
    return f"{duration(job.finished_ms - job.created_ms)} from enqueue to end, {duration(ran_ms)} of it running"


_RAN: Final = frozenset({"running", "succeeded", "failed"})
_WORDS: Final[dict[Shape, str]] = {
    "due": "waited",
    "later": "waited",
    "retrying": "waited",
    "held": "held",
    "running": "runs for",
    "succeeded": "ran",
    "failed": "ran",
    "cancelled": "ran",
}


def _spans(job: Job, now_ms: int) -> Iterator[tuple[Shape, int]]:
    at_ms = job.created_ms
    runs: list[tuple[Shape, int | None, int | None]] = [
        ("failed", one.started_ms, one.finished_ms) for one in job.attempts
    ]
    if job.state == "running":
        runs.append(("running", job.started_ms, now_ms))
    elif job.state == "succeeded":
        runs.append(("succeeded", job.started_ms, job.finished_ms))
    for shape, started_ms, finished_ms in runs:
        if started_ms is None or finished_ms is None or started_ms < at_ms:
            continue
        if started_ms > at_ms:
            yield "due", started_ms - at_ms
        yield shape, max(0, finished_ms - started_ms)
        at_ms = max(finished_ms, started_ms)
    if job.state == "waiting" and now_ms > at_ms:
        yield ("held" if job.held is not None else "due"), now_ms - at_ms


def _between(started_ms: int | None, finished_ms: int | None) -> int | None:
    return None if started_ms is None or finished_ms is None else max(0, finished_ms - started_ms)
