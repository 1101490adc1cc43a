"""What needs a person now: problems and warnings, each with its evidence and links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from msgspec import Struct

from jobmill.core.announcing import WorkerCard
from jobmill.core.audit import AuditEntry
from jobmill.core.job import Job
from jobmill.core.tallies import ErrorGroup, Tally
from jobmill.core.values import QueueSettings
from jobmill.dashboard.reads import LATE_MS
from jobmill.dashboard.screens.queues import HOUR_MS, ListedQueue
from jobmill.dashboard.shown import count as shown_count
from jobmill.dashboard.shown import duration
from jobmill.dashboard.view import View
from jobmill.runtime.watchdog import STUCK_AFTER_S

#: An error is frequent if it was raised this many times in the last hour.
FREQUENT: Final = 10
#: An error is new if it was not raised in the first half of the last hour.
_NEW_MS: Final = HOUR_MS // 2


class AttentionLink(Struct, frozen=True):
    """A page that says more."""

    text: str
    url: str


class Attention(Struct, frozen=True, kw_only=True):
    """One thing that needs a person: a problem ("failed") or a warning ("caution")."""

    level: Literal["failed", "caution"]
    #: What it is about, for programs: "no_worker", "errors", "late", "paused", "limit", "backlog", "worker", "crashes".
    kind: str
    title: str
    text: str
    links: list[AttentionLink]


def attention(
    view: View,
    rows: Iterable[ListedQueue],
    settings: dict[str, QueueSettings],
    workers: Iterable[WorkerCard],
    tallies: Sequence[Tally],
    late: Sequence[Job],
    marks: Sequence[AuditEntry],
) -> list[Attention]:
    """Everything that needs a person, problems before warnings."""
    rows = list(rows)
    found = [
        *(one for row in rows if (one := _of_queue(view, row, settings.get(row.queue), tallies, late)) is not None),
        *_errors(view, tallies, marks),
        *(one for card in workers if (one := _of_worker(view, card)) is not None),
        *(_late(view, job, {row.queue: row for row in rows}.get(job.queue)) for job in late),
        *_crashes(view, tallies),
    ]
    return sorted(found, key=lambda one: one.level != "failed")


# ---------------------------------------------------------------------------------------------------- queues


def _of_queue(
    view: View, row: ListedQueue, settings: QueueSettings | None, tallies: Iterable[Tally], late: Sequence[Job]
) -> Attention | None:
    waited_ms = 0 if row.oldest_due_ms is None else view.now_ms - row.oldest_due_ms
    due = f"{shown_count(row.due)} {'job is' if row.due == 1 else 'jobs are'} due"
    oldest = f"the oldest for {duration(waited_ms)}"
    links = [
        AttentionLink("Queue", view.url("queues", row.queue)),
        AttentionLink("Jobs", view.search("due", queue=row.queue)),
    ]
    if not row.due:
        return None
    if settings is not None and settings.paused:
        since_ms = None if settings.pause is None else settings.pause.since_ms
        if since_ms is None or view.now_ms - since_ms <= HOUR_MS:
            return None
        title = f"Queue {row.queue} has been paused for {duration(view.now_ms - since_ms)}"
        note = f" Note: {settings.pause.note}." if settings.pause and settings.pause.note else ""
        return _warning("paused", title, f"{due}, {oldest}.{note}", links)
    if not row.workers:
        claimed = [one.start_ms for one in tallies if one.queue == row.queue and one.claimed]
        last = f"last claimed one at {view.minute(max(claimed))}" if claimed else "claimed none in the last hour"
        text = f"{due}, {oldest}. Workers of Jobmill {last}."
        links.append(AttentionLink("Workers", view.url("workers")))
        return _problem("no_worker", f"Queue {row.queue}: no worker claims it", text, links)
    if waited_ms <= LATE_MS:
        return None
    if row.alarm == "caution":
        return _warning("limit", f"Queue {row.queue} is {row.alarm_text}", f"{due}, {oldest}.", links)
    if any(job.queue == row.queue and job.due_ms == row.oldest_due_ms for job in late):
        return None  # that job has an entry of its own
    workers = "1 worker claims" if row.workers == 1 else f"{row.workers:,} workers claim"
    text = f"{due}, {oldest}. {workers} from it, {row.running:,} of its jobs {'runs' if row.running == 1 else 'run'}."
    return _warning("backlog", f"Queue {row.queue}: a job has waited for {duration(waited_ms)}", text, links)


def _late(view: View, job: Job, row: ListedQueue | None) -> Attention:
    text = f"It was due at {view.clock(job.due_ms)} in queue {job.queue}."
    if row is not None and row.alarm_text is not None:
        text += f" The queue: {row.alarm_text}."
    links = [
        AttentionLink("Why", view.url("jobs", job.id)),
        AttentionLink("Recurring jobs", view.url("recurring")),
    ]
    return _warning("late", f"Recurring {job.name} is {duration(view.now_ms - job.due_ms)} late", text, links)


# ---------------------------------------------------------------------------------------------------- errors


class _HourGroup:
    """One group of errors in the last hour."""

    def __init__(self, group: ErrorGroup) -> None:
        self.latest = group
        self.count = 0
        self.first_ms = group.last_ms
        self.names: set[str] = set()

    def add(self, group: ErrorGroup, tally: Tally) -> None:
        self.count += group.count
        self.latest = max(self.latest, group, key=lambda one: one.last_ms)
        self.first_ms = min(self.first_ms, tally.start_ms)
        self.names.add(tally.name)


def _errors(view: View, tallies: Iterable[Tally], marks: Sequence[AuditEntry]) -> list[Attention]:
    groups: dict[str, _HourGroup] = {}
    for tally in tallies:
        for group in tally.error_groups:
            groups.setdefault(group.fingerprint, _HourGroup(group)).add(group, tally)
    since_ms = view.now_ms - HOUR_MS
    found = []
    for one in sorted(groups.values(), key=lambda one: -one.count):
        is_new = one.first_ms >= since_ms + _NEW_MS
        if not is_new and one.count < FREQUENT:
            continue
        error = one.latest.error_type.rpartition(".")[2]
        before = [mark for mark in marks if since_ms <= mark.at_ms <= one.first_ms + 60_000]
        mark = f", after {before[0].note}" if is_new and before else ""
        first = f"First seen in the last hour at {view.minute(one.first_ms)}{mark}. " if is_new else ""
        links = [
            AttentionLink("Errors", view.url("errors", range="1h")),
            AttentionLink("Last job", view.url("jobs", one.latest.last_job_id)),
        ]
        made = _problem if one.count >= FREQUENT else _warning
        title = f"{one.count:,} × {error} in {', '.join(sorted(one.names)[:3])}"
        found.append(made("errors", title, f"{first}Last seen {view.since(one.latest.last_ms)} ago.", links))
    return found


def _crashes(view: View, tallies: Iterable[Tally]) -> list[Attention]:
    counts, last = dict[tuple[str, str], int](), dict[tuple[str, str], int]()
    for tally in tallies:
        if tally.crashed:
            key = (tally.queue, tally.name)
            counts[key] = counts.get(key, 0) + tally.crashed
            last[key] = tally.start_ms
    return [
        _warning(
            "crashes",
            f"{crashes:,} {'run' if crashes == 1 else 'runs'} of {name} crashed in the last hour",
            "The lease ended during the run: the worker died, hung or could not reach the store. "
            f"The last one was noticed at {view.minute(last[queue, name])}.",
            [
                AttentionLink("Jobs", view.search("all", queue=queue, name=name)),
                AttentionLink("Workers", view.url("workers")),
            ],
        )
        for (queue, name), crashes in sorted(counts.items(), key=lambda item: -item[1])
    ]


# ---------------------------------------------------------------------------------------------------- workers


def _of_worker(view: View, card: WorkerCard) -> Attention | None:
    links = [AttentionLink("Workers", view.url("workers"))]
    stuck = {loop: age for loop, age in card.loops.items() if age > STUCK_AFTER_S * 1000}
    if stuck:
        text = ", ".join(f"{loop} for {duration(age)}" for loop, age in sorted(stuck.items()))
        title = f"Worker {card.name}: {'a loop hangs' if len(stuck) == 1 else 'loops hang'}"
        return _problem("worker", title, f"Without an iteration: {text}. Process {card.pid} on {card.host}.", links)
    if card.stopping:
        running = f"It still runs {card.running:,} {'job' if card.running == 1 else 'jobs'}." if card.running else ""
        return _warning(
            "worker", f"Worker {card.name} is stopping", f"It claims no more jobs. {running}".strip(), links
        )
    return None


def _problem(kind: str, title: str, text: str, links: list[AttentionLink]) -> Attention:
    return Attention(level="failed", kind=kind, title=title, text=text, links=links)


def _warning(kind: str, title: str, text: str, links: list[AttentionLink]) -> Attention:
    return Attention(level="caution", kind=kind, title=title, text=text, links=links)
