"""Callers' transactions on PostgreSQL beside everything else: through the client, held open, killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import asyncpg
import psycopg
import pytest
from msgspec import structs
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

import jobmill
from jobmill import Client, harmonyk
from jobmill.core.changes import Cancel, Remove, Requeue, Reschedule
from jobmill.core.recurrence import recurrence
from jobmill.core.values import EVERYTHING, Filter, NewJob, QueueChange, RateLimit, Receipt, Report, after, at
from jobmill.errors import InvalidValue, StoreBusy, StoreUnavailable
from jobmill.stores.postgres import PostgresStore, enqueue
from jobmill.stores.postgres.connection import pool
from jobmill.testing.contract.support import claim, enqueue_one, find_all, in_state, new, put, put_one, settle, succeed
from jobmill.worker.worker import Worker
from tests.helpers import until
from tests.kit.postgres import PostgresServer, PostgresServers, connected
from tests.stores.postgres_callers import engine
from tests.stores_under_test import emptied_postgres

pytestmark = pytest.mark.stores("postgres")


@pytest.fixture
async def url(postgres_servers: PostgresServers) -> str:
    return await emptied_postgres(postgres_servers)


@pytest.fixture
async def jobs(url: str) -> AsyncIterator[Client]:
    async with jobmill.connect(url) as client:
        yield client


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def connection(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the caller's, in a transaction."""
    async with connected(url) as connection:
        await connection.execute("BEGIN")
        yield connection


def hourly(id: str, key: str = "hourly", payload: object = None) -> NewJob:
    rule = recurrence(key=key, every_ms=3_600_000)
    return structs.replace(new(id, key=key, payload=payload, recurrence=rule), keeps_due=True)


# ---------------------------------------------------------------------------------------------------- the client


async def test_every_door_of_the_client(jobs: Client, connection: asyncpg.Connection) -> None:
    @jobs.handler
    async def send(to: str) -> str:
        return to

    repository = harmonyk.Repository(jobs)

    async def enqueue() -> set[str]:
        one = await send.options(priority=2, within=connection).enqueue(to="ada")
        two = await jobs.enqueue("send", {"to": "bob"}, within=connection)
        many = await jobs.enqueue_many([send.draft(to="c"), send.options(delay="1h").draft(to="d")], within=connection)
        five = await send.options(cron="0 9 * * mon", key="monday", within=connection).enqueue(to="e")
        six = await repository.enqueue("scan", "acme", {"folder": 7}, dedupe=True, within=connection)
        assert await repository.enqueue("scan", "acme", {"folder": 7}, dedupe=True, within=connection) == six
        return {one.id, two.id, *(each.id for each in many), five.id, six}

    await enqueue()
    assert await jobs.count() == []
    await connection.execute("ROLLBACK; BEGIN")
    assert await jobs.count() == []
    ids = await enqueue()
    await connection.execute("COMMIT")
    assert {job.id for job in (await jobs.find()).jobs} == ids
    assert (await jobs.tick()).succeeded == 3


def test_code_without_a_loop(url: str) -> None:
    jobs = jobmill.connect(url)

    @jobs.handler
    async def send(to: str) -> None: ...

    used = engine(url)
    try:
        with psycopg.connect(url) as connection:
            jobs.sync.enqueue("send", {"to": "ada"}, within=connection)
            connection.rollback()
            one = jobs.sync.enqueue("send", {"to": "ada"}, within=connection)
            (two,) = jobs.sync.enqueue_many([send.draft(to="bob")], within=connection)
            # In the thread of the loop, which a connection of psycopg does not mind.
            three = jobs.sync(send.options(within=connection).enqueue(to="c"))
        with Session(used) as session:
            jobs.sync.enqueue("send", {"to": "d"}, within=session)
            session.rollback()
            with session.begin_nested() as nested:
                jobs.sync.enqueue("send", {"to": "e"}, within=session)
                nested.rollback()
            four = jobs.sync.enqueue("send", {"to": "f"}, within=session)
            session.commit()
        assert {job.id for job in jobs.sync.find().jobs} == {one.id, two.id, three.id, four.id}
    finally:
        jobs.sync.close()
        used.dispose()


