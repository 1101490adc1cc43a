"""The recurring jobs: when they run, whether they are late, and what their last runs did."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from jobmill.client.doctor import LATE_MS
from jobmill.core.audit import AuditEntry, AuditFilter
from jobmill.core.due import BY_LANE, due_of
from jobmill.core.durations import shown_ms
from jobmill.core.job import DAY_MS, LIVE, Job
from jobmill.core.lifecycle import occurrence_of
from jobmill.core.recurrence import Recurrence, next_occurrence
from jobmill.core.tallies import MINUTE_MS
from jobmill.core.values import Filter
from jobmill.dashboard.fields import whole_page
from jobmill.dashboard.last_runs import LastRun, LastRuns, known_days
from jobmill.dashboard.rules import Written, checked, recurring_job
from jobmill.dashboard.schedules import HOUR_MS, CalendarDay, coming, coming_week, described, expression, first_of
from jobmill.dashboard.view import PAGE, View
from jobmill.errors import InvalidValue

#: How many recurring jobs are read at once, and how many of their next occurrences are shown.
READ: Final = 1_000
NEXT: Final = 5


class ListedRecurrence(Struct, frozen=True, kw_only=True):
    """One recurring job."""

    id: str
    name: str
    queue: str
    tenant: str | None
    key: str
    state: str
    #: The rule in words, and as it was written.
    schedule: str
    expression: str
    timezone: str
    until_ms: int | None
    #: The next runs; the first one is in the past if it is late.
    next_ms: list[int]
    #: For how long it should have run already, and why it did not if that is known.
    late_ms: int | None
    late_because: str | None
    #: A person holds it back.
    is_paused: bool
    paused_by: str | None
    pause_note: str | None
    #: Something else holds it back.
    held_by: list[str]
    #: Its runs so far.
    runs: int
    failed_runs: int
    last_error: str | None
    last_finished_ms: int | None
    #: Whether the last run that ended has failed.
    last_failed: bool
    #: The last 20 runs, the oldest first, of all jobs with this queue and name; None for visitors who may see some
    #: tenants only.
    last_runs: list[LastRun] | None
    #: How long the last attempt took.
    took_ms: int | None
    #: A person has edited the rule, and what code says.
    is_pinned: bool
    pinned_by: str | None
    pinned_ms: int | None
    code_says: str | None
    #: Why its rule cannot be read.
    fault: str | None


class RecurringScreen(Struct, frozen=True, kw_only=True):
    """Recurring jobs, late ones first, and the runs of the coming week."""

    jobs: list[ListedRecurrence]
    #: How many days the last runs go back, 0 for an hour: 7, and fewer where workers run very many names.
    runs_days: int | None
    #: How many were read, and whether these are all.
    count: int
    exact: bool
    page: int
    #: The page after this one: its number, and the cursor of the store if it begins with another 1,000 jobs.
    next_page: int | None
    next_cursor: str | None
    tenant: str | None
    tenants: list[str]
    week: list[CalendarDay]
    #: False: the week has more runs than are shown.
    week_exact: bool


class RecurEditScreen(Struct, frozen=True, kw_only=True):
    """The form for another rule: what is written, what is wrong with it, and what it would do."""

    id: str
    name: str
    cron: str
    every: str
    timezone: str
    #: What is wrong, by field.
    errors: dict[str, str]
    #: The rule in words, and its first occurrences; empty if something is wrong.
    schedule: str
    next_ms: list[int]
    #: What the job does now, and what code says if that is something else.
    now: str
    code_says: str | None
    until_ms: int | None
    back: str


async def recurring(view: View) -> RecurringScreen:
    """Recurring jobs, those that are late first: `page`, `cursor`, `tenant`."""
    page, now_ms = whole_page(view.param("page")), view.now_ms
    wanted = view.limited(Filter(states=LIVE, recurring=True, tenant=view.param("tenant")))
    found = await view.reads.find(wanted, view.param("cursor"), READ)
    jobs = sorted(found.jobs, key=lambda job: _urgency(job, now_ms))
    shown = jobs[(page - 1) * PAGE : page * PAGE]
    pins, runs = await asyncio.gather(_pins(view, shown), _last_runs(view, shown))
    week, week_exact = coming_week(found.jobs, now_ms, view.zone)
    is_last = len(jobs) <= page * PAGE
    return RecurringScreen(
        jobs=[_row(view.visible(job), pins.get(job.id), runs, now_ms) for job in shown],
        runs_days=None if runs is None else runs.days,
        count=len(jobs),
        exact=found.next is None and view.param("cursor") is None,
        page=page,
        next_page=page + 1 if not is_last else 1 if found.next is not None else None,
        next_cursor=view.param("cursor") if not is_last else found.next,
        tenant=wanted.tenant,
        tenants=list(view.access.tenants or ()),
        week=week,
        week_exact=week_exact and found.next is None,
    )


async def ask_recur_edit(view: View) -> RecurEditScreen:
    """The form for another rule of a recurring job: `id`; with `cron` or `every`, and `timezone`, what it would do."""
    view.require("recur_edit")
    job = await recurring_job(view, view.param("id") or "")
    rule = job.recurrence
    assert rule is not None
    is_new = not any(view.param(field) for field in ("cron", "every", "timezone"))
    written = _written(rule) if is_new else Written(*(view.param(field) or "" for field in Written._fields))
    errors, made = checked(written)
    next_ms = [] if made is None else first_of(made, view.now_ms, NEXT)
    return RecurEditScreen(
        id=job.id,
        name=job.name,
        cron=written.cron,
        every=written.every,
        timezone=written.timezone,
        errors=errors,
        schedule="" if made is None else described(made),
        next_ms=next_ms,
        now=described(rule),
        code_says=_code_says(rule),
        until_ms=rule.until_ms,
        back=view.local(view.param("back"), view.url("recurring")),
    )


def _written(rule: Recurrence) -> Written:
    return Written(rule.cron or "", "" if rule.every_ms is None else shown_ms(rule.every_ms), rule.timezone)


def _urgency(job: Job, now_ms: int) -> tuple[int, int, str]:
    due_ms = due_of(job)
    if due_ms is None:
        return (2, 0, job.name)
    return (0 if _late(job, now_ms)[0] is not None else 1, due_ms, job.name)


def _late(job: Job, now_ms: int) -> tuple[int | None, str | None]:
    """For how long a job should have run already, and the reason if it is a run that has not ended, or its lane."""
    due_ms = due_of(job)
    if due_ms is None or job.recurrence is None:
        return None, None
    if job.state == "waiting":
        because = None if job.held is None else f"it waits for a slot of its lane {job.lane}"
        return (now_ms - due_ms, because) if due_ms < now_ms - LATE_MS else (None, None)
    try:
        following_ms = next_occurrence(job.recurrence, occurrence_of(job), 0)
    except InvalidValue:
        return None, None
    if following_ms is None or following_ms >= now_ms - LATE_MS:
        return None, None
    return now_ms - following_ms, "its last run has not ended"


async def _pins(view: View, jobs: Sequence[Job]) -> dict[str, AuditEntry]:
    """Who pinned these jobs, as far as the newest entries of the audit log say it."""
    pinned = {job.id for job in jobs if job.recurrence is not None and job.recurrence.pinned}
    if not pinned:
        return {}
    page = await view.reads.audit_log(AuditFilter(what="pin"), None, 200)
    found: dict[str, AuditEntry] = {}
    for entry in page.entries:  # newest first
        for id in pinned.intersection(entry.ids):
            found.setdefault(id, entry)
    return found


async def _last_runs(view: View, jobs: Sequence[Job]) -> LastRuns | None:
    """What workers counted; None where there is nothing to show, or nobody may see the counts of all tenants."""
    if not jobs or view.access.tenants is not None:
        return None
    now_ms, minutes = view.now_ms, await view.reads.last_hour()
    days = known_days(minutes)
    hours = await view.reads.tallies(now_ms - days * DAY_MS, now_ms + 1, HOUR_MS) if days else []
    return LastRuns(hours, minutes, now_ms - HOUR_MS - (now_ms - HOUR_MS) % MINUTE_MS, days)


def _last_failed(job: Job) -> bool:
    return job.state == "waiting" and job.runs > 0 and job.errors == 0 and job.error is not None


def _row(job: Job, pin: AuditEntry | None, runs: LastRuns | None, now_ms: int) -> ListedRecurrence:
    rule = job.recurrence or Recurrence(key="")
    fault, next_ms = None, list[int]()
    try:
        next_ms = coming(job, now_ms, NEXT)
    except InvalidValue as error:
        fault = str(error)
    late_ms, because = _late(job, now_ms)
    held = job.held
    is_paused = held is not None and "person" in held.by
    return ListedRecurrence(
        id=job.id,
        name=job.name,
        queue=job.queue,
        tenant=job.tenant,
        key=rule.key,
        state=job.state,
        schedule=described(rule),
        expression=expression(rule),
        timezone=rule.timezone,
        until_ms=rule.until_ms,
        next_ms=next_ms,
        late_ms=late_ms,
        late_because=because,
        is_paused=is_paused,
        paused_by=held.who if held is not None and is_paused else None,
        pause_note=held.note if held is not None and is_paused else None,
        held_by=[] if held is None else [one for one in held.by if one not in ("person", BY_LANE)],
        runs=job.runs,
        failed_runs=job.failed_runs,
        last_error=job.last_error,
        last_finished_ms=job.last_finished_ms,
        last_failed=_last_failed(job),
        last_runs=None if runs is None else runs.of(job.queue, job.name, last_failed=_last_failed(job)),
        took_ms=_took_ms(job),
        is_pinned=rule.pinned,
        pinned_by=None if pin is None else pin.who,
        pinned_ms=None if pin is None else pin.at_ms,
        code_says=_code_says(rule),
        fault=fault,
    )


def _took_ms(job: Job) -> int | None:
    if job.state != "waiting" or job.errors or job.started_ms is None or job.last_finished_ms is None:
        return None
    return job.last_finished_ms - job.started_ms if job.started_ms <= job.last_finished_ms else None


def _code_says(rule: Recurrence) -> str | None:
    return described(rule.stated) if rule.pinned and rule.stated is not None else None
