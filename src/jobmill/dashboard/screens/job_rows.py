"""One job as a row of a list: its state, and one line that says why it is as it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from jobmill.core.announcing import WorkerCard
from jobmill.core.due import BY_LANE, due_of, in_lane
from jobmill.core.durations import shown_ms
from jobmill.core.job import Job
from jobmill.core.lifecycle import policy
from jobmill.core.limits import shown_limit
from jobmill.core.values import Lane
from jobmill.dashboard import shown
from jobmill.dashboard.search import whole_second
from jobmill.dashboard.view import View

#: Longer texts are cut in a row: it is one line.
_LINE: Final = 300
#: A larger result is not decoded for a row.
_MAX_RESULT: Final = 20_000
#: What is known about lanes, by queue and name.
Lanes: TypeAlias = Mapping[tuple[str, str], Lane]


class JobRow(Struct, frozen=True, kw_only=True):
    """One job as a row."""

    id: str
    name: str
    #: The state, where a waiting job is due, later, retrying or held.
    shape: str
    #: One line: the error, the result, what it waits for.
    why: str
    attempt: str
    took_ms: int | None
    #: "due", "since" (running) or "finished", and when that is.
    at_word: str
    at_ms: int | None


def row_of(view: View, job: Job, workers: Sequence[WorkerCard] | None, lanes: Lanes) -> JobRow:
    """A job as a row. `workers` and `lanes` are those that are known."""
    shape = shape_of(job, view.now_ms)
    at_word, at_ms = _at(job)
    return JobRow(
        id=job.id,
        name=job.name,
        shape=shape,
        why=_line(_why(view, job, shape, workers, lanes)),
        attempt=_attempt(view, job),
        took_ms=_took_ms(job, view.now_ms),
        at_word=at_word,
        at_ms=at_ms,
    )


def shape_of(job: Job, now_ms: int) -> str:
    """The state of a job, where a waiting one is held, retrying, due or later."""
    if job.state != "waiting":
        return job.state
    if job.held is not None:
        return "held"
    return "retrying" if job.errors else "due" if job.due_ms <= whole_second(now_ms) else "later"


def _at(job: Job) -> tuple[str, int | None]:
    if job.state == "running":
        return "since", job.started_ms
    if job.is_final:
        return "finished", job.finished_ms
    return "due", job.due_ms if job.held is None else job.held.due.at_ms


def _took_ms(job: Job, now_ms: int) -> int | None:
    """How long the run took: the present one, the last one of a final job, the last that errored of a waiting one."""
    start, end = job.started_ms, now_ms if job.state == "running" else job.finished_ms
    if job.state == "waiting":
        last = job.attempts[-1] if job.attempts and job.errors else None
        start, end = (last.started_ms, last.finished_ms) if last else (None, None)
    return None if start is None or end is None else max(0, end - start)


def _attempt(view: View, job: Job) -> str:
    """The number of the attempt; and of how many, where this process knows the handler or the job says so."""
    if job.state == "failed" and job.crashes and not job.errors:
        return "1 crash" if job.crashes == 1 else f"{job.crashes} crashes"
    handler = view.jobs.handlers.get(job.name)
    if handler is None and job.options.max_attempts is None:
        return str(job.attempt)
    rules = policy(job.options) if handler is None else policy(job.options, handler.policy)
    limit = shown_limit(rules.max_attempts)
    return str(job.attempt) if limit is None else f"{job.attempt} of {limit}"


def _why(view: View, job: Job, shape: str, workers: Sequence[WorkerCard] | None, lanes: Lanes) -> str:
    lines: dict[str, Callable[[], str]] = {
        "running": lambda: _progress(job),
        "held": lambda: _held(view, job, lanes),
        "retrying": lambda: f"{(job.error or 'It errored').rstrip('.')}. {_again(job, view.now_ms)}",
        "later": lambda: _recurring(job) or f"Due in {shown.duration(job.due_ms - view.now_ms)}",
        "due": lambda: _due(view, job, workers),
        "succeeded": lambda: _result(view, job),
        "failed": lambda: job.error or "It failed without an error.",
        "cancelled": lambda: (
            "Cancelled before it ran" if not job.claims else job.error or "Cancelled after it had begun"
        ),
    }
    return lines[shape]()


def _progress(job: Job) -> str:
    if job.progress is None:
        return f"Runs on worker {job.worker}" if job.worker else "Runs"
    message = f": {job.progress.message}" if job.progress.message else ""
    return f"{job.progress.value:.3g}% done{message}"


def _held(view: View, job: Job, lanes: Lanes) -> str:
    held = job.held
    if held is None:
        return ""
    if in_lane(held) and job.lane is not None:
        return _in_lane(view, job, job.lane, lanes.get((job.queue, job.lane)))
    note = f": {held.note}" if held.note else ""
    texts = {"person": f"Held by {held.who or 'a person'}{note}", "jobs": "Waits for other jobs"}
    # A job joins its lane when nothing else holds it.
    return "; ".join(texts.get(by, f"Held by {by}") for by in held.by if by != BY_LANE)


def _in_lane(view: View, job: Job, name: str, lane: Lane | None) -> str:
    """What a job of a lane waits for."""
    due_ms = due_of(job)
    if due_ms is not None and due_ms > view.now_ms:
        again = f"{(job.error or 'It errored').rstrip('.')}. Tries again" if job.errors else "Due"
        return f"{again} in {shown.duration(due_ms - view.now_ms)}, in lane {name}"
    if lane is None:
        return f"Waits for a slot of lane {name}"
    if (pause := lane.settings.pause) is not None:
        by, note = f" by {pause.who}" if pause.who else "", f": {pause.note}" if pause.note else ""
        return f"Lane {name} is paused{by}{note}"
    if lane.limited_until_ms is not None and lane.limited_until_ms > view.now_ms:
        return f"Lane {name} is at its rate until {view.clock(lane.limited_until_ms)}"
    slots = f"{lane.running:,} running" + (f", {lane.admitted:,} admitted" if lane.admitted else "")
    return f"Waits for a slot of lane {name}: {slots}"


def _again(job: Job, now_ms: int) -> str:
    wait_ms = job.due_ms - now_ms
    return f"Tries again in {shown.duration(wait_ms)}." if wait_ms > 0 else "Due now."


def _due(view: View, job: Job, workers: Sequence[WorkerCard] | None) -> str:
    if job.deferred_error is not None:
        error = job.deferred_error if view.can("see_payload") else shown.HIDDEN
        return f"Will fail when it is claimed: {error}"
    able = None if workers is None else [card for card in workers if job.queue in card.queues and not card.stopping]
    if able == []:
        return f"No worker claims queue {job.queue}"
    if able and all(card.system == "jobmill" and job.name not in card.names for card in able):
        return f"No worker of queue {job.queue} has a handler of this name"
    return f"Due for {view.since(job.due_ms)}"


def _recurring(job: Job) -> str | None:
    rule = job.recurrence
    if rule is None:
        return None
    text = f"every {shown_ms(rule.every_ms)}" if rule.every_ms is not None else f"{rule.cron} ({rule.timezone})"
    failed = f", {job.failed_runs:,} failed" if job.failed_runs else ""
    return f"Recurring, {text}. {job.runs:,} {'run' if job.runs == 1 else 'runs'} so far{failed}"


def _result(view: View, job: Job) -> str:
    if len(bytes(job.result_json)) > _MAX_RESULT:
        return f"A result of {len(bytes(job.result_json)):,} bytes"
    try:
        result = view.payload(job.result)
    except (ValueError, RecursionError):
        return "A result that cannot be read"
    return "no result" if result is None else json.dumps(result, ensure_ascii=False)


def _line(text: str) -> str:
    """A text on one line."""
    line = " ".join(text[: _LINE * 2].split())
    return line if len(line) <= _LINE and len(text) <= _LINE * 2 else f"{line[:_LINE]}…"
