"""Failed writes: the others continue, documents are locked again, and only a refusal is given up early."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from jobmill import StoreBusy, StoreError, StoreUnavailable
from jobmill.crontab import Changes, Crontab, CrontabJob, Ending, SqliteCrontab, crontab
from tests.crontab.support import NOON, WAYS, Faulty, Scene
from tests.helpers import until


@WAYS
async def test_documents_are_locked_again_after_failed_writes(kind: str, concurrency: int) -> None:
    scene = Scene(kind, concurrency=concurrency)
    for id in range(20):
        await scene.memory.add(id)
    scene.memory.faults["write"] = StoreUnavailable("gone")
    async with scene.crontab:
        await scene.time.advance(2)
        scene.memory.faults.clear()
        await scene.time.advance(10)
        assert sorted(scene.told.ids) == list(range(20))
        assert {document.sleep_until for document in scene.memory.documents.values()} == {None}


async def test_documents_are_locked_again_after_one_write_of_a_failed_batch() -> None:
    scene = Scene(concurrency=2)
    for id in range(5):
        await scene.memory.add(id, sleep_until=NOON - timedelta(seconds=9 - id))
    # Every batch fails, so that the store seems unavailable; a single write works, once.
    singles: list[Any] = []

    def fail(ids: list[Any]) -> BaseException | None:
        if len(ids) == 1 and not singles:
            singles.append(ids[0])
            return None
        return StoreUnavailable("gone")

    scene.memory.faults["write"] = fail
    lock = scene.memory.lock_documents

    async def lock_slowly(lock_until: Any, most: int) -> list[CrontabJob]:
        if scene.told.ids:
            await scene.time.sleep(0.01)
        return await lock(lock_until, most)

    scene.memory.lock_documents = lock_slowly  # type: ignore[method-assign]
    async with scene.crontab:
        await scene.time.advance(3)
        assert len(singles) == 1
        assert len(scene.told.ids) == 5
        scene.memory.faults.clear()
        await scene.time.advance(6)


@WAYS
async def test_many_refused_documents_do_not_block_others(kind: str, concurrency: int) -> None:
    scene = Scene(kind, concurrency=concurrency)
    refused = [f"bad {n}" for n in range(12)]
    scene.memory.faults["write"] = lambda ids: StoreError("not null") if set(ids) & set(refused) else None
    for id in refused:
        await scene.memory.add(id, sleep_until=NOON - timedelta(seconds=9))
    for id in ("a", "b", "c"):
        await scene.memory.add(id)
    async with scene.crontab:
        await scene.time.advance(30)
        assert sorted(scene.told.ids) == sorted([*refused, "a", "b", "c"])
        assert [id for id in scene.memory.documents if scene.sleep_until(id) is not None] == refused
        assert sorted(job.id for _, job in scene.told.errors if job is not None) == sorted(refused)
        assert not scene.crontab.is_processing


async def test_a_not_null_column_does_not_block_other_rows(tmp_path: Path) -> None:
    file = tmp_path / "own.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE mails (id INTEGER PRIMARY KEY, sleep_until TEXT NOT NULL, interval TEXT)")
        rows: list[tuple[int, str, str | None]] = [(id, "2020-01-01T00:00:00Z", None) for id in range(6)]
        rows += [(id, "2021-01-01T00:00:00Z", "* * * * * *") for id in range(6, 9)]
        connection.executemany("INSERT INTO mails VALUES (?, ?, ?)", rows)
    store = SqliteCrontab(str(file), "mails", repeat_until=None, auto_remove=None)
    runs: list[int] = []
    refused: set[int] = set()

    def on_error(error: BaseException, job: CrontabJob | None) -> None:
        if job is not None:
            refused.add(job.id)

    async def on_document(job: CrontabJob) -> None:
        runs.append(job.id)

    async with Crontab(store, on_document=on_document, on_error=on_error, concurrency=2, idle_delay="20ms"):
        await until(lambda: refused == set(range(6)) and all(runs.count(id) >= 2 for id in range(6, 9)))
    await store.close()


@pytest.mark.parametrize(("error", "seconds"), [(StoreError("not null"), 5), (ValueError("no"), 35)])
async def test_an_ending_that_the_store_never_accepts_does_not_block_others(
    error: BaseException, seconds: float
) -> None:
    scene = Scene(concurrency=2, lock_duration="20s")
    # Nothing else is answered: only a StoreError says that the store is there. Else the end of the lock is waited for.
    scene.memory.faults["write"] = error
    scene.memory.faults["lock"] = lambda room: ConnectionError("gone") if scene.told.ids else None
    for id in range(2):
        await scene.memory.add(id)
    async with scene.crontab:
        await scene.time.advance(seconds)
        assert not scene.crontab.is_processing
        assert sorted((str(told), job.id) for told, job in scene.told.errors if job is not None) == [
            (str(error), 0),
            (str(error), 1),
        ]


@WAYS
async def test_an_ending_is_retried_while_its_document_is_busy(kind: str, concurrency: int) -> None:
    scene = Scene(kind, concurrency=concurrency, lock_duration="60s")
    scene.memory.faults["write"] = lambda ids: StoreBusy("somebody writes") if "held" in ids else None
    await scene.memory.add("held", sleep_until=NOON - timedelta(seconds=9))
    await scene.memory.add("other", interval="* * * * * *")
    async with scene.crontab:
        await scene.time.advance(40)
        assert scene.told.ids.count("other") >= 30
        scene.memory.faults.clear()
        await scene.time.advance(30)
        assert scene.told.ids.count("held") == 1
        assert scene.sleep_until("held") is None
        assert [job for _, job in scene.told.errors if job is not None] == []


class OneHeld(Faulty):
    """A database in which one document is locked: a write to it waits until the timeout of the call."""

    time: Any

    async def _wait(self, ids: list[Any]) -> None:
        if "held" in ids:
            await self.time.sleep(10)
            raise StoreUnavailable("no answer within 10 s")

    async def update(self, id: Any, changes: Changes, /) -> bool:
        await self._wait([id])
        return await super().update(id, changes)

    async def finish_many(self, endings: Sequence[Ending]) -> list[bool]:
        await self._wait([ending.id for ending in endings])
        return await super().finish_many(endings)


async def test_a_locked_row_delays_other_endings_by_one_call_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crontab, "LAST_CALLS_S", 0.01)
    scene = Scene()
    memory = OneHeld(clock=scene.time.clock)
    memory.time = scene.time
    moments: list[float] = []

    async def on_document(job: CrontabJob) -> None:
        if job.id != "held":
            moments.append((scene.time.now - NOON).total_seconds())

    options: dict[str, Any] = {"clock": scene.time.clock, "sleep": scene.time.sleep, "on_error": scene.told.on_error}
    made = Crontab(memory, on_document=on_document, concurrency=4, idle_delay="50ms", **options)
    await memory.add("held", sleep_until=NOON - timedelta(seconds=9))
    for id in range(5):
        await memory.add(id, interval="* * * * * *")
    await made.start()
    await scene.time.advance(60)
    gaps = [after - before for before, after in pairwise(moments)]
    assert max(gaps) < 12
    assert moments[-1] >= 59
    await made.stop(timeout=0)


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), ConnectionError("gone")])
async def test_an_unavailable_store_gets_one_call_at_a_time(error: BaseException) -> None:
    scene = Scene(concurrency=50)
    for id in range(50):
        await scene.memory.add(id)
    scene.memory.faults["write"] = error
    scene.memory.faults["lock"] = lambda room: error if scene.told.ids else None
    scene.expected = [(error, None)]
    async with scene.run(60):
        assert len([ids for verb, ids in scene.memory.calls if verb == "write"]) <= 2 * 35
        scene.memory.faults.clear()
        await scene.time.advance(6)
        assert {document.sleep_until for document in scene.memory.documents.values()} == {None}
