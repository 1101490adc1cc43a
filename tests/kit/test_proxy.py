"""The faults that the proxy makes, each shown with a real server and its driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import psycopg
import pytest

from tests.helpers import until
from tests.kit.pgwire import Conversation
from tests.kit.places import port_of
from tests.kit.postgres import connected
from tests.kit.proxy import Proxy

pytestmark = pytest.mark.stores("postgres")

LOST = (asyncpg.ConnectionDoesNotExistError, ConnectionResetError)


@pytest.fixture
async def proxy(local_postgres_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(port_of(local_postgres_url)) as proxy:
        yield proxy


async def test_cut_resets_all_connections_at_once(proxy: Proxy, local_postgres_url: str) -> None:
    async with connected(proxy.url(local_postgres_url)) as one, connected(proxy.url(local_postgres_url)) as other:
        sleeping = asyncio.ensure_future(one.execute("SELECT pg_sleep(60)"))
        assert await other.fetchval("SELECT 1") == 1
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        await until(lambda: proxy.connections == 3)
        proxy.cut()
        with pytest.raises(ConnectionResetError):  # not just the end
            await reader.read()
        writer.close()
        with pytest.raises(LOST):
            await sleeping
        await until(other.is_closed)
        await until(lambda: not proxy.connections)
        assert (proxy.accepted, proxy.cuts) == (3, 3)
    async with connected(proxy.url(local_postgres_url)) as connection:
        assert await connection.fetchval("SELECT 1") == 1


async def test_refuse_is_for_new_connections_only(proxy: Proxy, local_postgres_url: str) -> None:
    async with connected(proxy.url(local_postgres_url)) as connection:
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncpg.connect(proxy.url(local_postgres_url), timeout=10)
        assert await connection.fetchval("SELECT 1") == 1
        proxy.accept()
    async with connected(proxy.url(local_postgres_url)) as connection:
        assert await connection.fetchval("SELECT 1") == 1


async def test_a_stall_holds_everything_up_until_it_goes_on(proxy: Proxy, local_postgres_url: str) -> None:
    async with connected(proxy.url(local_postgres_url)) as connection:
        proxy.stall()
        asking = asyncio.ensure_future(connection.fetchval("SELECT 1"))
        connecting = asyncio.ensure_future(asyncpg.connect(proxy.url(local_postgres_url), timeout=20))
        await until(lambda: proxy.held == 2)
        assert not asking.done()
        assert not connecting.done()
        proxy.go_on()
        assert await asking == 1
        (await connecting).terminate()


async def test_what_is_stalled_can_be_cut(proxy: Proxy, local_postgres_url: str) -> None:
    async with connected(proxy.url(local_postgres_url)) as connection:
        proxy.stall()
        asking = asyncio.ensure_future(connection.fetchval("SELECT 1"))
        await until(lambda: proxy.held)
        proxy.cut()
        with pytest.raises(LOST):
            await asking


async def test_half_open_frees_the_server_and_leaves_the_client_waiting(proxy: Proxy, local_postgres_url: str) -> None:
    async with connected(proxy.url(local_postgres_url)) as connection, connected(local_postgres_url) as direct:
        pid = await connection.fetchval("SELECT pg_backend_pid()")
        proxy.half_open()
        await until(lambda: direct.fetchval("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $1", pid))
        with pytest.raises(TimeoutError):
            await connection.fetchval("SELECT 1", timeout=0.2)
        assert proxy.connections >= 1
        async with connected(proxy.url(local_postgres_url)) as another:
            assert await another.fetchval("SELECT 1") == 1
    await until(lambda: not proxy.connections)


async def test_delay_adds_latency_each_way(proxy: Proxy, local_postgres_url: str) -> None:
    clock = asyncio.get_running_loop().time
    async with connected(proxy.url(local_postgres_url)) as connection:
        await connection.fetchval("SELECT 1")
        proxy.delay(0.05)
        began = clock()
        await connection.execute("SELECT 1")  # one round trip
        assert clock() - began >= 0.1
        proxy.delay(0)
        assert await connection.fetchval("SELECT 1") == 1


async def test_a_commit_whose_answer_is_lost_has_happened(proxy: Proxy, local_postgres_url: str) -> None:
    async with connected(local_postgres_url) as direct:
        await direct.execute("CREATE TABLE kept (n int)")
        async with connected(proxy.url(local_postgres_url)) as connection:
            proxy.drop_answer(lambda statement: b"COMMIT" in statement)
            with pytest.raises(LOST):
                async with connection.transaction():
                    await connection.execute("INSERT INTO kept VALUES ($1)", 1)
        assert (proxy.dropped_answers, proxy.cuts) == (1, 1)
        assert await direct.fetchval("SELECT n FROM kept") == 1
        async with connected(proxy.url(local_postgres_url)) as connection, connection.transaction():  # only once
            await connection.execute("INSERT INTO kept VALUES ($1)", 2)
        assert await direct.fetchval("SELECT count(*) FROM kept") == 2


async def test_a_prepared_statement_is_known_by_its_text_and_parameters(proxy: Proxy, local_postgres_url: str) -> None:
    insert = "INSERT INTO kept SELECT $1 FROM generate_series(1, 5000) RETURNING *"  # an answer in many pieces
    async with connected(local_postgres_url) as direct:
        await direct.execute("CREATE TABLE kept (t text)")
        async with connected(proxy.url(local_postgres_url)) as connection:
            proxy.drop_answer(lambda statement: b"INSERT" in statement and b"second" in statement)
            assert len(await connection.fetch(insert, "first")) == 5_000
            with pytest.raises(LOST):
                await connection.fetch(insert, "second")
        assert await direct.fetchval("SELECT count(*) FROM kept WHERE t = 'second'") == 5_000


async def test_a_copy_whose_answer_is_lost_has_happened(proxy: Proxy, local_postgres_url: str) -> None:
    async with connected(local_postgres_url) as direct:
        await direct.execute("CREATE TABLE kept (n int)")
        async with connected(proxy.url(local_postgres_url)) as connection:
            proxy.drop_answer(lambda statement: statement.startswith(b"COPY"))
            with pytest.raises(LOST):
                await connection.copy_records_to_table("kept", records=[(n,) for n in range(50_000)])
        assert await direct.fetchval("SELECT count(*) FROM kept") == 50_000


async def test_a_driver_that_waits_to_be_asked_for_its_copy(proxy: Proxy, local_postgres_url: str) -> None:
    async with connected(local_postgres_url) as direct:
        await direct.execute("CREATE TABLE kept (n int)")
        connection = await psycopg.AsyncConnection.connect(proxy.url(local_postgres_url), autocommit=True)
        proxy.drop_answer(lambda statement: statement.startswith(b"COPY"))
        async with asyncio.timeout(20), connection:
            with pytest.raises(psycopg.OperationalError):
                async with connection.cursor().copy("COPY kept FROM STDIN") as copy:
                    await copy.write_row((1,))
        assert await direct.fetchval("SELECT n FROM kept") == 1


async def test_the_other_driver_loses_its_answer_too(proxy: Proxy, local_postgres_url: str) -> None:
    async with connected(local_postgres_url) as direct:
        await direct.execute("CREATE TABLE kept (n int)")
        async with await psycopg.AsyncConnection.connect(proxy.url(local_postgres_url)) as connection:
            await connection.execute("INSERT INTO kept VALUES (%s)", (1,))
            proxy.drop_answer(lambda statement: b"COMMIT" in statement)
            with pytest.raises(psycopg.OperationalError):
                await connection.commit()
        assert proxy.dropped_answers == 1
        assert await direct.fetchval("SELECT n FROM kept") == 1


async def test_a_failing_predicate_fails_the_test(local_postgres_url: str) -> None:
    with pytest.RaisesGroup(ZeroDivisionError):
        async with Proxy(port_of(local_postgres_url)) as proxy, connected(proxy.url(local_postgres_url)) as connection:
            proxy.drop_answer(lambda _: bool(1 / 0))
            with pytest.raises(LOST):
                await connection.execute("SELECT 1")


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + (len(body) + 4).to_bytes(4) + body


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 1_000])
def test_only_the_answer_of_its_own_statement_is_swallowed(size: int) -> None:
    """In a pipeline, where several statements are on their way; and in whatever pieces the messages come."""
    conversation = Conversation()
    statements = [message(b"B", b"\0one\0" + parameter) + message(b"E") + message(b"S") for parameter in (b"x", b"y")]
    opening = (8).to_bytes(4) + (80_877_103).to_bytes(4) + (8).to_bytes(4) + (196_608).to_bytes(4)
    sent = opening + message(b"P", b"one\0SELECT $1\0") + b"".join(statements)
    found = [one for piece in pieces(sent, size) for one in conversation.client_says(piece)]
    assert [statement.text for statement in found] == [b"SELECT $1\0x", b"SELECT $1\0y"]
    conversation.swallow(found[1])
    first = b"N" + message(b"R") + message(b"Z", b"I") + message(b"D", b"x") + message(b"Z", b"I")
    passed, is_over = b"", False
    for piece in pieces(first + message(b"D", b"y") + message(b"Z", b"I"), size):
        more, is_over = conversation.server_says(piece)
        passed += more
    assert (passed, is_over) == (first, True)


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]
