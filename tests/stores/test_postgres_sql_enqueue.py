"""Enqueueing from plain SQL: what any client of the database can do, and what it is refused."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Json, Jsonb

import jobmill
from jobmill import Client, InvalidValue
from jobmill.core import limits
from jobmill.core.job import Job
from jobmill.core.payload import MAX_BYTES
from jobmill.core.values import EVERYTHING, QueueChange
from jobmill.stores.postgres import PostgresStore
from jobmill.testing.contract.support import claim_ids, find_all, look, new, put_one
from jobmill.worker.worker import Worker
from tests.helpers import until
from tests.kit.postgres import PostgresServers, connected
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


@pytest.fixture
async def sql(url: str) -> AsyncIterator[asyncpg.Connection]:
    async with connected(url) as connection:
        yield connection


async def enqueued(store: PostgresStore, sql: asyncpg.Connection, arguments: str, *values: object) -> Job:
    """The job that a call with these arguments made."""
    id = await sql.fetchval(f"SELECT jobmill.enqueue({arguments})", *values)
    assert isinstance(id, uuid.UUID)
    return await look(store, str(id))


# ---------------------------------------------------------------------------------------------------- arguments


async def test_the_name_is_enough(store: PostgresStore, sql: asyncpg.Connection) -> None:
    before = store.now() - 50
    job = await enqueued(store, sql, "'send'")
    assert (job.name, job.queue, job.payload, job.state, job.priority) == ("send", "default", {}, "waiting", 0)
    assert (job.unique_key, job.tenant, job.attempt, job.claims) == (None, None, 1, 0)
    assert before <= job.created_ms == job.due_ms <= store.now() + 50


async def test_all_arguments_in_order(store: PostgresStore, sql: asyncpg.Connection) -> None:
    job = await enqueued(
        store, sql, """'send', '{"to": "ada"}', 'mail', '2100-01-01 00:00:00.0015Z', 7, 'welcome ada', 'acme gmbh'"""
    )
    assert (job.name, job.queue, job.payload, job.priority) == ("send", "mail", {"to": "ada"}, 7)
    assert job.due_at == datetime(2100, 1, 1, 0, 0, 0, 1_000, UTC)
    assert (job.unique_key, job.tenant) == ("welcome ada", "acme gmbh")


async def test_arguments_by_name(store: PostgresStore, sql: asyncpg.Connection) -> None:
    job = await enqueued(store, sql, "tenant => 'acme', name => 'send', priority => 3, due_at => now() + '1 day'")
    assert (job.name, job.payload, job.tenant, job.priority) == ("send", {}, "acme", 3)
    assert 86_300_000 < job.due_ms - job.created_ms <= 86_400_000
    job = await enqueued(store, sql, "'send', queue => 'mail', payload => '[1, 2]'")
    assert (job.queue, job.payload) == ("mail", [1, 2])


@pytest.mark.parametrize(
    "payload",
    [
        """'{"b":  1.50, "a": 1}'""",
        """'{"b":  1.50, "a": 1}'::text""",
        """'{"b":  1.50, "a": 1}'::varchar""",
        """'{"b":  1.50, "a": 1}'::json""",
    ],
)
async def test_a_payload_of_any_type_is_kept_as_it_is(
    store: PostgresStore, sql: asyncpg.Connection, payload: str
) -> None:
    assert bytes((await enqueued(store, sql, f"'send', {payload}")).payload_json) == b'{"b":  1.50, "a": 1}'


async def test_a_payload_as_jsonb(store: PostgresStore, sql: asyncpg.Connection) -> None:
    assert (await enqueued(store, sql, "'send', jsonb_build_object('n', 1, 't', 'x')")).payload == {"n": 1, "t": "x"}
    assert (await enqueued(store, sql, "'send', json_build_object('n', 1)")).payload == {"n": 1}
    assert (await enqueued(store, sql, "'send', to_jsonb(7)")).payload == 7
    assert (await enqueued(store, sql, "'send', 'null'")).payload is None


async def test_parameters_of_drivers(store: PostgresStore, sql: asyncpg.Connection, url: str) -> None:
    assert (await enqueued(store, sql, "$1, $2", "send", '{"to": "ada"}')).payload == {"to": "ada"}
    text = b"SELECT jobmill.enqueue(%s, %s)"
    with psycopg.connect(url) as connection:
        for kind in (psycopg.Cursor, psycopg.ClientCursor):
            for payload in ('{"to": "ada"}', Json({"to": "ada"}), Jsonb({"to": "ada"})):
                row = kind(connection).execute(text, ["send", payload]).fetchone()
                assert row is not None
                connection.commit()
                assert (await look(store, str(row[0]))).payload == {"to": "ada"}


async def test_due_times(store: PostgresStore, sql: asyncpg.Connection) -> None:
    past = await enqueued(store, sql, "'send', queue => 'mail', due_at => '1970-01-01Z'")
    assert past.due_ms == 0
    now = await enqueued(store, sql, "'send', queue => 'mail'")
    last = await enqueued(store, sql, "'send', queue => 'mail', due_at => '9999-12-31 23:59:59.9999Z'")
    assert last.due_at == datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)
    assert await claim_ids(store) == [past.id, now.id]


# ---------------------------------------------------------------------------------------------------- transactions


async def test_the_transaction_of_the_caller(store: PostgresStore, sql: asyncpg.Connection) -> None:
    await sql.execute("BEGIN; SELECT jobmill.enqueue('a'); ROLLBACK")
    assert await find_all(store, EVERYTHING) == []
    # In plain text and one message, as a script would be.
    await sql.execute(
        "BEGIN; SELECT jobmill.enqueue('b'); SAVEPOINT s; SELECT jobmill.enqueue('c'); ROLLBACK TO s; COMMIT"
    )
    (job,) = await store.get(await find_all(store, EVERYTHING))
    assert job is not None
    assert job.name == "b"


async def test_many_at_once_keep_their_order(store: PostgresStore, sql: asyncpg.Connection) -> None:
    query = "SELECT jobmill.enqueue('send', json_build_object('n', n), 'mail') FROM generate_series(1, 50) AS n"
    ids = [str(row[0]) for row in await sql.fetch(query)]
    assert len(set(ids)) == 50
    assert await claim_ids(store) == ids


async def test_a_live_job_that_has_the_key(store: PostgresStore, sql: asyncpg.Connection) -> None:
    owner = await enqueued(store, sql, "'send', unique_key => 'k'")
    assert (await enqueued(store, sql, "'send', unique_key => 'k', payload => '1'")).id == owner.id
    assert (await enqueued(store, sql, "'send', unique_key => 'k', queue => 'mail'")).id != owner.id
    # Twice within one statement, and in one transaction.
    rows = await sql.fetch("SELECT jobmill.enqueue('x', unique_key => 'k') FROM generate_series(1, 3)")
    assert len({row[0] for row in rows}) == 1
    await put_one(store, new("mine", key="k", queue="other"))
    assert await sql.fetchval("SELECT jobmill.enqueue('send', queue => 'other', unique_key => 'k')") is None
    assert len(await find_all(store, EVERYTHING)) == 4


async def test_two_who_want_one_key(store: PostgresStore, sql: asyncpg.Connection, url: str) -> None:
    async with connected(url) as other:
        await sql.execute("BEGIN; SELECT jobmill.enqueue('send', unique_key => 'k')")
        waiting = asyncio.create_task(other.fetchval("SELECT jobmill.enqueue('send', unique_key => 'k')"))
        await asyncio.sleep(0.01)
        await sql.execute("ROLLBACK")
        id = await waiting
        assert await find_all(store, EVERYTHING) == [str(id)]


async def test_the_feed_tells_of_it(store: PostgresStore, sql: asyncpg.Connection) -> None:
    await store.configure("mail", QueueChange(feed=True))
    await sql.execute("BEGIN; SELECT jobmill.enqueue('send', queue => 'mail'); ROLLBACK")
    job = await enqueued(store, sql, """'s"ed', queue => 'mail', unique_key => 'k'""")
    await enqueued(store, sql, "'sed', queue => 'mail', unique_key => 'k'")
    await sql.fetchval("""SELECT jobmill.enqueue('s"ed', queue => 'mail', unique_key => 'k')""")
    first, second = await store.events("mail")
    assert (first.type, first.job_id, first.name, first.queue, first.attempt) == ("enqueued", job.id, 's"ed', "mail", 1)
    assert abs(first.at_ms - store.now()) < 5_000
    assert second.name == "sed"


@pytest.mark.parametrize(
    "setting",
    ["standard_conforming_strings = off", "search_path = ''", "DateStyle = 'German'", "TimeZone = 'Asia/Kathmandu'"],
)
async def test_whatever_the_session_has_set(store: PostgresStore, sql: asyncpg.Connection, setting: str) -> None:
    await sql.execute(f"SET {setting}")
    job = await enqueued(store, sql, "'send', due_at => '2100-01-01 00:00:00Z', tenant => E'o''br\\\\ien'")
    assert (job.due_ms, job.tenant) == (4_102_444_800_000, "o'br\\ien")
    with pytest.raises(asyncpg.InvalidParameterValueError, match="^name: expected"):
        await sql.fetchval("SELECT jobmill.enqueue(E'a\\nb')")


# ---------------------------------------------------------------------------------------------------- the worker


@pytest.fixture
async def jobs(url: str) -> AsyncIterator[Client]:
    async with jobmill.connect(url) as client:
        yield client


async def test_a_worker_wakes_and_runs_it(jobs: Client, sql: asyncpg.Connection) -> None:
    ran: list[tuple[str, int, float]] = []

    @jobs.handler
    async def send(to: str, times: int = 1) -> None:
        ran.append((to, times, time.perf_counter()))

    delays: list[float] = []
    async with Worker(jobs):
        await until(lambda: sql.fetchval("SELECT EXISTS (SELECT FROM jobmill.sleepers)"))
        for number in range(5):
            committed = time.perf_counter()
            await sql.execute(f"""SELECT jobmill.enqueue('send', '{{"to": "ada", "times": {number}}}')""")
            await until(lambda: len(ran) > len(delays))
            assert ran[-1][:2] == ("ada", number)
            delays.append(ran[-1][2] - committed)
    # Without being woken it looks every five seconds.
    assert min(delays) < 0.2, delays
    assert max(delays) < 4, delays


@pytest.mark.parametrize("payload", ['{"to": 1}', "{}", '{"to": "a", "cc": "b"}', "[1]", '{"to": "\\ud800"}', "1e999"])
async def test_a_payload_that_does_not_fit_fails_with_the_reason(
    jobs: Client, sql: asyncpg.Connection, payload: str
) -> None:
    @jobs.handler
    async def send(to: str) -> None: ...

    id = await sql.fetchval("SELECT jobmill.enqueue('send', $1)", payload)
    assert (await jobs.tick()).failed == 1
    job = await jobs.get(str(id))
    assert job.error is not None
    assert "payload" in job.error


# ---------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("NULL", "name: expected a text of 1 to 255 characters without white space or control characters, got NULL"),
        ("''", "name: expected .*, got ''"),
        ("'a b'", "name: expected .*, got 'a b'"),
        ("'o''brien '", "name: expected .*, got 'o''brien '"),
        ("'send', queue => 'a:b'", """queue: expected a name without ":", got 'a:b'"""),
        ("'send', queue => NULL", "queue: expected .*, got NULL"),
        ("'send', unique_key => ' '", "unique_key: expected a text of 1 to 1024 characters without control characters"),
        ("'send', unique_key => repeat('x', 1025)", f"unique_key: expected .*, got '{'x' * 100}'$"),
        ("'send', tenant => E'\\x7f'", "tenant: expected a text of 1 to 255 characters without control characters"),
        ("'send', priority => -1", "priority: expected a whole number from 0 to 2097151, got -1"),
        ("'send', priority => 2097152", "priority: expected .*, got 2097152"),
        ("'send', priority => NULL", "priority: expected .*, got NULL"),
        ("'send', due_at => 'infinity'", "due_at: expected a time in the years 1970 to 9999 of UTC, got infinity"),
        ("'send', due_at => '-infinity'", "due_at: expected .*, got -infinity"),
        ("'send', due_at => '1969-12-31 23:59:59.999Z'", "due_at: expected .*, got 1969-12-31"),
        ("'send', due_at => '10000-01-01Z'", "due_at: expected .*, got 10000-01-01"),
        ("'send', NULL", "payload: expected JSON, got NULL"),
        (
            f"'send', to_json(repeat('x', {MAX_BYTES - 1}))",
            f"payload: expected at most {MAX_BYTES} bytes of JSON, got {MAX_BYTES + 1}",
        ),
    ],
)
async def test_what_is_refused(store: PostgresStore, sql: asyncpg.Connection, arguments: str, said: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match=f"^{said}"):
        await sql.fetchval(f"SELECT jobmill.enqueue({arguments})")
    assert await find_all(store, EVERYTHING) == []


@pytest.mark.parametrize("payload", ["'{'", "''", "'{''a'': 1}'", "'NaN'", 'E\'{"a": "\\n"}\''])
async def test_a_payload_that_is_no_json(store: PostgresStore, sql: asyncpg.Connection, payload: str) -> None:
    with pytest.raises(asyncpg.InvalidTextRepresentationError, match="invalid input syntax for type json"):
        await sql.fetchval(f"SELECT jobmill.enqueue('send', {payload})")


async def test_a_payload_of_the_greatest_size(store: PostgresStore, sql: asyncpg.Connection) -> None:
    job = await enqueued(store, sql, f"'send', to_json(repeat('x', {MAX_BYTES - 2}))")
    assert len(bytes(job.payload_json)) == MAX_BYTES


# With all characters about which Python, PostgreSQL and its locales have different opinions.
TEXTS = st.text(
    st.one_of(
        st.characters(exclude_characters="\x00", exclude_categories=["Cs"]),
        st.sampled_from(
            " \t\n\x0b\x1c\x1f\x7f\x80\x85\x9f\xa0\u1680\u180e\u2000\u200a\u200b\u2028\u2029\u202f\u205f\u3000"
            "\ufeffa:'\\\"%${}[]^-\N{PILE OF POO}\uffff\U00010000\U0010ffff"
        ),
    ),
    max_size=6,
)
LONG = st.builds(
    lambda text, sign, times: text + sign * times,
    TEXTS,
    st.sampled_from(["x", "é", "\u3042", "\N{PILE OF POO}"]),
    st.sampled_from([0, 125, 127, 128, 249, 255, 256, 509, 511, 512, 1021, 1023, 1024, 1025]),
)
CHECKS: dict[str, Any] = {
    "name": limits.check_name,
    "queue": limits.check_queue,
    "unique_key": limits.check_unique_key,
    "tenant": limits.check_tenant,
}


def core_refuses(field: str, text: str) -> bool:
    try:
        CHECKS[field](text)
    except InvalidValue:
        return True
    return False


REFUSED = """
CREATE FUNCTION pg_temp.refused(field text, texts text[], may_have_blanks boolean) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    one text;
    refused text[] := '{}';
