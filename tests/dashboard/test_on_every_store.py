"""The pages and acts that read or change most of a store, on every store."""

from __future__ import annotations

from typing import Any

import jobmill
from jobmill import Client, Dashboard
from tests.dashboard.visitor import Visitor


async def _row(jobs: Client) -> dict[str, Any]:
    rows: list[dict[str, Any]] = (await Visitor(Dashboard(jobs)).json("/recurring"))["jobs"]
    assert len(rows) == 1
    return rows[0]


async def test_the_acts_on_a_recurring_job(store_url: str) -> None:
    async with jobmill.connect(store_url) as jobs:
        visitor = Visitor(Dashboard(jobs))
        rule: dict[str, Any] = {"cron": "0 8 * * *", "timezone": "Europe/Berlin", "key": "nightly"}
        id = (await jobs.enqueue("report", {"n": 1}, **rule)).id
        before = await _row(jobs)
        assert (before["schedule"], before["key"]) == ("Every day at 08:00 Europe/Berlin", "nightly")
        assert len(before["next_ms"]) == 5

        assert "is paused" in (await visitor.act("recur_pause", id=id, note="api down", back="/recurring")).words
        assert "is pinned" in (await visitor.act("recur_edit", id=id, cron="0 9 * * *", back="/recurring")).words
        row = await _row(jobs)
        assert (row["is_paused"], row["paused_by"], row["pause_note"]) == (True, "dashboard", "api down")
        assert (row["is_pinned"], row["pinned_by"], row["schedule"]) == (True, "dashboard", "Every day at 09:00 UTC")
        assert row["code_says"] == "Every day at 08:00 Europe/Berlin"

        assert "runs again" in (await visitor.act("recur_resume", id=id, back="/recurring")).words
        assert "runs once more" in (await visitor.act("recur_run", id=id, back="/recurring")).words
        (extra,) = (await jobs.find(name="report", recurring=False)).jobs
        assert extra.payload == {"n": 1}
        assert "follows its code" in (await visitor.act("recur_release", id=id, back="/recurring")).words
        assert await _row(jobs) == before

        acts = [entry["what"] for entry in (await visitor.json("/audit"))["entries"]]
        assert acts == ["release_pin", "run_now", "release", "pin", "hold"]


async def test_pages_of_an_empty_store(store_url: str) -> None:
    async with jobmill.connect(store_url) as jobs:
        visitor = Visitor(Dashboard(jobs))
        for path in ("/workers", "/audit", "/system", "/errors", "/recurring"):
            assert (await visitor.get(path)).status == 200, path
        assert (await visitor.get("/audit?cursor=nonsense")).status == 400
        assert (await visitor.get("/recurring?cursor=nonsense")).status == 400
        assert (await visitor.json("/system"))["store"]["address"] == jobs.store.address
