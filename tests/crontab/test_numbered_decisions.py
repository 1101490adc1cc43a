"""Nine decisions where mongodb-cron and the Go scheduler are wrong or do not decide.

Each test runs with our crontab and with an imitation of the two. With the imitation, its assertions must fail.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from jobmill import InvalidValue
from jobmill.core.durations import to_datetime
from jobmill.crontab import Crontab, CrontabJob, LockLost, MemoryCrontab, MongoCrontab
from tests.crontab.imitation import Imitation, SeedMongo
from tests.crontab.support import NOON, ManualTime, Told, settled
from tests.helpers import until

fails = pytest.mark.xfail(raises=AssertionError, strict=True, reason="what the originals do")
ours_and_theirs = pytest.mark.parametrize("kind", [Crontab, pytest.param(Imitation, marks=fails)])


class Made:
    """A crontab of one kind, in a time that the test moves."""

    def __init__(self, kind: Any, **options: Any) -> None:
        self.time = ManualTime()
        self.told = Told()
        self.store = MemoryCrontab(clock=self.time.clock)
        hooks = {"on_document": self.told.on_document, "on_error": self.told.on_error}
        given = {**hooks, "idle_delay": 0.5, "clock": self.time.clock, "sleep": self.time.sleep, **options}
        self.crontab = kind(self.store, **given)

    def sleep_until(self) -> datetime | None:
        return self.store.documents["a"].sleep_until

    async def run(self, seconds: float = 0.0) -> None:
        """For so long, and to a good end."""
        async with self.started():
            await self.time.advance(seconds)

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        """It stops also where the test fails, as some must: a task that is left is reported in a later test."""
        await self.crontab.start()
        try:
            yield
        finally:
            await self.crontab.stop()


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose clock shows another zone."""
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@ours_and_theirs
@pytest.mark.parametrize(
    ("interval", "next"),
    [
        ("0 18 * * *", "2023-11-15T18:00:00"),
        ("30 0 18 * * *", "2023-11-15T18:00:30"),
        ("@daily", "2023-11-16T00:00:00"),
        ("@midnight", "2023-11-16T00:00:00"),
        ("@yearly", "2024-01-01T00:00:00"),
        ("@every 1h30m", "2023-11-15T13:30:00"),
        ("TZ=Europe/Berlin 0 18 * * *", "2023-11-15T17:00:00"),
        ("CRON_TZ=Europe/Berlin 0 18 * * *", "2023-11-15T17:00:00"),
        ("0 18 * * 7", "2023-11-19T18:00:00"),
        ("0 18 20 * 5", "2023-11-17T18:00:00"),
    ],
)
@pytest.mark.usefixtures("in_tokyo")
async def test_1_intervals_and_their_timezones(kind: Any, interval: str, next: str) -> None:
    made = Made(kind)
    await made.store.add("a", interval=interval)
    await made.run()
    assert made.told.ids == ["a"]
    assert made.sleep_until() == datetime.fromisoformat(f"{next}+00:00")


@ours_and_theirs
@pytest.mark.parametrize("interval", ["61 * * * *", "never", "0 0 31 2 *"])
async def test_2_an_invalid_interval_is_reported_and_the_document_is_completed(kind: Any, interval: str) -> None:
    made = Made(kind)
    await made.store.add("a")
    made.store.documents["a"].interval = interval
    await made.run(5)
    assert made.told.ids == ["a"]
    assert [type(error) for error, _ in made.told.errors] == [InvalidValue]
    assert made.sleep_until() is None


@ours_and_theirs
@pytest.mark.parametrize("catch_up", ["once", "twice"])
async def test_3_no_document_runs_after_repeat_until(kind: Any, catch_up: str) -> None:
    made = Made(kind, catch_up=catch_up)
    # The occurrence at 11:01 is before the end at 11:30, and now is after it.
    await made.store.add(
        "a", interval="* * * * *", sleep_until=NOON - timedelta(hours=1), repeat_until=NOON - timedelta(minutes=30)
    )
    await made.run(5)
    assert made.told.ids == []
    assert made.sleep_until() is None


@ours_and_theirs
async def test_4_an_overdue_document_runs_once_and_then_on_schedule(kind: Any) -> None:
    made = Made(kind)
    await made.store.add("a", interval="*/10 * * * * *", sleep_until=NOON - timedelta(hours=1))
    await made.run(25)
    assert [job.sleep_until for job in made.told.jobs] == [
        NOON - timedelta(hours=1),
        *(NOON + timedelta(seconds=seconds) for seconds in (10, 20)),
    ]


async def test_4_catch_up_twice_behaves_like_mongodb_cron() -> None:
    runs = []
    for kind in (Crontab, Imitation):
        made = Made(kind, catch_up="twice")
        await made.store.add("a", interval="* * * * *", sleep_until=NOON - timedelta(hours=1))
        await made.run(125)
        runs.append([job.sleep_until for job in made.told.jobs])
    assert runs[0] == runs[1] == [NOON - timedelta(hours=1), *(NOON + timedelta(minutes=n) for n in (0, 1, 2))]


