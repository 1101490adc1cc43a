"""Enqueueing within the caller's own transaction on PostgreSQL: every kind of connection, and what is none."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from msgspec import structs
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from jobmill.core.recurrence import recurrence
from jobmill.core.values import EVERYTHING, NewJob, QueueChange, Receipt, at
from jobmill.errors import InvalidValue, SchemaTooOld, StoreError
from jobmill.stores.postgres import PostgresStore
from jobmill.testing.contract.support import find_all, look, new, put_one
from jobmill.testing.contract.unique_policy import REPLACE, keyed
from tests.kit.postgres import PostgresServers, connected
from tests.stores.postgres_callers import CALLERS, Caller, engine, of_asyncpg
from tests.stores_under_test import emptied_postgres

pytestmark = pytest.mark.stores("postgres")


@pytest.fixture
async def url(postgres_servers: PostgresServers) -> str:
    return await emptied_postgres(postgres_servers)


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture(params=CALLERS)
async def caller(request: pytest.FixtureRequest, url: str) -> AsyncIterator[Caller]:
    async with CALLERS[request.param](url) as caller:
        yield caller


def every_hour(id: str, payload: object = None) -> NewJob:
    return new(id, key="hourly", payload=payload, recurrence=recurrence(key="hourly", every_ms=3_600_000))


# ---------------------------------------------------------------------------------------------------- every kind


async def test_a_job_exists_exactly_if_the_transaction_commits(store: PostgresStore, caller: Caller) -> None:
    await caller.begin()
    await store.enqueue_within(caller.within, [new("never", key="k"), new("neither")])
    await caller.rollback()
    assert await find_all(store, EVERYTHING) == []
    await caller.begin()
    await store.enqueue_within(caller.within, [new("one", payload={"a": [1, None]}, priority=3, tenant="acme")])
    await store.enqueue_within(caller.within, [new("two", key="k", due=at(4_000_000_000_000))])
    assert await find_all(store, EVERYTHING) == []
    await caller.commit()
    one, two = await store.get(["one", "two"])
    assert one is not None
    assert two is not None
    assert (one.payload, one.priority, one.tenant, one.unique_key) == ({"a": [1, None]}, 3, "acme", None)
    assert (two.payload, two.due_ms, two.tenant, two.unique_key) == (None, 4_000_000_000_000, None, "k")


async def test_a_savepoint_that_is_rolled_back_takes_its_jobs_along(store: PostgresStore, caller: Caller) -> None:
    await caller.begin()
    await store.enqueue_within(caller.within, [new("before")])
    await caller.execute("SAVEPOINT mine")
    await store.enqueue_within(caller.within, [new("inside"), every_hour("hourly")])
    await caller.execute("ROLLBACK TO SAVEPOINT mine")
    await store.enqueue_within(caller.within, [new("after")])
    await caller.commit()
    assert sorted(await find_all(store, EVERYTHING)) == ["after", "before"]


async def test_receipts_are_as_outside(store: PostgresStore, caller: Caller) -> None:
    await put_one(store, new("taken"))
    await put_one(store, new("owner", key="k"))
    await put_one(store, every_hour("hourly", payload=1))
    await caller.begin()
    new_jobs = [new("one"), new("taken"), new("two", key="k"), every_hour("other", payload=2), new("one"), new("three")]
    receipts = await store.enqueue_within(caller.within, new_jobs)
    await caller.commit()
    assert receipts == [
        Receipt("one", "created"),
        Receipt("taken", "exists"),
        Receipt("owner", "duplicate"),
        Receipt("hourly", "updated"),
        Receipt("one", "exists"),
        Receipt("three", "created"),
    ]
    assert (await look(store, "hourly")).payload == 2


async def test_an_event_is_in_the_feed_exactly_if_the_transaction_commits(store: PostgresStore, caller: Caller) -> None:
    await store.configure("told", QueueChange(feed=True))
    # Of several statements the last one is about the queue with a feed.
    new_jobs = [new("silent"), every_hour("hourly"), new("told", queue="told")]
    await caller.begin()
    await store.enqueue_within(caller.within, new_jobs)
    await store.enqueue_within(caller.within, [new("alone", queue="told")])
    await caller.rollback()
    assert await store.events("told") == []
    await caller.begin()
    receipts = await store.enqueue_within(caller.within, new_jobs)
    assert [receipt.status for receipt in receipts] == ["created", "created", "created"]
    await store.enqueue_within(caller.within, [new("alone", queue="told"), new("told", queue="told")])
    assert await store.events("told") == []
    await caller.commit()
    assert [(event.type, event.job_id) for event in await store.events("told")] == [
        ("enqueued", "told"),
        ("enqueued", "alone"),
    ]


ODD = 'o\'br\\ien "%s %(p1)s" :p1 ::text $1 $$ {x} \N{PILE OF POO} ü'


async def test_odd_texts_arrive_as_they_are(store: PostgresStore, caller: Caller) -> None:
    word, queue = ODD.replace(" ", "_"), ODD.replace(" ", "_").replace(":", ";")
    odd = new(word, name=word, queue=queue, payload={ODD: "\x00\\u0000"}, key=ODD, tenant=ODD)
    rule = recurrence(key=ODD, cron="0 9 * * mon", timezone="Europe/Berlin")
    await store.configure(queue, QueueChange(feed=True))
    await caller.begin()
    await store.enqueue_within(caller.within, [odd])
    await store.enqueue_within(caller.within, [structs.replace(odd, id="r", name="r", recurrence=rule)])
    await caller.commit()
    for job in [await look(store, word), await look(store, "r")]:
        assert (job.payload, job.tenant, job.unique_key) == ({ODD: "\x00\\u0000"}, ODD, ODD)
    assert [event.name for event in await store.events(queue)] == [word, "r"]


# ---------------------------------------------------------------------------------------------------- wrong things


def refusal(words: str) -> Any:
    return pytest.raises(InvalidValue, match=f"^within: expected .*{words}")


async def test_what_is_no_connection(store: PostgresStore, url: str) -> None:
    used = engine(url)
    pool = asyncpg.create_pool(url)
    with closing(sqlite3.connect(":memory:")) as connection, psycopg.Connection.connect(url) as open_:
        for given in (connection, "BEGIN", object(), used, sessionmaker(used), pool, open_.cursor(), asyncpg, None):
            with refusal("a connection of asyncpg, psycopg or Django, or a connection or session of SQLAlchemy"):
                await store.enqueue_within(given, [new()])
    used.dispose()


async def test_a_connection_of_sqlalchemy_to_something_else(store: PostgresStore) -> None:
    used = sqlalchemy.create_engine("sqlite://")
    with used.connect() as connection, refusal(r"its engine is sqlite\+pysqlite; give one of postgresql"):
        await store.enqueue_within(connection, [new()])
    with Session(used) as session, refusal(r"its engine is sqlite\+pysqlite; give one of postgresql"):
        await store.enqueue_within(session, [new()])
    used.dispose()


async def test_one_that_is_closed(store: PostgresStore, url: str) -> None:
    async with connected(url) as plain:
        await plain.close()
        with refusal("this one is closed"):
            await store.enqueue_within(plain, [new()])
    async with asyncpg.create_pool(url, min_size=1) as pool:
        async with pool.acquire() as lent:
            pass
        with refusal("released back to the pool"):
            await store.enqueue_within(lent, [new()])
    gone = psycopg.connect(url)
    gone.close()
    with refusal("this one is closed"):
        await store.enqueue_within(gone, [new()])
    used = engine(url)
    with used.connect() as connection:
        pass
    with refusal("This Connection is closed"):
        await store.enqueue_within(connection, [new()])
    used.dispose()


async def test_one_without_a_transaction(store: PostgresStore, url: str) -> None:
    async with connected(url) as plain:
        with refusal(r"begin one: async with connection\.transaction\(\)"):
            await store.enqueue_within(plain, [new()])
    with psycopg.connect(url, autocommit=True) as commits, refusal(r"begin one: with connection\.transaction\(\)"):
        await store.enqueue_within(commits, [new()])
    used = engine(url, isolation_level="AUTOCOMMIT")
    with used.connect() as connection, refusal("its isolation level is AUTOCOMMIT"):
        await store.enqueue_within(connection, [new()])
    with Session(used) as session, refusal("its isolation level is AUTOCOMMIT"):
        await store.enqueue_within(session, [new()])
    with Session(used, autobegin=False) as session, refusal("Autobegin is disabled"):
        await store.enqueue_within(session, [new()])
    used.dispose()
    waits = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"), isolation_level="AUTOCOMMIT")
    async with waits.connect() as waiting:
        with refusal("its isolation level is AUTOCOMMIT"):
            await store.enqueue_within(waiting, [new()])
    with refusal("this one was not begun"):
        await store.enqueue_within(waits.connect(), [new()])
    await waits.dispose()
    assert await find_all(store, EVERYTHING) == []


async def test_one_whose_transaction_has_failed(store: PostgresStore, caller: Caller) -> None:
    await caller.begin()
    with pytest.raises(Exception, match="division by zero"):
        await caller.execute("SELECT 1/0")
    with refusal("an earlier statement has failed in it: roll it back first"):
        await store.enqueue_within(caller.within, [new()])
    await caller.rollback()
    await caller.begin()
    assert await store.enqueue_within(caller.within, [new("x")]) == [Receipt("x", "created")]


async def test_a_session_that_must_be_rolled_back_first(store: PostgresStore, url: str) -> None:
    used = engine(url)
    with Session(used) as session:
        session.begin_nested().rollback()
        session.connection().invalidate()
        with refusal("invalid transaction is rolled back"):
            await store.enqueue_within(session, [new()])
    used.dispose()


async def test_another_database(store: PostgresStore, caller: Caller, request: pytest.FixtureRequest) -> None:
    """Without the schema, and with one of the same name."""
    name = request.node.callspec.params["caller"]
    async with request.getfixturevalue("postgres_server").database() as url:
        async with CALLERS[name](url) as lost:
            await lost.begin()
            with refusal("a connection to the database of the store.*this one has no schema 'jobmill'"):
                await store.enqueue_within(lost.within, [new()])
            await lost.rollback()
            await lost.begin()
            with pytest.raises(SchemaTooOld, match="is it the right database"):
                await PostgresStore(url).enqueue_within(lost.within, [new()])
            await lost.rollback()
        other = PostgresStore(url)
        await other.migrate()
        async with CALLERS[name](url) as lost:
            await lost.begin()
            for jobs in ([new()], [every_hour("x")], [new(), every_hour("x")], [keyed(REPLACE)]):
                with refusal("a connection to the database of the store.*schema 'jobmill' is another one"):
                    await store.enqueue_within(lost.within, jobs)
            # Nothing has failed in it, and nothing was done.
            await lost.commit()
        assert await find_all(other, EVERYTHING) == []
        await other.close()


async def test_somebody_who_may_not(store: PostgresStore, url: str) -> None:
    async with of_asyncpg(url) as caller:
        await caller.execute("CREATE ROLE nobody_at_all")
        await caller.begin()
        await caller.execute("SET LOCAL ROLE nobody_at_all")
        with pytest.raises(StoreError, match="permission denied for schema jobmill; see the roles"):
            await store.enqueue_within(caller.within, [new()])
        await caller.rollback()
        await caller.execute("DROP ROLE nobody_at_all")


async def test_an_error_of_the_callers_own_driver_stays_what_it_is(store: PostgresStore, url: str) -> None:
    async with of_asyncpg(url) as caller:
        await caller.begin()
        await caller.execute("SET TRANSACTION READ ONLY")
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await store.enqueue_within(caller.within, [new()])
    with psycopg.connect(url) as connection:
        connection.execute("SET TRANSACTION READ ONLY")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            await store.enqueue_within(connection, [new()])
    used = engine(url)
    with used.connect() as connected_:
        connected_.execute(sqlalchemy.text("SET TRANSACTION READ ONLY"))
        with pytest.raises(sqlalchemy.exc.DBAPIError, match="read-only transaction"):
            await store.enqueue_within(connected_, [new()])
    used.dispose()


# In a pipeline everything fails with it, up to the next sync.
@pytest.mark.parametrize("caller", [kind for kind in CALLERS if kind != "psycopg pipeline"], indirect=True)
async def test_a_call_that_fails_halfway_leaves_nothing_behind(store: PostgresStore, caller: Caller) -> None:
    await caller.begin()
    await store.enqueue_within(caller.within, [new("before")])
    bad = new("bad", priority=1 << 70)
    with pytest.raises(Exception, match="(?i)range|out of|large"):
        await store.enqueue_within(caller.within, [new("good"), every_hour("hourly"), bad])
    # Its transaction goes on.
    await store.enqueue_within(caller.within, [new("after")])
    await caller.commit()
    assert sorted(await find_all(store, EVERYTHING)) == ["after", "before"]
