"""What becomes of documents: once, later, again and again, until; removed; and after a crash."""

from __future__ import annotations

from datetime import datetime, timedelta

from jobmill.crontab import CrontabJob
from tests.crontab.support import NOON, WAYS, Scene


@WAYS
async def test_a_due_document_runs_once(kind: str, concurrency: int) -> None:
    scene = Scene(kind, concurrency=concurrency)
    await scene.memory.add("a", data={"to": "ada"})
    async with scene.run(20):
        assert [(job.id, job.data, job.sleep_until) for job in scene.told.jobs] == [("a", {"to": "ada"}, NOON)]
        assert scene.sleep_until() is None


@WAYS
async def test_a_deferred_document_runs_at_its_time(kind: str, concurrency: int) -> None:
    scene = Scene(kind, concurrency=concurrency)
    await scene.memory.add("a", sleep_until=NOON + timedelta(seconds=10))
    async with scene.run(9.9):
        assert scene.told.ids == []
        await scene.time.advance(0.1)
        assert scene.told.ids == ["a"]


@WAYS
async def test_a_recurring_document_runs_at_its_occurrences(kind: str, concurrency: int) -> None:
    scene = Scene(kind, concurrency=concurrency)
    await scene.memory.add("a", interval="*/10 * * * * *")
    async with scene.run(35):
        assert [job.sleep_until for job in scene.told.jobs] == [NOON + timedelta(seconds=s) for s in (0, 10, 20, 30)]
        assert scene.sleep_until() == NOON + timedelta(seconds=40)


@WAYS
async def test_a_recurring_document_ends_at_repeat_until(kind: str, concurrency: int) -> None:
    scene = Scene(kind, concurrency=concurrency)
    await scene.memory.add("a", interval="*/10 * * * * *", repeat_until=NOON + timedelta(seconds=20))
    async with scene.run(60):
        assert [job.sleep_until for job in scene.told.jobs] == [NOON + timedelta(seconds=s) for s in (0, 10, 20)]
        assert scene.sleep_until() is None


@WAYS
async def test_a_document_with_auto_remove_is_removed_after_its_last_run(kind: str, concurrency: int) -> None:
    scene = Scene(kind, concurrency=concurrency)
    await scene.memory.add("once", auto_remove=True)
    until = NOON + timedelta(seconds=15)
    await scene.memory.add("twice", auto_remove=True, interval="*/10 * * * * *", repeat_until=until)
    await scene.memory.add("stays")
    async with scene.run(5):
        assert set(scene.memory.documents) == {"twice", "stays"}
        await scene.time.advance(10)
        assert set(scene.memory.documents) == {"stays"}
    assert sorted(scene.told.ids) == ["once", "stays", "twice", "twice"]


@WAYS
async def test_the_document_of_a_crashed_worker_runs_when_its_lock_ends(kind: str, concurrency: int) -> None:
    scene = Scene(kind, concurrency=concurrency)
    await scene.memory.add("a")
    crashed = await scene.memory.lock_next(NOON + timedelta(seconds=30))
    assert crashed is not None
    async with scene.run(29.9):
        assert scene.told.ids == []
        await scene.time.advance(0.1)
        assert scene.told.ids == ["a"]
        assert scene.sleep_until() is None


@WAYS
async def test_a_document_is_locked_while_it_is_handled(kind: str, concurrency: int) -> None:
    seen: list[datetime | None] = []

    async def look(job: CrontabJob) -> None:
        seen.append(scene.sleep_until(job.id))

    scene = Scene(kind, concurrency=concurrency, on_document=look, lock_duration="90s")
    await scene.memory.add("a", sleep_until=NOON - timedelta(seconds=3))
    async with scene.run():
        assert seen == [NOON + timedelta(seconds=90)]


@WAYS
async def test_the_earliest_runs_first(kind: str, concurrency: int) -> None:
    scene = Scene(kind, concurrency=concurrency)
    for id, seconds in (("b", 2), ("c", 1), ("a", 3)):
        await scene.memory.add(id, sleep_until=NOON - timedelta(seconds=seconds))
    async with scene.run():
        assert scene.told.ids == ["a", "b", "c"]


async def test_a_reprocess_delay_skips_occurrences() -> None:
    scene = Scene(reprocess_delay="10s")
    await scene.memory.add("a", interval="*/10 * * * * *")
    async with scene.run(45):
        # Strictly after the old occurrence and the delay.
        assert [job.sleep_until for job in scene.told.jobs] == [NOON + timedelta(seconds=s) for s in (0, 20, 40)]


async def test_the_timezone_of_the_interval_overrides_that_of_the_crontab() -> None:
    scene = Scene(timezone="Europe/Berlin")
    await scene.memory.add("crontab's", interval="0 18 * * *")
    await scene.memory.add("own", interval="TZ=Asia/Tokyo 0 22 * * *")
    async with scene.run():
        assert scene.sleep_until("crontab's") == NOON.replace(hour=17)
        assert scene.sleep_until("own") == NOON.replace(hour=13)


async def test_an_empty_interval_means_once() -> None:
    scene = Scene()
    await scene.memory.add("a", interval="")
    async with scene.run(60):
        assert scene.told.ids == ["a"]
        assert scene.sleep_until() is None


async def test_ids_of_every_type_of_the_store() -> None:
    scene = Scene()
    for id in (7, ("a", 1), None, b"x"):
        await scene.memory.add(id)
    async with scene.run(1):
        assert set(scene.told.ids) == {7, ("a", 1), None, b"x"}


async def test_a_delay_between_documents() -> None:
    scene = Scene(next_delay="2s")
    for id in ("a", "b"):
        await scene.memory.add(id)
    async with scene.run(1.9):
        assert scene.told.ids == []
        await scene.time.advance(0.1)
        assert scene.told.ids == ["a"]
        await scene.time.advance(1.9)
        assert scene.told.ids == ["a"]
        await scene.time.advance(0.1)
        assert scene.told.ids == ["a", "b"]


@WAYS
async def test_a_document_that_is_overdue_at_its_end_does_not_run(kind: str, concurrency: int) -> None:
    scene = Scene(kind, concurrency=concurrency)
    end = NOON - timedelta(minutes=30)
    await scene.memory.add("late", interval="* * * * *", sleep_until=end - timedelta(minutes=1), repeat_until=end)
    await scene.memory.add("exact", interval="* * * * *", sleep_until=end, repeat_until=end)
    await scene.memory.add(
        "gone", interval="* * * * *", sleep_until=end - timedelta(1), repeat_until=end, auto_remove=True
    )
    async with scene.run(20):
        assert scene.told.ids == ["exact"]
        assert scene.sleep_until("late") is None
        assert set(scene.memory.documents) == {"late", "exact"}