async def test_a_connection_of_another_loop(jobs: Client, url: str, connection: asyncpg.Connection) -> None:
    used = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    async with used.connect() as other:
        for within in (connection, other):
            for enqueue in (jobs.sync.enqueue, lambda *args, **given: jobs.sync(jobs.enqueue(*args, **given))):
                with pytest.raises(InvalidValue, match="within: .*belongs to another event loop"):
                    await asyncio.to_thread(enqueue, "send", within=within)
            # It is none the worse for it.
            assert (await jobs.enqueue("send", within=within)).created
    await used.dispose()


# ---------------------------------------------------------------------------------------------------- held open


@pytest.mark.parametrize("feed", [False, True])
async def test_an_open_transaction_holds_nobody_up(
    store: PostgresStore, connection: asyncpg.Connection, url: str, feed: bool
) -> None:
    await store.configure("mail", QueueChange(feed=feed))
    final = await in_state(store, "failed")
    await put(store, new("claimed"), hourly("hourly", payload=1), new("later", due=after(60_000)))
    running = await claim(store, names=["send"])
    within = [new("within", key="k"), hourly("again", payload=1), new("past", due=at(1))]
    receipts = await store.enqueue_within(connection, within)
    assert [receipt.status for receipt in receipts] == ["created", "updated", "created"]
    async with asyncio.timeout(30), connected(url) as other:
        await put(store, new("beside", key="other"), new("also"))
        await store.extend([one.lease for one in running], 15_000)
        await store.report([Report(lease=running[0].lease, lines=("going",))])
        assert await settle(store, *(succeed(one, now_ms=store.now()) for one in running)) == ["done", "done"]
        assert len(await claim(store)) == 2
        for change in (Requeue(), Cancel(), Remove()):
            assert (await store.change([final], change)).ids == [final]
        assert (await store.change(Filter(queue="mail"), Reschedule(after(1)))).ids == ["hourly", "later"]
        await store.configure("mail", QueueChange(running_limit=5, rate_limit=RateLimit(100, 1_000)))
        await store.configure("mail", QueueChange(paused=True, feed=not feed))
        await store.purge()
        await store.events("mail")
        await store.stats()
        # Neither does another one of the same kind.
        await other.execute("BEGIN")
        await store.enqueue_within(other, [new("other"), hourly("third", payload=1)])
        await other.execute("COMMIT")
    await connection.execute("COMMIT")
    assert {"within", "past", "other", "beside", "also"} <= set(await find_all(store, EVERYTHING))


async def waits(url: str) -> bool:
    async with connected(url) as connection:
        query = "SELECT EXISTS (SELECT FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted AND datname = "
        return bool(await connection.fetchval(f"{query} current_database())"))


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize(
    ("within", "outside", "how"),
    [
        (new("first", key="k"), new("second", key="k"), "duplicate"),
        (new("first"), new("first", payload=2), "exists"),
        (hourly("first"), hourly("second", payload=2), "updated"),
    ],
)
async def test_who_wants_the_same_key_or_id_waits_for_the_end(
    store: PostgresStore, connection: asyncpg.Connection, url: str, ends: str, within: NewJob, outside: NewJob, how: str
) -> None:
    await store.enqueue_within(connection, [within])
    waiting = asyncio.create_task(enqueue_one(store, outside))
    await until(lambda: waits(url))
    await connection.execute(ends)
    receipt = await waiting
    assert (receipt.id, receipt.status) == (("first", how) if ends == "COMMIT" else (outside.id, "created"))
    assert len(await find_all(store, EVERYTHING)) == 1


