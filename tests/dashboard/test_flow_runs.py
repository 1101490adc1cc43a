"""Retry and cancel of a large flow run in the background, as acts on all jobs that match do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import jobmill
from jobmill import Access, Client, Dashboard
from jobmill.core.flows import After
from jobmill.core.values import NewJob
from jobmill.dashboard.runs import BATCH, BulkRun
from jobmill.dashboard.selection import MAX_IDS
from tests.dashboard.test_bulk import finish, quick, recorded, run_of, until
from tests.dashboard.visitor import Visitor

pytestmark = pytest.mark.stores("sqlite")

#: Jobs of the flow: a chain of 5 waits for all others.
JOBS = MAX_IDS + 200
FLOW = "nightly"


@pytest.fixture
async def jobs(tmp_path: Path) -> AsyncIterator[Client]:
    async with jobmill.connect(f"sqlite:///{tmp_path / 'jobs.db'}") as client:
        yield client


@pytest.fixture
async def dashboard(jobs: Client) -> AsyncIterator[Dashboard]:
    made = quick(Dashboard(jobs))
    yield made
    await made.close()


async def make_flow(jobs: Client, tenant: str | None = None) -> None:
    """The last job of the chain comes first, so that it is requeued last."""
    parts = [f"part-{n}" for n in range(JOBS - 5)]
    after = {f"chain-{n}": [f"chain-{n + 1}"] for n in range(4)} | {"chain-4": parts} | {id: [] for id in parts}
    await jobs.store.enqueue(
        [
            NewJob(
                id=id,
                name="work",
                queue="default",
                payload_json=b"{}",
                flow=FLOW,
                tenant=tenant,
                after=tuple(map(After, waits_for)),
            )
            for id, waits_for in after.items()
        ]
    )


async def states(jobs: Client) -> dict[str, int]:
    progress = await (await jobs.flow(FLOW)).progress()
    return {state: count for state in ("waiting", "cancelled") if (count := getattr(progress, state))}


async def begin(visitor: Visitor, act: str, **fields: str) -> BulkRun:
    return run_of(visitor.app, await visitor.act(act, follow=False, id=FLOW, **fields))


async def test_a_large_flow_is_cancelled_and_retried(jobs: Client, dashboard: Dashboard) -> None:
    visitor = Visitor(dashboard)
    await make_flow(jobs)
    asked = await visitor.get(f"/ask/flow?act=flow_cancel&id={FLOW}")
    assert f"{JOBS:,} will be cancelled" in asked.words
    assert "It is done in the background, and you can stop it." in asked.words
    run = await finish(await begin(visitor, "flow_cancel", note="wrong day"))
    assert (run.status, run.total, run.done, run.refused.count) == ("done", JOBS, JOBS, 0)
    assert await states(jobs) == {"cancelled": JOBS}
    page = await visitor.get(f"/runs/{run.id}")
    assert f"Cancel {JOBS:,} jobs" in page.words
    assert f"flow:{FLOW}" in page.words
    (entry,) = await recorded(jobs, "flow_cancel")
    assert (entry.count, entry.filter, entry.note) == (JOBS, {"flow": FLOW}, "wrong day")

    run = await finish(await begin(visitor, "flow_retry"))
    assert (run.status, run.total, run.done, run.refused.count) == ("done", JOBS, JOBS, 0)
    assert await states(jobs) == {"waiting": JOBS}
    (entry,) = await recorded(jobs, "flow_retry")
    assert (entry.count, entry.note) == (JOBS, None)


async def test_it_can_be_stopped(jobs: Client, dashboard: Dashboard) -> None:
    visitor = Visitor(dashboard)
    await make_flow(jobs)
    dashboard.runs.rest_s = 60
    run = await begin(visitor, "flow_cancel")
    await until(lambda: run.done == BATCH)
    data = await visitor.json(f"/runs/{run.id}")
    assert (data["done"], data["total"], data["can_stop"]) == (BATCH, JOBS, True)
    await visitor.act("stop_run", run=run.id)
    await finish(run)
    assert (run.status, run.done) == ("stopped", BATCH)
    assert await states(jobs) == {"waiting": JOBS - BATCH, "cancelled": BATCH}
    (entry,) = await recorded(jobs, "flow_cancel")
    assert entry.note == f"stopped by dashboard after {BATCH} of {JOBS:,}"


async def test_a_small_part_is_done_at_once(jobs: Client, dashboard: Dashboard) -> None:
    await make_flow(jobs)
    await jobs.cancel([f"part-{n}" for n in range(3)])
    page = await Visitor(dashboard).act("flow_retry", id=FLOW)
    assert "3 jobs of the flow were requeued." in page.words


async def test_a_visitor_of_a_tenant(jobs: Client) -> None:
    await make_flow(jobs, "acme")
    dashboard = quick(Dashboard(jobs, authorize=lambda _: Access(Access.ALL.actions, tenants={"acme"})))
    visitor = Visitor(dashboard)
    run = await finish(await begin(visitor, "flow_cancel"))
    assert (run.done, run.order.chips) == (JOBS, [f"flow:{FLOW}", "tenant:acme"])
    assert (await visitor.get(f"/runs/{run.id}")).status == 200
    other = Visitor(Dashboard(jobs, authorize=lambda _: Access(Access.ALL.actions, tenants={"globex"})))
    other.app.runs = dashboard.runs
    assert (await other.get(f"/runs/{run.id}")).status == 404
    await dashboard.close()
