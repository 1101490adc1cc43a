"""Recurring jobs that both work: one run for each slot, whoever runs it, and none that stops for good."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bson
import pytest

from tests.helpers import until
from tests.interop.monque.monque import Generation
from tests.interop.monque.process import MonqueProcess
from tests.interop.monque.scene import Scene, generations, scene_at

pytestmark = [pytest.mark.slow, pytest.mark.stores("mongo")]

ROUNDS = 12
#: Its next slot is months away, or hours: it does not come by itself while a test runs.
RARE = "0 0 1 1 *"


@pytest.fixture
async def scene(mongo_url: str, tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene_at(mongo_url, tmp_path) as made:
        yield made


async def have_slot_pass(scene: Scene, id: str) -> None:
    """As if its time had come: for others this is what time does, too."""
    which = {"_id": bson.ObjectId(id), "status": "pending"}
    past = datetime.now(UTC) - timedelta(seconds=1)
    changed = await scene.documents.update_one(which, {"$set": {"nextRunAt": past}})
    assert changed.modified_count == 1


async def is_armed(scene: Scene, id: str) -> dict[str, Any]:
    """The document, once it waits for a slot to come."""

    async def waits() -> bool:
        job = await scene.get(id)
        return bool(job["status"] == "pending" and job["nextRunAt"] > datetime.now(UTC))

    await until(waits, 20)
    return await scene.get(id)


def total(scene: Scene, *peers: MonqueProcess) -> int:
    return len(scene.notes()) + sum(peer.runs().total() for peer in peers)


@pytest.mark.parametrize("whose", ["ours", "theirs"])
async def test_one_run_for_each_slot(scene: Scene, whose: str) -> None:
    async with scene.peer(1, poll_ms=50) as one, scene.peer(2, poll_ms=50) as other:
        if whose == "ours":
            id = (await scene.jobs.enqueue("work", {"ms": 5}, cron=RARE, timezone="UTC", key="often")).id
        else:
            id = await other.ask("enqueue", name="work", data={"ms": 5}, cron=RARE, timezone="UTC", unique_key="often")
        first = await is_armed(scene, id)
        assert (first["repeatInterval"], first["timezone"], first["uniqueKey"]) == (RARE, "UTC", "often")
        slot = (await scene.jobs.get(id)).due_at
        await one.ask("start")
        await other.ask("start")
        await scene.worker()
        for n in range(ROUNDS):
            await have_slot_pass(scene, id)
            await until(lambda n=n: total(scene, one, other) == n + 1, 20)  # type: ignore[misc]
            job = await is_armed(scene, id)
            assert ((await scene.jobs.get(id)).due_at, job["failCount"]) == (slot, 0)
            assert total(scene, one, other) == n + 1
        assert await scene.documents.count_documents({}) == 1
        assert one.complaints() + other.complaints() == []
        assert await other.ask("check") == {}


async def test_the_zone_is_the_same_for_both(mongo_url: str, tmp_path: Path) -> None:
    """Where every Monque knows timezones, it re-arms the job itself."""
    async with scene_at(mongo_url, tmp_path, monque="2") as scene:
        await check_that_the_zone_is_the_same(scene)


async def check_that_the_zone_is_the_same(scene: Scene) -> None:
    rule = {"cron": "30 4 * * *", "timezone": "America/New_York"}
    ours = (await scene.jobs.enqueue("work", key="a", **rule)).id  # type: ignore[arg-type]
    async with scene.peer() as peer:
        theirs = await peer.ask("enqueue", name="work", **rule)
        assert (await scene.get(ours))["nextRunAt"] == (await scene.get(theirs))["nextRunAt"]
        await peer.ask("start")
        for id in (ours, theirs):
            before = (await scene.get(id))["nextRunAt"]
            await have_slot_pass(scene, id)
            await until(lambda id=id: peer.runs()[id])  # type: ignore[misc]  # noqa: A006
            assert (await is_armed(scene, id))["nextRunAt"] == before


@generations
async def test_what_monque_cannot_hold_is_armed_again_by_us(scene: Scene, generation: Generation) -> None:
    """It takes an interval for a job that runs once, and ends it."""
    id = (await scene.jobs.enqueue("work", every="1h", key="often")).id
    async with scene.peer(generation) as peer:
        assert "repeatInterval" not in await scene.get(id)
        await peer.ask("start")
        await peer.event("end")
        assert (await scene.get(id))["status"] == "completed"
        await scene.jobs.purge()
        job = await scene.get(id)
        assert job["status"] == "pending"
        assert datetime.now(UTC) < job["nextRunAt"] <= datetime.now(UTC) + timedelta(hours=1)
        assert (job["failCount"], peer.runs()) == (0, {id: 1})
        await scene.jobs.purge()  # nothing happens
        assert await scene.get(id) == job
        assert await peer.ask("check") == {}
    # Cancelled is cancelled, by whom it may be.
    async with scene.peer(generation) as peer:
        assert await peer.ask("cancel", job=id)
        await scene.jobs.purge()
        assert (await scene.get(id))["status"] == "cancelled"


RULES: dict[str, dict[str, Any]] = {
    "an interval": {"every": "1h"},
    "six fields": {"cron": "30 0 9 * * *"},
    "a timezone": {"cron": "0 9 * * *", "timezone": "America/New_York"},
    "an end": {"cron": RARE, "until": datetime(2999, 1, 1, tzinfo=UTC)},
}


@pytest.mark.alone
@pytest.mark.parametrize(
    ("rule", "generation", "is_busy"),
    [
        ("an interval", 2, True),
        ("a timezone", 2, False),
        pytest.param("an interval", 1, False, marks=pytest.mark.extended),
        pytest.param("six fields", 1, False, marks=pytest.mark.extended),
        pytest.param("a timezone", 1, False, marks=pytest.mark.extended),
        pytest.param("a timezone", 1, True, marks=pytest.mark.extended),
        pytest.param("an end", 2, False, marks=pytest.mark.extended),
    ],
)
async def test_rules_that_are_ours_alone_are_armed_again_within_a_second(
    scene: Scene, rule: str, generation: Generation, is_busy: bool
) -> None:
    """By a worker that does not run these jobs, whether it sleeps or has much to do. The janitor takes many seconds."""
    id = (await scene.jobs.enqueue("theirs", key="often", **RULES[rule])).id
    slot = None if rule == "an interval" else (await scene.jobs.get(id)).due_at
    delays: list[timedelta] = []
    async with scene.peer(generation) as peer:
        await peer.ask("start", names=["theirs"])
        await scene.worker("--concurrency", "2")
        for n in range(3):
            if slot is not None or n:
                await have_slot_pass(scene, id)
            if is_busy:
                await scene.jobs.enqueue_many([scene.jobs.draft("work", {"ms": 20})] * 300)
            await until(lambda n=n: peer.runs()[id] == n + 1)  # type: ignore[misc]
            armed = await is_armed(scene, id)
            assert slot in ((await scene.jobs.get(id)).due_at, None)
            assert armed["jobmill"]["runs"] == n + 1
            delays.append(armed["updatedAt"] - armed["jobmill"]["lastFinishedAt"])
        # The machine may be busy with something else for a while.
        assert (min(delays) < timedelta(seconds=1), max(delays) < timedelta(seconds=15)) == (True, True), delays
        assert await peer.ask("check") == {}


@generations
async def test_what_fails_for_good_comes_again(scene: Scene, generation: Generation) -> None:
    id = (await scene.jobs.enqueue("work", {"fails": 9}, cron=RARE, key="often", max_attempts=1)).id
    slot = (await scene.jobs.get(id)).due_at
    worker = await scene.worker()
    await have_slot_pass(scene, id)
    await until(lambda: scene.notes())
    job = await is_armed(scene, id)
    assert (job["failCount"], job["failReason"]) == (0, "attempt 1 is no good")
    assert (await scene.jobs.get(id)).due_at == slot
    worker.terminate()
    assert worker.wait(20) == 0
    async with scene.peer(generation, max_retries=1) as peer:
        await peer.ask("start")
        await have_slot_pass(scene, id)
        await peer.event("end")
        assert (await scene.get(id))["status"] == "failed"  # Monque never runs it again
        await scene.jobs.purge()
        job = await scene.get(id)
        assert (job["status"], job["failCount"]) == ("pending", 0)
        assert (await scene.jobs.get(id)).due_at == slot
        assert await peer.ask("check") == {}
