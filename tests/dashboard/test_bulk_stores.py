"""On every store: the numbers of the question are those of the run, with refusals, holds and unique keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import jobmill
from jobmill import Client, Dashboard
from jobmill.dashboard.runs import BATCH
from tests.dashboard.test_bulk import ask, cancelled, finish, many, quick, start, states
from tests.dashboard.visitor import Visitor

#: More than one batch of a run.
JOBS = BATCH + 50


@pytest.fixture
async def jobs(store_url: str) -> AsyncIterator[Client]:
    async with jobmill.connect(store_url) as client:
        yield client


@pytest.mark.slow
async def test_the_numbers_of_the_question_are_those_of_the_run(jobs: Client) -> None:
    dashboard = quick(Dashboard(jobs))
    visitor = Visitor(dashboard)
    await cancelled(jobs, JOBS, queue="mail")
    for key in ("a", "b", "b"):
        await cancelled(jobs, 1, queue="mail", unique_key=key)
    await many(jobs, 1, queue="mail", unique_key="a")
    await many(jobs, 5, queue="other")

    async def both(act: str, expected: int, **fields: Any) -> None:
        preview = await visitor.json(ask(act, all="1", q="queue:mail"))
        assert preview["changed"] == expected, (act, preview)
        run = await finish(await start(visitor, dashboard, act, q="queue:mail", **fields))
        assert (run.status, run.done, run.problem) == ("done", expected, None), act

    await both("requeue", JOBS + 1, spread="1h")
    await both("reprioritize", JOBS + 2, priority="5")
    assert {job.priority async for job in jobs.find_all(queue="mail", states="waiting")} == {5}
    await both("reschedule", JOBS + 2, delay="2h")
    await both("hold", JOBS + 2, note="wait")
    await both("release", JOBS + 2)
    await both("release", 0)
    await both("cancel", JOBS + 2)
    await both("remove", JOBS + 4)
    assert await states(jobs) == {"waiting": 5}
    await dashboard.close()  # the last entry is written
    entries = [entry for entry in (await jobs.audit_log(who="dashboard")).entries if entry.count]
    assert len(entries) == 7
