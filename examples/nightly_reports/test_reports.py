"""The nights in which clocks change: the test kit moves the clock of the store, and nothing sleeps."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
import reports
from reports import open_branch

from jobmill.testing import JobRuns, ManualClock, Travel

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture(autouse=True)
def _empty_outbox() -> None:
    reports.outbox.clear()


def set_clock(clock: ManualClock, at: datetime) -> None:
    clock.advance((at - clock.now).total_seconds())


def times(runs: JobRuns, name: str = "report") -> list[datetime]:
    return [run.at for run in runs if run.name == name]


async def test_the_night_that_has_no_half_past_two(jobmill_clock: ManualClock, travel: Travel) -> None:
    set_clock(jobmill_clock, datetime(2030, 3, 30, 12, tzinfo=BERLIN))
    await open_branch("Berlin")

    runs = await travel("3d")

    # On March 31 the clock jumps from 02:00 to 03:00. The report comes right after the gap, once.
    assert [at.astimezone(BERLIN).strftime("%d %H:%M") for at in times(runs)] == ["31 03:00", "01 02:30", "02 02:30"]
    assert [run.result for run in runs if run.name == "report"] == [
        date(2030, 3, 30),
        date(2030, 3, 31),
        date(2030, 4, 1),
    ]


async def test_the_night_that_has_half_past_two_twice(jobmill_clock: ManualClock, travel: Travel) -> None:
    set_clock(jobmill_clock, datetime(2030, 10, 26, 12, tzinfo=BERLIN))
    await open_branch("Berlin")

    runs = await travel("2d")

    # On October 27 the clock goes from 03:00 back to 02:00. The first half past two counts.
    assert times(runs) == [datetime(2030, 10, 27, 0, 30, tzinfo=UTC), datetime(2030, 10, 28, 1, 30, tzinfo=UTC)]
    assert reports.outbox[:2] == ["Berlin: sales of 2030-10-26", "Berlin: sales of 2030-10-27"]


async def test_no_day_of_the_year_is_missing_or_reported_twice(jobmill_clock: ManualClock, travel: Travel) -> None:
    set_clock(jobmill_clock, datetime(2030, 1, 1, 12, tzinfo=BERLIN))
    await open_branch("Berlin")

    runs = await travel("365d")

    days = [run.result for run in runs if run.name == "report"]
    assert days == [date(2030, 1, 1) + timedelta(days=number) for number in range(365)]


async def test_each_branch_by_its_own_clock(jobmill_clock: ManualClock, travel: Travel) -> None:
    set_clock(jobmill_clock, datetime(2030, 7, 1, 12, tzinfo=UTC))
    for branch in reports.BRANCHES:
        await open_branch(branch)

    runs = await travel("1d")

    # Tokyo is first, then Berlin, then New York: 02:30 comes from the east.
    assert [run.payload["branch"] for run in runs if run.name == "report"] == ["Tokyo", "Berlin", "New York"]
    assert [at.hour for at in times(runs)] == [17, 0, 6]


async def test_the_digest_rests_on_weekends(jobmill_clock: ManualClock, travel: Travel) -> None:
    set_clock(jobmill_clock, datetime(2030, 7, 4, 12, tzinfo=BERLIN))  # a Thursday

    runs = await travel("5d")

    assert [at.strftime("%a") for at in times(runs, "digest")] == ["Fri", "Mon", "Tue"]


async def test_a_late_report_is_about_the_day_that_it_was_meant_for(jobmill_clock: ManualClock, travel: Travel) -> None:
    set_clock(jobmill_clock, datetime(2030, 7, 1, 12, tzinfo=BERLIN))
    await open_branch("Berlin")
    jobmill_clock.advance(20 * 3600)  # no worker ran in the night

    await travel("1m")

    assert reports.outbox == ["Berlin: sales of 2030-07-01"]


async def test_opening_a_branch_twice_makes_one_job(travel: Travel) -> None:
    first, second = await open_branch("Berlin"), await open_branch("Berlin")

    assert (second.status, second.id) == ("updated", first.id)
    assert times(await travel("1d")) == [datetime(2030, 1, 1, 1, 30, tzinfo=UTC)]
