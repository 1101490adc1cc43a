"""The table that keeps usage: what stands in it after a run, and what happens when it cannot be written."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import jobmill
from jobmill import Client, Context, Usage
from jobmill.handlers.handler import Handler
from jobmill.store import RecordsUsage, Store
from jobmill.stores.sqlite import SqliteStore, schema
from jobmill.worker.worker import Worker
from tests.helpers import until
from tests.kit.processes import launched
from tests.usage.conftest import Kept, read

pytestmark = pytest.mark.stores("sqlite", "postgres")

ROOT = Path(__file__).parents[2]


def usage(**fields: Any) -> Usage:
    usual: dict[str, Any] = {
        "job_id": "j",
        "name": "send",
        "queue": "mail",
        "tenant": "global",
        "attempt": 1,
        "outcome": "succeeded",
        "duration_ms": 1.5,
        "started_ms": 1_700_000_000_000,
        "finished_ms": 1_700_000_000_002,
        "worker": "w",
    }
    return Usage(**usual | fields)


@pytest.fixture
def work(jobs: Client) -> Handler[..., Any]:
    @jobs.handler(backoff="1ms")
    async def work(context: Context, what: str = "ok") -> None:
        if what == "flaky" and context.attempt == 1:
            raise ValueError(what)

    return work


# ---------------------------------------------------------------------------------------------------- kept


async def test_the_table_has_the_records_that_recorders_get(
    jobs: Client, work: Handler[..., Any], used: list[Usage], kept: Kept
) -> None:
    jobs.record_usage(jobs.store)
    async with Worker(jobs):
        for one in await jobs.enqueue_many(
            [work.options(tenant="acme").draft(), work.draft(what="flaky"), *(work.draft() for _ in range(120))]
        ):
            await one.result(timeout=5)
    assert len(used) == 123
    assert await kept() == used
    assert {one.outcome for one in await kept()} == {"succeeded", "errored"}
    assert {one.tenant for one in await kept()} == {"acme", "global"}


async def test_a_tick_writes_its_records_before_it_returns(jobs: Client, work: Handler[..., Any], kept: Kept) -> None:
    jobs.record_usage(jobs.store)
    enqueued = await work.enqueue()
    await jobs.tick()
    assert [one.job_id for one in await kept()] == [enqueued.id]


async def test_every_value_is_stored_unchanged(store: Store, kept: Kept) -> None:
    records = [
        usage(tenant="o'brien\"); DROP TABLE jobs; --", name="näme", worker="w\\%s"),
        usage(duration_ms=0.0, attempt=2**31 - 1),
        usage(duration_ms=86_400_000.25, outcome="lost", finished_ms=1_700_086_400_000),
    ]
    await store.open()
    assert isinstance(store, RecordsUsage)
    await store.record_usage(records)
    await store.record_usage([])
    many = [usage(job_id=str(n)) for n in range(1_234)]
    await store.record_usage(many)
    await store.close()
    assert await kept() == records + many


async def test_several_workers_write_to_one_table(jobs: Client, work: Handler[..., Any], kept: Kept) -> None:
    jobs.record_usage(jobs.store)
    async with Worker(jobs, name="a", concurrency=2), Worker(jobs, name="b", concurrency=2):
        enqueued = await jobs.enqueue_many(work.draft() for _ in range(100))
        for one in enqueued:
            await one.result(timeout=5)
    assert sorted(one.job_id for one in await kept()) == sorted(one.id for one in enqueued)
    assert {one.worker for one in await kept()} <= {"a", "b"}


@pytest.mark.stores("sqlite")
async def test_usage_can_be_recorded_in_another_store(tmp_path: Path) -> None:
    jobs = jobmill.connect("memory://")
    ledger = jobs.record_usage(SqliteStore(tmp_path / "usage.db"))
    await ledger.open()

    @jobs.handler
    async def noop() -> None: ...

    enqueued = await noop.enqueue()
    await jobs.tick()
    await ledger.close()
    assert [one.job_id for one in read(tmp_path / "usage.db")] == [enqueued.id]


# ---------------------------------------------------------------------------------------------------- not kept


@pytest.fixture
async def no_table(jobs: Client, store_name: str, store_url: str) -> AsyncIterator[None]:
    """The table was dropped after the store was opened."""
    if store_name == "sqlite":
        with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as file, file:
            file.execute("DROP TABLE jobmill_usage")
        yield
        return
    from tests.kit.postgres import connected

    async with connected(store_url) as connection:
        await connection.execute("ALTER TABLE jobmill.usage RENAME TO not_there")
        yield
        await connection.execute("ALTER TABLE jobmill.not_there RENAME TO usage")


@pytest.mark.usefixtures("no_table")
async def test_a_missing_table_affects_no_job(
    jobs: Client, work: Handler[..., Any], store_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.record_usage(jobs.store)
    async with Worker(jobs):
        for one in await jobs.enqueue_many(work.draft() for _ in range(20)):
            await one.result(timeout=5)
    assert "raised an error for 20 usage records; no job is affected" in caplog.text
    said = {"sqlite": "no such table: jobmill_usage", "postgres": 'relation "jobmill.usage" does not exist'}
    assert said[store_name] in caplog.text
    (count,) = await jobs.count()
    assert (count.state, count.count) == ("succeeded", 20)


async def test_a_batch_is_written_completely_or_not_at_all(store: Store, kept: Kept) -> None:
    await store.open()
    assert isinstance(store, RecordsUsage)
    bad = structs.replace(usage(), worker=None)
    with pytest.raises(jobmill.StoreError, match="(?i)not.null"):
        await store.record_usage([*[usage()] * 250, bad])
    await store.close()
    assert await kept() == []


# ---------------------------------------------------------------------------------------------------- migrating


@pytest.mark.stores("sqlite")
async def test_a_file_of_the_first_schema_gets_the_table_when_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old.db"
    first = {1: schema.MIGRATIONS[1]}
    with monkeypatch.context() as older:
        older.setattr(schema, "MIGRATIONS", first)
        await SqliteStore(path).migrate()
    with closing(sqlite3.connect(path)) as connection, pytest.raises(sqlite3.OperationalError):
        connection.execute("SELECT * FROM jobmill_usage")
    jobs = jobmill.connect(store=SqliteStore(path))
    jobs.record_usage(jobs.store)

    @jobs.handler
    async def noop() -> None: ...

    enqueued = await noop.enqueue()
    await jobs.tick()
    await jobs.close()
    assert [one.job_id for one in read(path)] == [enqueued.id]
    assert await SqliteStore(path).migrate() == []
    # An older Jobmill leaves it alone from then on.
    before = path.read_bytes()
    with monkeypatch.context() as older:
        older.setattr(schema, "MIGRATIONS", first)
        with pytest.raises(jobmill.SchemaTooNew):
            await SqliteStore(path).open()
    assert path.read_bytes() == before


async def test_the_columns_are_the_fields_of_usage(store: Store, store_name: str, store_url: str) -> None:
    await store.open()
    await store.close()
    if store_name == "sqlite":
        with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as connection:
            columns = [row[1] for row in connection.execute("PRAGMA table_info(jobmill_usage)")]
    else:
        from tests.kit.postgres import connected

        async with connected(store_url) as connection:
            query = "SELECT attname FROM pg_attribute WHERE attrelid = 'jobmill.usage'::regclass AND attnum > 0"
            columns = [row[0] for row in await connection.fetch(f"{query} ORDER BY attnum")]
    assert columns == list(Usage.__struct_fields__)


# ---------------------------------------------------------------------------------------------------- killed


@pytest.fixture
def start(tmp_path: Path, store_url: str) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Workers of the application in processes of their own."""
    processes: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        environment = {**os.environ, "JOBMILL_URL": store_url, "PYTHONPATH": str(ROOT)}
        worker = [sys.executable, "-m", "jobmill", "worker", "tests.usage.app:jobs", "--lease", "1s"]
        command = launched(None, signal.SIGKILL, worker)
        with (tmp_path / f"log-{len(processes)}").open("wb") as said:
            processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said))
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait(10)


@pytest.mark.slow
async def test_a_killed_process_loses_only_unwritten_records(
    jobs: Client, kept: Kept, start: Callable[[], subprocess.Popen[bytes]]
) -> None:
    first = await jobs.enqueue("quick")
    killed = start()
    await until(kept, timeout=20)
    deadly = await jobs.enqueue("deadly")
    assert await until(lambda: killed.poll(), timeout=20) == -signal.SIGKILL
    # The run that was killed is not in the table; the jobs are not affected.
    assert [one.job_id for one in await kept()] == [first.id]
    second = start()
    await deadly.result(timeout=20)
    second.send_signal(signal.SIGTERM)
    await until(lambda: second.poll() is not None, timeout=20)
    assert [(one.job_id, one.outcome) for one in await kept()] == [(first.id, "succeeded"), (deadly.id, "succeeded")]