@ours_and_theirs
@pytest.mark.parametrize("interval", [None, "* * * * *"])
async def test_5_after_an_error_the_lock_stays_and_the_job_runs_again(kind: Any, interval: str | None) -> None:
    async def fail(job: CrontabJob) -> None:
        made.told.jobs.append(job)
        raise error

    error = ValueError("no")
    made = Made(kind, on_document=fail, lock_duration=90)
    await made.store.add("a", interval=interval)
    async with made.started():
        await made.time.advance(1)
        assert made.told.errors == [(error, made.told.jobs[0])]
        assert made.sleep_until() == NOON + timedelta(seconds=90)
        await made.time.advance(90)
        assert len(made.told.jobs) == 2


@ours_and_theirs
@pytest.mark.parametrize("auto_remove", [False, True])
async def test_6_a_lost_lock_is_reported_and_nothing_is_written(kind: Any, auto_remove: bool) -> None:
    async def overrun(job: CrontabJob) -> None:
        made.time.clock.advance(60)
        assert await made.store.lock_next(theirs) is not None

    theirs = NOON + timedelta(hours=1)
    made = Made(kind, on_document=overrun, lock_duration=60)
    await made.store.add("a", auto_remove=auto_remove)
    await made.run()
    assert "a" in made.store.documents
    assert made.sleep_until() == theirs
    assert [type(error) for error, _ in made.told.errors] == [LockLost]


async def test_6_a_lock_has_whole_milliseconds() -> None:
    """So that a database that keeps no more than that gives back what was written."""
    seen: list[datetime] = []

    class Store:
        async def lock_next(self, lock_until: datetime) -> CrontabJob | None:
            seen.append(lock_until)
            return None

        async def update(self, id: Any, changes: Any) -> None: ...

        async def remove(self, id: Any) -> None: ...

    async with Crontab(Store(), on_document=print, lock_duration=timedelta(microseconds=60_000_500)):
        await until(lambda: seen)
    assert seen[0].microsecond % 1000 == 0


@ours_and_theirs
async def test_7_stop_waits_for_the_handler_and_its_write(kind: Any) -> None:
    async def work(job: CrontabJob) -> None:
        await go_on.wait()
        made.told.jobs.append(job)

    go_on = asyncio.Event()
    made = Made(kind, on_document=work)
    await made.store.add("a")
    await made.crontab.start()
    await settled()
    stopping = asyncio.create_task(made.crontab.stop())
    await settled()
    go_on.set()
    await stopping
    assert made.told.ids == ["a"]
    assert made.sleep_until() is None


@ours_and_theirs
async def test_7_start_after_stop_works(kind: Any) -> None:
    made = Made(kind)
    await made.run()
    await made.store.add("a")
    await made.run(1)
    await made.crontab.stop()
    assert made.told.ids == ["a"]


@pytest.mark.stores("mongo")
@pytest.mark.parametrize("kind", [MongoCrontab, pytest.param(SeedMongo, marks=fails)])
async def test_8_an_idle_poll_reads_almost_nothing(kind: Any, mongo_url: str) -> None:
    import pymongo

    clock = ManualTime().clock
    async with pymongo.AsyncMongoClient[dict[str, Any]](mongo_url, tz_aware=True) as client:
        database = client.get_default_database()
        await MongoCrontab(database.documents, clock=clock).migrate()
        future = to_datetime(clock() + 86_400_000)
        await database.documents.insert_many([{"_id": n, "sleepUntil": future} for n in range(2_000)])
        await database.command("profile", 2)
        assert await kind(database.documents, clock=clock).lock_next(to_datetime(clock() + 600_000)) is None
        await database.command("profile", 0)
        [told] = await database["system.profile"].find({"command.findAndModify": "documents"}).to_list()
    assert told["docsExamined"] == 0
    assert told["keysExamined"] <= 1


@pytest.mark.stores("mongo")
@pytest.mark.parametrize("kind", [MongoCrontab, pytest.param(SeedMongo, marks=fails)])
async def test_8_the_earliest_date_is_first_and_other_types_are_ignored(kind: Any, mongo_url: str) -> None:
    import pymongo

    clock = ManualTime().clock
    now, lock_until = to_datetime(clock()), to_datetime(clock() + 600_000)
    async with pymongo.AsyncMongoClient[dict[str, Any]](mongo_url, tz_aware=True) as client:
        documents = client.get_default_database().documents
        await documents.insert_many(
            [
                {"_id": "text", "sleepUntil": "tomorrow"},
                {"_id": "late", "sleepUntil": now},
                {"_id": "early", "sleepUntil": now - timedelta(seconds=1)},
            ]
        )
        store = kind(documents, clock=clock)
        jobs = [await store.lock_next(lock_until) for _ in range(3)]
    assert [job and job.id for job in jobs] == ["early", "late", None]


@ours_and_theirs
async def test_9_an_idle_delay_of_0_still_waits_a_millisecond(kind: Any) -> None:
    made = Made(kind, idle_delay=0)
    await made.crontab.start()
    await settled()
    await made.time.advance(0.005)
    await made.crontab.stop()
    assert 5 <= len(made.time.slept) <= 7
    assert set(made.time.slept) == {0.001}