async def test_a_call_that_waits_too_long_is_stopped(
    url: str, store: PostgresStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.enqueue_within(connection, [new("first", key="k")])
    with monkeypatch.context() as patch:
        patch.setattr(enqueue, "KEY_SECONDS", 0.2)
        with pytest.raises(StoreBusy, match="another transaction has held the unique key 'k' of 'send' for 0.2 s"):
            await enqueue_one(store, new("second", key="k"))
        with pytest.raises(
            StoreBusy, match="held one of 5 unique keys: 'a' of 'send', 'b' of 'send', 'k' of 'send', …"
        ):
            await put(store, *(new(key=key) for key in "abkcd"))
        patch.setattr(pool, "CALL_SECONDS", 0.2)
        with pytest.raises(StoreUnavailable, match="did not answer within 0.2 s"):
            await enqueue_one(store, new("first"))
    await put_one(store, new("other"))

    async def is_stopped() -> bool:
        return not await waits(url)

    await until(is_stopped)
    await connection.execute("ROLLBACK")
    assert await enqueue_one(store, new("second", key="k")) == Receipt("second", "created")


async def test_only_jobs_of_its_key_wait_for_a_transaction(
    jobs: Client, connection: asyncpg.Connection, url: str
) -> None:
    """Of many more requests with this key than there are connections; also what was in one batch with them goes on."""
    await jobs.enqueue("send", unique_key="k", within=connection)
    same = [asyncio.create_task(jobs.enqueue("send", unique_key="k")) for _ in range(30)]
    beside = [asyncio.create_task(jobs.enqueue("send", unique_key=key)) for key in ("in", "batch")]
    mixed = asyncio.create_task(jobs.enqueue_many([jobs.draft("send"), jobs.draft("send", unique_key="k")]))
    async with asyncio.timeout(5):
        await until(lambda: waits(url))
        for number in range(5):
            assert (await jobs.enqueue("send")).created
            assert (await jobs.enqueue("send", unique_key=f"other{number}")).created
            await jobs.enqueue_many([jobs.draft("send"), jobs.draft("send", unique_key=f"many{number}")])
            await jobs.chain(jobs.draft("send"), jobs.draft("send")).enqueue()
            await jobs.enqueue("send", unique_key="rule", every="1h")
        assert [one.created for one in await asyncio.gather(*beside)] == [True, True]
        assert not any(task.done() for task in (*same, mixed))
        await connection.execute("COMMIT")
        assert {one.status for one in await asyncio.gather(*same)} == {"duplicate"}
        assert [one.status for one in await mixed] == ["created", "duplicate"]


async def test_keys_in_different_orders_are_no_deadlock(jobs: Client, url: str) -> None:
    async with jobmill.connect(url) as other:
        for number in range(10):
            keys = [f"{number}.{key}" for key in range(20)]
            both = await asyncio.gather(
                jobs.enqueue_many([jobs.draft("send", unique_key=key) for key in keys]),
                other.enqueue_many([other.draft("send", unique_key=key) for key in reversed(keys)]),
            )
            assert sum(one.created for enqueued in both for one in enqueued) == len(keys)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("again", [new("ended"), new("ended", key="k"), hourly("ended")])
async def test_a_transaction_that_does_not_see_how_a_job_has_ended(
    store: PostgresStore, connection: asyncpg.Connection, level: str, again: NewJob
) -> None:
    """It would make a second job of the same id; it fails instead, and sees what is so when it is tried again."""
    await put_one(store, new("ended"))
    await connection.execute(f"ROLLBACK; BEGIN ISOLATION LEVEL {level}; SELECT FROM jobmill.jobs")
    assert await settle(store, *(succeed(one, now_ms=store.now()) for one in await claim(store))) == ["done"]
    assert await store.enqueue_within(connection, [new("other")]) == [Receipt("other", "created")]
    if again.recurrence is None:
        with pytest.raises(asyncpg.SerializationError):
            await store.enqueue_within(connection, [again])
    else:
        # The job is still there, as this transaction sees it.
        assert await store.enqueue_within(connection, [again]) == [Receipt("ended", "exists")]
    await connection.execute(f"ROLLBACK; BEGIN ISOLATION LEVEL {level}")
    assert await store.enqueue_within(connection, [again, hourly("new")]) == [
        Receipt("ended", "exists"),
        Receipt("new", "created"),
    ]
    await connection.execute("COMMIT")
    assert [job.id for job in (await store.find(EVERYTHING)).jobs] == ["new", "ended"]


# ---------------------------------------------------------------------------------------------------- woken


@pytest.fixture
async def asleep(jobs: Client, url: str) -> AsyncIterator[Callable[[], Awaitable[float]]]:
    """A worker that sleeps; when it next began a job."""
    began: asyncio.Queue[float] = asyncio.Queue()

    @jobs.handler
    async def note() -> None:
        began.put_nowait(time.perf_counter())

    async def sleeps() -> bool:
        async with connected(url) as connection:
            return bool(await connection.fetchval("SELECT EXISTS (SELECT FROM jobmill.sleepers)"))

    async with Worker(jobs, concurrency=2):
        await until(sleeps)
        yield began.get


async def test_the_commit_wakes_a_worker(
    jobs: Client, url: str, asleep: Callable[[], Awaitable[float]], connection: asyncpg.Connection
) -> None:
    delays = []
    for _ in range(5):
        await jobs.enqueue("note", within=connection)
        committed = time.perf_counter()
        await connection.execute("COMMIT; BEGIN")
        delays.append(await asyncio.wait_for(asleep(), 10) - committed)
    # Without being woken they look every five seconds.
    assert min(delays) < 0.2, delays
    assert max(delays) < 4, delays


async def test_the_commit_wakes_a_worker_that_has_gone_past_its_place(
    jobs: Client, url: str, asleep: Callable[[], Awaitable[float]], connection: asyncpg.Connection
) -> None:
    await jobs.enqueue("note", within=connection)
    for _ in range(3):
        await jobs.enqueue("note")
        await asyncio.wait_for(asleep(), 10)
    committed = time.perf_counter()
    await connection.execute("COMMIT")
    assert await asyncio.wait_for(asleep(), 10) - committed < 4


# ---------------------------------------------------------------------------------------------------- killed


def killed_at(moment: str, url: str, driver: str) -> None:
    """A caller in a process of its own, until it says that the moment has come."""
    script = Path(__file__).with_name("postgres_killed.py")
    process = subprocess.Popen([sys.executable, script, url, driver, moment], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"now\n"
    finally:
        process.kill()
        process.communicate(timeout=10)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_caller_that_is_killed(store: PostgresStore, url: str, driver: str, moment: str) -> None:
    async with connected(url) as connection:
        await connection.execute("CREATE TABLE orders (id integer)")
        await asyncio.to_thread(killed_at, moment, url, driver)
        exists = moment == "after"
        assert await find_all(store, EVERYTHING) == (["within"] if exists else [])
        # Waits until the server has noticed.
        assert (await enqueue_one(store, new("next", key="k"))).status == ("duplicate" if exists else "created")
        assert await connection.fetchval("SELECT count(*) FROM orders") == exists
        await connection.execute("DROP TABLE orders")


@pytest.mark.slow
async def test_a_server_that_is_killed(own_postgres: PostgresServer) -> None:
    store = PostgresStore(own_postgres.url())
    await store.migrate()
    await store.open()
    for id, commits in (("lost", False), ("kept", True)):
        async with connected(own_postgres.url()) as connection:
            await connection.execute("BEGIN")
            await store.enqueue_within(connection, [new(id)])
            if commits:
                await connection.execute("COMMIT")
            own_postgres.kill()
            own_postgres.start()
    assert await until(lambda: found(store)) == ["kept"]
    await store.close()


async def found(store: PostgresStore) -> list[str] | None:
    try:
        return await find_all(store, EVERYTHING)
    except StoreUnavailable:
        return None
