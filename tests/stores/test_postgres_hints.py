"""Hints on PostgreSQL: notifications only while somebody waits, of any number of jobs, and again after an outage."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

import jobmill
from jobmill.core.changes import Cancel
from jobmill.stores.postgres import PostgresStore, hints, wake
from jobmill.stores.postgres.hints import LoopHints
from jobmill.testing.contract.support import QUEUE, new, put, settle, started, succeed
from jobmill.worker.worker import Worker
from tests.helpers import until
from tests.kit.pgbouncer import PgBouncer
from tests.kit.places import port_of
from tests.kit.postgres import connected

pytestmark = pytest.mark.stores("postgres")

FAR_MS = 600_000


@pytest.fixture
async def store(migrated_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(migrated_url)
    await store.open()
    yield store
    await store.close()


@contextlib.asynccontextmanager
async def heard(url: str, store: PostgresStore) -> AsyncIterator[list[str]]:
    """The notifications that a listener gets."""
    payloads: list[str] = []
    async with connected(url) as connection:
        await connection.add_listener(
            store.context.statements.hints_channel, lambda *notification: payloads.append(str(notification[3]))
        )
        yield payloads


def hints_of(store: PostgresStore) -> LoopHints:
    return store.context.loops.here().notifications.hints


async def listens(store: PostgresStore) -> asyncio.Task[None]:
    """A task that waits for cancels, as every worker has it."""
    waiting = asyncio.create_task(store.wait_for_cancel((), store.now() + FAR_MS))
    await until(lambda: store.context.loops.here().notifications.is_listening)
    return waiting


async def test_ends_are_notified_only_while_somebody_waits(
    migrated_url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "AWAITED_SECONDS", 0.5)
    worker = PostgresStore(migrated_url)
    await worker.open()
    async with heard(migrated_url, store) as payloads:
        listening = await listens(worker)
        await settle(worker, succeed(await started(worker)))
        assert not hints_of(worker).awaited
        # The store listens first: who does not hear does not say that it waits.
        listening_too = await listens(store)
        waiting = asyncio.create_task(store.wait_for_end("a-job", QUEUE, store.now() + FAR_MS))
        await until(lambda: QUEUE in hints_of(worker).awaited)
        elsewhere = await started(worker, new(queue="elsewhere"))
        claimed = await started(worker)
        await settle(worker, succeed(claimed), succeed(elsewhere))
        await until(lambda: len(payloads) == 2)
        await asyncio.sleep(0.6)
        await settle(worker, succeed(await started(worker)))
        assert not hints_of(worker).awaited
        assert payloads == [f'{{"awaited":["{QUEUE}"]}}', f'{{"ended":["{claimed.job.id}"]}}']
        for task in (listening, listening_too, waiting):
            task.cancel()
    await worker.close()


async def test_any_number_of_jobs_can_be_cancelled_at_once(migrated_url: str, store: PostgresStore) -> None:
    ids = await put(store, *[new(id=f"{number}-" + '"' * 250) for number in range(300)])
    async with heard(migrated_url, store) as payloads:
        assert len((await store.change(ids, Cancel())).ids) == 300
        await until(lambda: sum(payload.count(",") + 1 for payload in payloads) == 300)
        assert max(len(payload.encode()) for payload in payloads) < 8_000


async def test_a_notification_of_another_version_is_ignored(migrated_url: str, store: PostgresStore) -> None:
    listening = await listens(store)
    async with connected(migrated_url) as connection:
        channel = store.context.statements.hints_channel
        for payload in ("", "nonsense", '{"new":["a"],"awaited":["seen"]}'):
            await connection.execute("SELECT pg_notify($1, $2)", channel, payload)
    await until(lambda: "seen" in hints_of(store).awaited)
    listening.cancel()


async def test_a_lost_listener_hints_at_everything_and_comes_back(
    migrated_url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "RECONNECT_SECONDS", (0.05,))
    other = PostgresStore(migrated_url)
    await other.open()
    (await listens(store)).cancel()
    claimed = await started(store)
    waiting = asyncio.create_task(store.wait_for_cancel({claimed.job.id}, store.now() + FAR_MS))
    await asyncio.sleep(0)
    async with connected(migrated_url) as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE query LIKE 'LISTEN%' AND datname = current_database()"
        )
    async with asyncio.timeout(10):
        await waiting
        # It listens again.
        (await listens(store)).cancel()
        waiting = asyncio.create_task(store.wait_for_cancel({claimed.job.id}, store.now() + FAR_MS))
        await asyncio.sleep(0)
        await other.change([claimed.job.id], Cancel())
        await waiting
    await other.close()


@pytest.fixture
def bouncer(migrated_url: str) -> Iterator[PgBouncer]:
    with PgBouncer(port_of(migrated_url), pool_size=2) as bouncer:
        yield bouncer


async def test_behind_a_pooler_cancels_and_results_come_without_hints(bouncer: PgBouncer, migrated_url: str) -> None:
    jobs = jobmill.connect(bouncer.url(migrated_url))
    stopped = asyncio.Event()

    @jobs.handler
    async def hold() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    @jobs.handler
    async def work() -> int:
        await asyncio.sleep(0.05)
        return 42

    async with jobs, Worker(jobs, lease="600ms"):
        assert await (await work.enqueue()).result(timeout=10) == 42
        enqueued = await hold.enqueue()
        result = asyncio.create_task(enqueued.result(timeout=10))
        await until(lambda: _is_running(enqueued))
        await jobs.cancel(enqueued.id)
        async with asyncio.timeout(10):
            await stopped.wait()
        with pytest.raises(jobmill.JobCancelled):
            await result


async def _is_running(enqueued: jobmill.Enqueued[None]) -> bool:
    return (await enqueued.job()).state == "running"