BEGIN
    FOREACH one IN ARRAY texts LOOP
        BEGIN
            PERFORM jobmill.check_text(field, one, 255, may_have_blanks, false);
        EXCEPTION WHEN invalid_parameter_value THEN
            refused := refused || one;
        END;
    END LOOP;
    RETURN refused;
END $$
"""


@pytest.mark.parametrize("field", ["queue", "tenant"])
async def test_sql_refuses_the_characters_that_the_core_refuses(sql: asyncpg.Connection, field: str) -> None:
    characters = [chr(code) for code in (*range(1, 0x3100), *range(0xFE00, 0x10200))]
    texts = [text for character in characters for text in (character, f"a{character}")]
    await sql.execute(REFUSED)
    refused = await sql.fetchval("SELECT pg_temp.refused($1, $2, $3)", field, texts, field == "tenant")
    assert refused == [text for text in texts if core_refuses(field, text)]


@pytest.mark.parametrize("field", CHECKS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(text="")
@example(text="\N{PILE OF POO}" * 127 + "x")
@example(text="\N{PILE OF POO}" * 128)
@example(text="\N{PILE OF POO}" * 512)
@given(text=TEXTS | LONG)
async def test_sql_takes_what_the_core_takes(field: str, text: str, sql: asyncpg.Connection) -> None:
    arguments = {"name": "send"} | {field: text}
    call = ", ".join(f"{name} => ${number}::text" for number, name in enumerate(arguments, 1))
    try:
        id = await sql.fetchval(f"SELECT jobmill.enqueue({call})", *arguments.values())
    except asyncpg.InvalidParameterValueError:
        assert core_refuses(field, text)
    else:
        assert not core_refuses(field, text)
        assert await sql.fetchval(f"SELECT {field} FROM jobmill.jobs WHERE id = $1", str(id)) == text
        await sql.execute("DELETE FROM jobmill.jobs")
