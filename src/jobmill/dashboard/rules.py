"""Rules of recurring jobs as people write them into a form."""

from __future__ import annotations

from typing import NamedTuple

from jobmill.core.durations import to_ms
from jobmill.core.job import Job
from jobmill.core.recurrence import Recurrence, recurrence
from jobmill.dashboard.view import View
from jobmill.errors import InvalidValue


async def recurring_job(view: View, id: str) -> Job:
    """A recurring job that the visitor may see."""
    job = await view.job(id)
    if job.recurrence is None:
        raise InvalidValue("id", "the id of a recurring job", id)
    return job


class Written(NamedTuple):
    """A rule as a form has it."""

    cron: str
    every: str
    timezone: str


def checked(written: Written) -> tuple[dict[str, str], Recurrence | None]:
    """What is wrong with a rule, by field; or the rule."""
    if bool(written.cron) == bool(written.every):
        return {"cron": "Write either a cron expression or an interval."}, None
    try:
        every_ms = to_ms(written.every, "every", least=1) if written.every else None
        zone = written.timezone or "UTC"
        made = recurrence(key="pinned", cron=written.cron or None, every_ms=every_ms, timezone=zone)
    except InvalidValue as error:
        field = "every" if error.field == "every_ms" else error.field
        return {field: f"Must be {error.expected}{f' ({error.advice})' if error.advice else ''}."}, None
    return {}, made
