"""mongodb-cron 1.9.0 for Node and our crontab on one collection: what one leaves the other takes, and nothing twice."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest

from jobmill.core.durations import to_datetime
from tests.helpers import until
from tests.interop.mongodb_cron.scene import Document, Scene, errors, runs, scene_at, slots
from tests.kit.node import Packages, TalkingProcess

pytestmark = [pytest.mark.slow, pytest.mark.stores("mongo")]

FOR_EVER = 60_000
EVERY, EVERY_MS = "*/5 * * * * *", 5_000
SLOTS = 4
#: A run that ends this shortly before a slot may have looked at the clock after it, on a busy machine.
LATE_MS = 4_000


@pytest.fixture
async def scene(mongo_url: str, node_packages: Packages) -> AsyncIterator[Scene]:
    async with scene_at(mongo_url, node_packages) as made:
        yield made


def now() -> datetime:
    """Of whole milliseconds."""
    return to_datetime(int(time.time() * 1_000))


def recurring(ids: range, first_ms: int) -> list[Document]:
    """Documents of so many slots, of which the first is then."""
    last = to_datetime(first_ms + EVERY_MS * (SLOTS - 1) + 500)
    return [
        {"_id": id, "sleepUntil": to_datetime(first_ms), "interval": EVERY, "repeatUntil": last, "n": id} for id in ids
    ]


def check_slots(ran: list[tuple[int, int]], first_ms: int) -> None:
    """On the first slot, and on each that follows; one is left out, or moved, only where the run before came too late.

    Then we take the next slot of the grid, and mongodb-cron the same moment.
    """
    last_ms = first_ms + EVERY_MS * (SLOTS - 1)
    expected_ms, ended_ms = first_ms, 0
    for occurrence_ms, end_ms in ran:
        is_late = ended_ms + LATE_MS > expected_ms
        is_next = occurrence_ms == expected_ms <= last_ms
        assert is_next or (occurrence_ms > expected_ms and is_late), (
            f"{occurrence_ms} from {first_ms} to {last_ms}: {ran}"
        )
        expected_ms, ended_ms = (occurrence_ms // EVERY_MS + 1) * EVERY_MS, end_ms
    assert expected_ms > last_ms or ended_ms + LATE_MS > expected_ms, f"it did not run to its end {last_ms}: {ran}"


@pytest.mark.extended
async def test_every_document_runs_exactly_once_and_recurring_ones_on_their_slots(scene: Scene) -> None:
    at = now()
    plain = [{"_id": n, "sleepUntil": at - timedelta(seconds=1), "ms": n % 4} for n in range(2_000)]
    gone = [{"_id": n, "sleepUntil": at, "autoRemove": True, "ms": 1} for n in range(2_000, 2_400)]
    later = [{"_id": n, "sleepUntil": at + timedelta(milliseconds=n), "ms": 1} for n in range(2_400, 2_900)]
    await scene.documents.insert_many([*plain, *gone, *later])
    async with contextlib.AsyncExitStack() as stack:
        theirs = [await stack.enter_async_context(scene.theirs(4)) for _ in range(2)]
        ours = [await stack.enter_async_context(scene.ours(workers)) for workers in (1, 1, 25)]
        everybody = (*theirs, *ours)
        # Not before: what nobody has time for until its end does not run at all.
        await until(lambda: runs(*everybody).total() > 2_000, 60)
        first_ms = (int(time.time() * 1_000) // EVERY_MS + 2) * EVERY_MS
        again = recurring(range(2_900, 3_000), first_ms)
        await scene.documents.insert_many(again)
        await scene.ended()
        for process in everybody:
            await process.ask("stop")
        assert errors(*everybody) == []
        assert {id: count for id, count in runs(*everybody).items() if id < 2_900} == dict.fromkeys(range(2_900), 1)
        ran_at = slots(*everybody)
        for document in again:
            check_slots(ran_at[document["_id"]], first_ms)
        # All had a part in it, in the recurring ones too.
        assert all(runs(process) for process in everybody)
        for side in (theirs, ours):
            assert any(id >= 2_900 for id in runs(*side))
    left = [document["_id"] async for document in scene.documents.find({"sleepUntil": None}, sort={"_id": 1})]
    assert left == [*range(2_000), *range(2_400, 3_000)]
    # Nothing but the date was written.
    assert [one async for one in scene.documents.find({"_id": {"$gte": 2_900}}, sort={"_id": 1})] == [
        {**document, "sleepUntil": None} for document in again
    ]


async def test_fields_at_other_paths_and_a_condition(scene: Scene) -> None:
    scene.paths = {"sleep_until": "cron.at", "interval": "cron.rule", "auto_remove": "cron.gone"}
    scene.condition = {"kind": "mail"}
    at = now()
    for n in range(300):
        cron = {"at": at, "gone": n % 3 == 0}
        await scene.documents.insert_one({"_id": n, "kind": "mail", "cron": cron, "ms": 2})
    await scene.documents.insert_one({"_id": 300, "kind": "other", "cron": {"at": at}})
    async with scene.theirs(3) as theirs, scene.ours(1) as one, scene.ours(5) as many:
        everybody = (theirs, one, many)
        await until(lambda: runs(*everybody).total() == 300, 30)
        for process in everybody:
            await process.ask("stop")
        assert runs(*everybody) == dict.fromkeys(range(300), 1)
        assert errors(*everybody) == []
    assert await scene.documents.count_documents({"kind": "mail", "cron": {"at": None, "gone": False}}) == 200
    assert await scene.documents.count_documents({}) == 201
    assert (await scene.documents.find_one({"_id": 300})) == {"_id": 300, "kind": "other", "cron": {"at": at}}


# ------------------------------------------------------------------------------------------------ crashes


async def crash(scene: Scene, victim: TalkingProcess, jobs: int) -> float:
    """Kill it in the middle of its handlers; when its last lock ends."""
    await until(lambda: len(runs(victim)) == jobs, 20)
    victim.kill()
    locks: list[float] = [one["sleepUntil"].timestamp() async for one in scene.documents.find()]
    assert min(locks) > time.time()
    return min(locks) * 1_000


def check_recovered(left: Counter[int], process: TalkingProcess, free_ms: float) -> None:
    """The process ran what the other had left, once each, when the locks had ended."""
    assert runs(process) == left
    assert min(event["at"] for event in process.events if event["event"] == "run") >= free_ms


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.extended), 10])
async def test_we_recover_what_a_killed_mongodb_cron_left(scene: Scene, workers: int) -> None:
    scene.lock_ms = 3_000
    at = now()
    await scene.documents.insert_many([{"_id": n, "sleepUntil": at, "theirs_ms": FOR_EVER} for n in range(10)])
    async with scene.theirs(10) as victim:
        free_ms = await crash(scene, victim, 10)
        left = runs(victim)
    async with scene.ours(workers) as ours:
        await scene.ended()
        await ours.ask("stop")
        check_recovered(left, ours, free_ms)
        assert errors(ours) == []


@pytest.mark.parametrize("workers", [1, pytest.param(10, marks=pytest.mark.extended)])
async def test_mongodb_cron_recovers_what_we_left_when_killed(scene: Scene, workers: int) -> None:
    scene.lock_ms = 3_000
    at = now()
    await scene.documents.insert_many([{"_id": n, "sleepUntil": at, "ours_ms": FOR_EVER} for n in range(workers)])
    async with scene.ours(workers) as victim:
        free_ms = await crash(scene, victim, workers)
        left = runs(victim)
    async with scene.theirs(3) as theirs:
        await scene.ended()
        await theirs.ask("stop")
        check_recovered(left, theirs, free_ms)
        assert errors(theirs) == []


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.extended), 5])
async def test_we_write_nothing_when_we_wake_after_our_lock(scene: Scene, workers: int) -> None:
    """mongodb-cron has taken the document over; it writes by the id alone, and would overwrite ours in this place."""
    scene.lock_ms = 1_000
    await scene.documents.insert_one({"_id": 1, "sleepUntil": now(), "ours_ms": 300, "theirs_ms": 3_000})
    async with scene.ours(workers) as frozen:
        await frozen.event("run")
        frozen.pause()
        scene.lock_ms = FOR_EVER
        async with scene.theirs() as theirs:
            await theirs.event("run")
            locked = await scene.documents.find_one({"_id": 1})
            frozen.resume()
            lost = await frozen.event("error")
            assert lost["text"].startswith("LockLost: ")
            assert [event for event in theirs.events if event["event"] == "end"] == []
            assert await scene.documents.find_one({"_id": 1}) == locked
            await scene.ended()
        assert runs(frozen, theirs) == {1: 2}
