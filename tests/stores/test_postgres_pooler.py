"""PostgreSQL behind a pooler in transaction mode: everything works, and workers poll."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest

import jobmill
from jobmill import Context
from jobmill.core.values import QueueChange, Report
from jobmill.stores.postgres import PostgresStore, wake
from jobmill.testing.contract.support import QUEUE, claim_ids, new, put, put_one, retry, settle, started, succeed, wish
from jobmill.worker.worker import Worker
from tests.helpers import until
from tests.kit.pgbouncer import PgBouncer
from tests.kit.places import port_of

pytestmark = pytest.mark.stores("postgres")


@pytest.fixture
def bouncer(migrated_url: str) -> Iterator[PgBouncer]:
    with PgBouncer(port_of(migrated_url), pool_size=2) as bouncer:
        yield bouncer


@pytest.fixture
async def pooled(bouncer: PgBouncer, migrated_url: str) -> AsyncIterator[PostgresStore]:
    """A store whose connections go through the pooler."""
    store = PostgresStore(bouncer.url(migrated_url))
    await store.open()
    yield store
    await store.close()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.slow
async def test_a_pooler_is_noticed(pooled: PostgresStore, direct: PostgresStore) -> None:
    await asyncio.gather(pooled.settings(), direct.settings())
    assert pooled.context.loops.here().connector.pooled is True
    assert direct.context.loops.here().connector.pooled is False


async def test_a_pooler_that_comes_in_between_later_is_noticed(bouncer: PgBouncer, migrated_url: str) -> None:
    # Where the server was there is a pooler now, and the other way round.
    store = PostgresStore(migrated_url)
    await store.open()
    loop = store.context.loops.here()
    for url, is_pooled in ((bouncer.url(migrated_url), True), (migrated_url, False), (bouncer.url(migrated_url), True)):
        loop.connector.url = url
        loop.pool.drop_idle()
        await asyncio.gather(*(store.get(["x"]) for _ in range(20)))
        assert loop.connector.pooled is is_pooled
    await store.close()


async def test_the_life_of_jobs_through_a_pooler(pooled: PostgresStore) -> None:
    await pooled.configure("told", QueueChange(feed=True))
    claimed = await started(pooled)
    assert await pooled.extend([claimed.lease], 20_000) == []
    assert await pooled.report([Report(lease=claimed.lease, lines=("a", "b"))]) == []
    assert await settle(pooled, retry(claimed, 0)) == ["done"]
    (again,) = (await pooled.exchange([], wish())).claimed
    assert await settle(pooled, succeed(again, {"well": True})) == ["done"]  # type: ignore[arg-type]
    (job,) = await pooled.get([claimed.job.id])
    assert job is not None
    assert (job.state, job.errors, job.result) == ("succeeded", 1, {"well": True})
    assert [line.text for line in await pooled.logs(job.id)] == ["a", "b"]
    await settle(pooled, succeed(await started(pooled, new(queue="told"))))
    assert [event.type for event in await pooled.events("told")] == ["enqueued", "claimed", "succeeded"]


@pytest.mark.slow
async def test_many_clients_share_two_connections(bouncer: PgBouncer, migrated_url: str) -> None:
    clients = [jobmill.connect(bouncer.url(migrated_url)) for _ in range(4)]
    ran: Counter[int] = Counter()

    @clients[0].handler()
    async def work(context: Context, n: int) -> int:
        ran[n] += 1
        context.log(f"job {n}")
        return n

    async def enqueue(client: jobmill.Client, first: int) -> None:
        for n in range(first, 600, 3):
            await client.enqueue("work", {"n": n}, unique_key=f"key-{n}")

    async with Worker(clients[0], concurrency=20), asyncio.timeout(40):
        await asyncio.gather(*(enqueue(client, first) for first, client in enumerate(clients[1:])))

        async def all_ended() -> bool:
            return {one.state: one.count for one in await clients[1].count()} == {"succeeded": 600}

        await until(all_ended, 30)
    assert set(ran.values()) == {1}
    for client in clients:
        await client.close()


async def test_workers_behind_a_pooler_poll_and_say_so_once(
    pooled: PostgresStore, direct: PostgresStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "RECONNECT_SECONDS", (0.01,))
    monkeypatch.setattr(wake, "POLL_SECONDS", 0.1)
    for _ in range(5):
        assert await claim_ids(pooled) == []
        async with asyncio.timeout(10):
            await pooled.wait_for_work((QUEUE,), pooled.now() + 600_000)
        id = await put_one(direct)
        async with asyncio.timeout(10):
            await pooled.wait_for_work((QUEUE,), pooled.now() + 600_000)
        assert await claim_ids(pooled) == [id]
    assert warnings(caplog) == [
        "LISTEN does not work on this connection to PostgreSQL (a pooler?): workers query for jobs every 0.1 s"
    ]


async def test_notifications_that_never_come_are_noticed_without_a_pooler(
    direct: PostgresStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something else is in between, which passes the server's own process ids on."""
    monkeypatch.setattr(wake, "PROBE_SECONDS", 0.1)
    monkeypatch.setattr(wake, "POLL_SECONDS", 0.2)
    real = wake.WorkNotifications._probe

    async def unheard(notifications: wake.WorkNotifications, probed: asyncio.Event) -> bool:
        monkeypatch.setattr(direct.context.statements, "channel", "nowhere")
        return await real(notifications, probed)

    monkeypatch.setattr(wake.WorkNotifications, "_probe", unheard)
    async with asyncio.timeout(20):
        await until(lambda: _waited(direct, caplog))
    assert len(warnings(caplog)) == 1


async def _waited(store: PostgresStore, caplog: pytest.LogCaptureFixture) -> bool:
    await store.wait_for_work((QUEUE,), store.now() + 600_000)
    return bool(warnings(caplog))


async def test_a_pooler_that_was_restarted_is_found_again(bouncer: PgBouncer, pooled: PostgresStore) -> None:
    await put(pooled, new(), new())
    bouncer.kill()
    with pytest.raises(jobmill.StoreUnavailable):
        await claim_ids(pooled)
    bouncer.start()
    assert len(await claim_ids(pooled)) == 2
