"""The errors of a time range, in groups: same type, same handler, same line of the application."""

from __future__ import annotations

import asyncio
import shlex
from typing import Final

from msgspec import Struct, structs

from jobmill.core.audit import AuditFilter
from jobmill.core.job import Job
from jobmill.core.tallies import MAX_ERROR_GROUPS, MINUTE_MS, ErrorGroup, Tally
from jobmill.dashboard.fields import whole_page
from jobmill.dashboard.view import PAGE, View
from jobmill.errors import InvalidValue

HOUR_MS: Final = 3_600_000
#: What a worker calls the type of an error that has no class. No search finds jobs by it.
NO_TYPE: Final = "error"
BARS: Final = 24
MAX_MESSAGE: Final = 300


#: The time ranges: how long each is, and a step of tallies that stores keep for that long.
RANGES: Final = {
    "1h": (HOUR_MS, MINUTE_MS),
    "8h": (8 * HOUR_MS, 10 * MINUTE_MS),
    "24h": (24 * HOUR_MS, HOUR_MS),
    "7d": (7 * 24 * HOUR_MS, HOUR_MS),
}


class ListedErrorGroup(Struct, frozen=True, kw_only=True):
    """Equal errors. They are counted by attempts: a job that is tried again may be in here several times."""

    fingerprint: str
    error_type: str
    #: The innermost line of the application; empty if there is none.
    location: str
    names: list[str]
    queues: list[str]
    count: int
    #: The part of all errors of the range, from 0 to 1.
    share: float
    #: When the first one of the range was: not before `first_ms`, and not after `first_until_ms`. Workers count by
    #: minutes, and stores add up minutes to hours, so these are up to an hour apart. They are equal if that is known.
    first_ms: int
    first_until_ms: int
    last_ms: int
    last_job_id: str
    #: The message of the last job of the group, in one line; None if the store has that job, or that attempt of it, no
    #: longer, and for visitors who may not see it.
    message: str | None
    #: How many there were in each part of the range, the oldest first.
    history: list[int]
    #: Not seen in this range before the last mark.
    is_new: bool
    #: The search for the failed jobs of this group.
    q: str


class LastMark(Struct, frozen=True, kw_only=True):
    """The last mark in the audit log, for example of a deployment."""

    text: str
    at_ms: int


class ErrorsScreen(Struct, frozen=True, kw_only=True):
    """The groups, the most frequent first."""

    range: str
    groups: list[ListedErrorGroup]
    #: Of all groups, those on other pages included.
    group_count: int
    error_count: int
    #: False: workers keep at most 20 groups of a name and minute, and there were more.
    exact: bool
    mark: LastMark | None
    page: int
    is_last_page: bool


class GroupSum:
    """What is added up about one group."""

    def __init__(self, group: ErrorGroup, start_ms: int) -> None:
        self.latest = group
        self.first_ms = start_ms
        self.count = 0
        self.names: set[str] = set()
        self.queues: set[str] = set()
        self.history = [0] * BARS

    def add(self, group: ErrorGroup, tally: Tally, bar: int) -> None:
        """Add the errors of one step."""
        self.latest = max(self.latest, group, key=lambda one: one.last_ms)
        self.first_ms = min(self.first_ms, tally.start_ms)
        self.count += group.count
        self.names.add(tally.name)
        self.queues.add(tally.queue)
        self.history[bar] += group.count


async def errors(view: View) -> ErrorsScreen:
    """The groups of `range`: 1h, 8h, 24h (the default) or 7d."""
    name = view.param("range", "24h") or ""
    if name not in RANGES:
        raise InvalidValue("range", "one of " + ", ".join(RANGES), name)
    page = whole_page(view.param("page"))
    (long_ms, step_ms), reads, now_ms = RANGES[name], view.reads, view.now_ms
    tallies, recent, marks = await asyncio.gather(
        reads.tallies(now_ms - long_ms, now_ms + 1, step_ms),
        reads.last_hour(),
        reads.audit_log(AuditFilter(what="mark"), None, 1),
    )
    mark = next((LastMark(text=one.note or "", at_ms=one.at_ms) for one in marks.entries), None)
    found = _groups(tallies, now_ms, long_ms)
    first = _first_minutes(recent)
    total = sum(group.count for group in found.values())
    rows = [
        _row(group, total, _first(group, first.get(fingerprint), now_ms, step_ms), mark, now_ms - long_ms)
        for fingerprint, group in found.items()
    ]
    rows.sort(key=lambda row: (-row.count, -row.last_ms, row.fingerprint))
    return ErrorsScreen(
        range=name,
        groups=await _with_messages(view, rows[(page - 1) * PAGE : page * PAGE]),
        group_count=len(rows),
        error_count=total,
        exact=all(len(tally.error_groups) < MAX_ERROR_GROUPS for tally in tallies),
        mark=mark,
        page=page,
        is_last_page=len(rows) <= page * PAGE,
    )


