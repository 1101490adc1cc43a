"""Golden: job schedulers. Node makes the next run when it claims one, we when we settle it: compared after that."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.conftest import BEGIN_MS
from tests.interop.twins import Twins

pytestmark = pytest.mark.stores("redis")

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
TEMPLATE = {"name": "send", "data": {"to": "ada"}, "opts": {"attempts": 3, "backoff": {"type": "fixed", "delay": 500}}}


async def run(both: Twins, id: str, n: int = 1, *, fails: bool = False) -> None:
    """Claim a run of a scheduler and settle it, n times."""
    both.events_by_job = True
    for _ in range(n):
        await both.unseen("claim_run", id)
        await (both.error_run(id, final=True) if fails else both.complete_run(id, 1))


@pytest.mark.parametrize(
    "rule",
    [
        {"every": MINUTE},
        {"every": MINUTE, "startDate": BEGIN_MS + 30_000},
        {"every": MINUTE, "startDate": BEGIN_MS - 30_000},
        {"every": MINUTE, "endDate": BEGIN_MS + DAY},
        {"every": MINUTE, "limit": 5},
        {"every": MINUTE, "offset": 10_000},
        {"every": 7_000},
        {"pattern": "*/5 * * * *"},
        {"pattern": "30 */5 * * * *"},
        {"pattern": "0 9 * * 1", "tz": "Europe/Berlin"},
        {"pattern": "0 3 * * *", "tz": "America/New_York", "limit": 2},
        {"pattern": "0 3 * * *", "tz": "UTC", "startDate": BEGIN_MS + 3 * DAY, "endDate": BEGIN_MS + 9 * DAY},
        {"pattern": "0 3 1 * *", "tz": "UTC", "immediately": True},
    ],
    ids=str,
)
async def test_schedule(both: Twins, rule: dict[str, Any]) -> None:
    await both.schedule("nightly", **rule, **TEMPLATE)


async def test_schedule_with_nothing_but_a_rule(both: Twins) -> None:
    await both.schedule("nightly", every=MINUTE, name="send")


async def test_every(both: Twins) -> None:
    await both.schedule("nightly", every=MINUTE, **TEMPLATE)
    await run(both, "nightly")
    await both.later(60)
    await run(both, "nightly")
    await both.later(61)
    await run(both, "nightly")


async def test_cron(both: Twins) -> None:
    await both.schedule("nightly", pattern="0 3 * * *", tz="Europe/Berlin", **TEMPLATE)
    for _ in range(3):
        await both.later(DAY / 1_000)
        await run(both, "nightly")


@pytest.mark.parametrize("rule", [{"every": MINUTE}, {"pattern": "* * * * *", "tz": "UTC"}], ids=str)
async def test_slots_that_were_missed(both: Twins, rule: dict[str, Any]) -> None:
    await both.schedule("nightly", **rule, **TEMPLATE)
    await both.later(605)
    await run(both, "nightly")


@pytest.mark.parametrize("rule", [{"every": MINUTE}, {"pattern": "* * * * *", "tz": "UTC"}], ids=str)
async def test_limit(both: Twins, rule: dict[str, Any]) -> None:
    await both.schedule("nightly", **rule, limit=2, **TEMPLATE)
    for _ in range(2):
        await both.later(61)
        await run(both, "nightly")


@pytest.mark.parametrize("rule", [{"every": MINUTE}, {"pattern": "* * * * *", "tz": "UTC"}], ids=str)
async def test_end(both: Twins, rule: dict[str, Any]) -> None:
    # After the second run both agree that it is over. Node looks at the time of the run only, so that one of its runs
    # may lie after the end; our slots never do.
    await both.schedule("nightly", **rule, endDate=BEGIN_MS + 121_000, **TEMPLATE)
    for _ in range(2):
        await both.later(61)
        await run(both, "nightly")


async def test_a_run_that_fails(both: Twins) -> None:
    await both.schedule("nightly", every=MINUTE, **TEMPLATE)
    await run(both, "nightly", fails=True)


async def test_update_the_rule(both: Twins) -> None:
    await both.schedule("nightly", every=MINUTE, startDate=BEGIN_MS + 30_000, **TEMPLATE)
    await both.schedule("nightly", every=2 * MINUTE, **TEMPLATE)
    await both.schedule("nightly", pattern="0 3 * * *", tz="UTC", **TEMPLATE)
    await both.schedule("nightly", pattern="0 4 * * *", tz="UTC", **TEMPLATE)


async def test_update_the_template(both: Twins) -> None:
    await both.schedule("nightly", every=MINUTE, startDate=BEGIN_MS + 30_000, **TEMPLATE)
    await both.schedule("nightly", every=MINUTE, **TEMPLATE | {"data": {"to": "bob"}})
    await both.schedule("nightly", every=MINUTE, name="send")


async def test_unschedule(both: Twins) -> None:
    await both.schedule("nightly", pattern="0 3 * * *", tz="UTC", **TEMPLATE)
    await both.unschedule("nightly")
    await both.unschedule("nightly")


async def test_two_schedulers(both: Twins) -> None:
    await both.schedule("nightly", pattern="0 3 * * *", tz="UTC", **TEMPLATE)
    await both.schedule("often", every=MINUTE, name="send")
    await run(both, "often")
    await both.unschedule("nightly")


@pytest.mark.parametrize("rule", [{"every_ms": MINUTE}, {"cron": "0 3 * * *", "timezone": "Europe/Berlin"}], ids=str)
async def test_a_recurring_job_of_ours(both: Twins, rule: dict[str, Any]) -> None:
    """It is a scheduler whose id is its name and its key."""
    await both.add_recurring("a", "key", **rule)
    await both.later(DAY / 1_000)
    await run(both, "send key")
    await both.later(DAY / 1_000)
    await run(both, "send key")
