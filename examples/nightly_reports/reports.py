"""Nightly reports of branches in several timezones; README.md says how to run it."""

from __future__ import annotations

import asyncio
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import jobmill

BRANCHES = {"Berlin": "Europe/Berlin", "New York": "America/New_York", "Tokyo": "Asia/Tokyo"}

jobs = jobmill.connect()
#: What went out. A real shop sends mails.
outbox: list[str] = []


@jobs.handler(max_attempts=5)
async def report(context: jobmill.Context, branch: str) -> date:
    """Report the day before, by the clock of the branch."""
    # Of the occurrence, not of now: after an outage the report is late, but it still is about the right day.
    day = occurrence(context, BRANCHES[branch]).date() - timedelta(days=1)
    outbox.append(f"{branch}: sales of {day}")
    return day


# A handler without arguments can declare its recurrence. Workers state it when they start; none of its runs is doubled.
@jobs.handler(cron="0 7 * * mon-fri", timezone="Europe/Berlin")
async def digest(context: jobmill.Context) -> None:
    outbox.append(f"digest of {occurrence(context, 'Europe/Berlin').date()}")


async def open_branch(branch: str) -> jobmill.Enqueued[date]:
    """One recurring job for each branch. The key makes it the same job however often this is called."""
    rule = report.options(cron="30 2 * * *", timezone=BRANCHES[branch], key=f"nightly-{branch}")
    return await rule.enqueue(branch=branch)


def occurrence(context: jobmill.Context, timezone: str) -> datetime:
    """When this run was meant to be, on the wall clock of a timezone."""
    job = context.job
    # A single job that somebody enqueues by hand has no occurrence.
    meant_ms = job.due_ms if job.occurrence_ms is None else job.occurrence_ms
    return datetime.fromtimestamp(meant_ms / 1000, ZoneInfo(timezone))


async def main() -> None:
    async with jobs:
        for branch, timezone in BRANCHES.items():
            job = await (await open_branch(branch)).job()
            assert job.due_at is not None
            print(f"{branch}: {job.due_at.astimezone(ZoneInfo(timezone))}")


if __name__ == "__main__":
    asyncio.run(main())