async def _with_messages(view: View, rows: list[ListedErrorGroup]) -> list[ListedErrorGroup]:
    """The groups with what their last jobs said: workers count errors, and keep no texts of them."""
    if not rows or not view.can("see_payload"):
        return rows
    jobs = await view.reads.get_many([row.last_job_id for row in rows])
    return [structs.replace(row, message=_message(row, job)) for row, job in zip(rows, jobs, strict=True)]


def _message(row: ListedErrorGroup, job: Job | None) -> str | None:
    """The first line of the error that was counted: a job may have had others, of the same class too."""
    attempts = [] if job is None else [one for one in job.attempts if one.error_type == row.error_type and one.error]
    if not attempts:
        return None
    said = min(attempts, key=lambda one: abs((one.finished_ms or 0) - row.last_ms)).error or ""
    # The class stands above it.
    lines = said.removeprefix(row.error_type.rpartition(".")[2]).removeprefix(":").strip().splitlines()
    return lines[0][:MAX_MESSAGE] if lines else None


def _groups(tallies: list[Tally], now_ms: int, long_ms: int) -> dict[str, GroupSum]:
    found: dict[str, GroupSum] = {}
    for tally in tallies:
        bar = min(max((tally.start_ms - (now_ms - long_ms)) * BARS // long_ms, 0), BARS - 1)
        for one in tally.error_groups:
            found.setdefault(one.fingerprint, GroupSum(one, tally.start_ms)).add(one, tally, bar)
    return found


def _first_minutes(recent: list[Tally]) -> dict[str, int]:
    """The minute in which each group was first counted in the last hour."""
    found: dict[str, int] = {}
    for tally in recent:
        for one in tally.error_groups:
            found[one.fingerprint] = min(tally.start_ms, found.get(one.fingerprint, tally.start_ms))
    return found


def _first(group: GroupSum, minute_ms: int | None, now_ms: int, step_ms: int) -> tuple[int, int]:
    """Between which times the first one was: within a minute if that was in the last hour."""
    if group.count == 1:
        return group.latest.last_ms, group.latest.last_ms
    first_ms, until_ms = group.first_ms, group.first_ms + step_ms
    if minute_ms is not None:
        first_ms = minute_ms if first_ms > now_ms - HOUR_MS else first_ms
        until_ms = min(until_ms, minute_ms + MINUTE_MS)
    last_minute_ms = group.latest.last_ms - group.latest.last_ms % MINUTE_MS
    return first_ms, max(first_ms + MINUTE_MS, min(until_ms, last_minute_ms + MINUTE_MS))


def _row(group: GroupSum, total: int, first: tuple[int, int], mark: LastMark | None, since_ms: int) -> ListedErrorGroup:
    latest, names = group.latest, sorted(group.names)
    words = [] if latest.error_type == NO_TYPE else [("error", latest.error_type)]
    words += [("name", name) for name in names if len(names) == 1]
    return ListedErrorGroup(
        fingerprint=latest.fingerprint,
        error_type=latest.error_type,
        location=latest.location,
        names=names,
        queues=sorted(group.queues),
        count=group.count,
        share=group.count / total,
        first_ms=first[0],
        first_until_ms=first[1],
        last_ms=latest.last_ms,
        last_job_id=latest.last_job_id,
        message=None,
        history=group.history,
        is_new=mark is not None and mark.at_ms > since_ms and first[0] >= mark.at_ms - mark.at_ms % MINUTE_MS,
        q=" ".join(f"{word}:{shlex.quote(value)}" for word, value in words),
    )
