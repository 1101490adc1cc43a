"""Defaults and limits that functions in the schema repeat, because they also run without Python, are the core's."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import asyncpg
import pytest

from jobmill.core.job import DAY_MS, KEEP_FAILED, LOG_LINES_KEPT
from jobmill.core.limits import MAX_KEY, MAX_NAME, MAX_PRIORITY
from jobmill.core.payload import MAX_BYTES
from jobmill.core.values import NewJob, QueueSettings
from jobmill.handlers.options import DEFAULT_QUEUE
from jobmill.harmonyk import install_jobs_table
from jobmill.harmonyk.jobs_table import OPTIONS
from jobmill.stores.postgres import PostgresStore
from tests.kit.postgres import connected

pytestmark = pytest.mark.stores("postgres")


@pytest.fixture
async def sql(local_postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A database with a jobs table."""
    store = PostgresStore(local_postgres_url)
    await store.migrate()
    await install_jobs_table(store, "public.jobs")
    await store.close()
    async with connected(local_postgres_url) as connection:
        yield connection


async def source(sql: asyncpg.Connection, function: str) -> str:
    """The definition of a function, of several by that name the longest."""
    text = "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'jobmill'::regnamespace AND proname = $1"
    definitions: list[str] = [row[0] for row in await sql.fetch(text, function)]
    return max(definitions, key=len)


async def test_enqueue_has_the_defaults_and_limits_of_the_core(sql: asyncpg.Connection) -> None:
    rows = await sql.fetch(
        "SELECT pg_get_function_arguments(oid) FROM pg_proc"
        " WHERE pronamespace = 'jobmill'::regnamespace AND proname = 'enqueue'"
    )
    priority = NewJob(id="x", name="x", queue="x", payload_json=b"{}").priority
    assert len(rows) == 3
    for row in rows:
        assert f"queue text DEFAULT '{DEFAULT_QUEUE}'::text" in row[0]
        assert f"priority integer DEFAULT {priority}," in row[0]
    body = await source(sql, "enqueue")
    limits = dict(re.findall(r"check_text\('(\w+)', \w+, (\d+),", body))
    most = {"name": MAX_NAME, "queue": MAX_NAME, "unique_key": MAX_KEY, "tenant": MAX_NAME}
    assert limits == {field: str(limit) for field, limit in most.items()}
    assert f"NOT BETWEEN 0 AND {MAX_PRIORITY} THEN" in body
    assert f"octet_length(payload) > {MAX_BYTES} THEN" in await source(sql, "check_payload")


async def test_functions_and_tables_have_the_defaults_of_the_core(sql: asyncpg.Connection) -> None:
    assert f"lines - {LOG_LINES_KEPT};" in await source(sql, "report")
    default = await sql.fetchval(
        "SELECT column_default FROM information_schema.columns"
        " WHERE table_schema = 'jobmill' AND table_name = 'queues' AND column_name = 'events_max_len'"
    )
    assert int(default) == QueueSettings().events_max_len


async def test_the_jobs_table_has_the_defaults_and_limits_of_the_core(sql: asyncpg.Connection) -> None:
    assert f"now_ms + {KEEP_FAILED.age_ms}\n    FROM gone" in await source(sql, "jobs_table_cancel")
    assert f"finished_ms + {DAY_MS}," in await source(sql, "jobs_table_leave")
    for function in ("jobs_table_enqueue", "jobs_table_deciding"):
        assert f"type, {MAX_NAME}, false, false)" in await source(sql, function)
    for function in ("jobs_table_enqueue", "jobs_table_updated", "jobs_table_restart"):
        assert f"wake(ARRAY['{DEFAULT_QUEUE}'])" in await source(sql, function)
    # The same options by which the store keeps a job in the history until the table's trigger has seen it.
    for function in ("jobs_table_enqueue", "jobs_table_job_changed", "settle_final"):
        assert f"'{OPTIONS}'" in await source(sql, function)
