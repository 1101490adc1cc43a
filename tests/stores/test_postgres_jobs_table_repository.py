"""The jobs table and Harmonyk's repository: every job that it enqueues has its row, from the same transaction on."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from jobmill import Client, StoreError
from jobmill.core.changes import Requeue
from jobmill.core.durations import to_datetime
from jobmill.harmonyk import Repository, install_jobs_table
from jobmill.stores.postgres import PostgresStore
from jobmill.testing import drain
from tests.kit.postgres import PostgresServers, connected
from tests.stores.jobs_tables import TABLE, Desk, desk, emptied

pytestmark = pytest.mark.stores("postgres")

ORG = str(uuid.uuid4())


@pytest.fixture
async def table(postgres_servers: PostgresServers, postgres_name: str) -> AsyncIterator[Desk]:
    async with desk(await emptied(postgres_servers[postgres_name])) as made:
        yield made


@pytest.fixture
def repository(table: Desk) -> Repository:
    return Repository(table.jobs)


async def rows(table: Desk) -> list[asyncpg.Record]:
    return list(await table.sql.fetch(f"SELECT * FROM {TABLE}"))


async def test_a_job_has_its_row_at_once(table: Desk, repository: Repository) -> None:
    run_at = to_datetime(table.clock()) + timedelta(hours=1)
    id = await repository.enqueue("scan", ORG, {"folder": 7}, run_at)
    (row,) = await rows(table)
    assert (str(row["id"]), row["type"], str(row["org_id"]), json.loads(row["payload"])) == (
        id,
        "scan",
        ORG,
        {"folder": 7},
    )
    assert (row["status"], row["attempts"], row["next_run_at"], row["last_error"]) == ("queued", 0, run_at, None)
    assert row["created_at"] == row["updated_at"] == to_datetime(table.clock())
    await table.check()


async def test_the_row_follows_the_job(table: Desk, repository: Repository) -> None:
    @table.jobs.handler()
    async def scan(folder: int) -> str:
        return f"{folder} is clean"

    id = await repository.enqueue("scan", payload={"folder": 7})
    await repository.mark_failure(id, "locked")
    row = await table.row(id)
    assert (row["status"], row["attempts"], row["last_error"]) == ("queued", 1, "locked")
    table.clock.advance(1)
    await drain(table.jobs)
    assert await table.status(id) == "success"
    await table.store.change([id], Requeue())
    assert await table.status(id) == "queued"
    await table.update(id, status="failed", last_error="not needed")
    assert (await table.jobs.get(id)).state == "cancelled"
    assert len(await rows(table)) == 1
    await table.check()


async def test_job_and_row_are_part_of_the_callers_transaction(table: Desk, repository: Repository) -> None:
    async with connected(table.url) as other:
        transaction = other.transaction()
        await transaction.start()
        await repository.enqueue("scan", within=other)
        assert await other.fetchval(f"SELECT count(*) FROM {TABLE}") == 1
        assert await rows(table) == []
        await transaction.rollback()
        assert await rows(table) == []
        async with other.transaction():
            id = await repository.enqueue("scan", within=other)
    assert await table.status(id) == "queued"
    await table.check()


async def test_a_duplicate_has_no_second_row(table: Desk, repository: Repository) -> None:
    ids = [await repository.enqueue("scan", ORG, {"folder": 7}, dedupe=True) for _ in range(2)]
    assert ids[0] == ids[1]
    assert [str(row["id"]) for row in await rows(table)] == ids[:1]


async def test_other_jobs_have_no_row_and_rows_still_become_jobs_once(table: Desk, repository: Repository) -> None:
    await table.jobs.enqueue("scan", {})
    inserted = await table.insert()
    async with table.sql.transaction():
        together = [await repository.enqueue("scan", within=table.sql), await table.insert()]
    assert {str(row["id"]) for row in await rows(table)} == {inserted, *together}
    assert sum(one.count for one in await table.jobs.count()) == 4
    await table.check()


async def test_an_org_id_that_the_table_cannot_hold_is_refused(table: Desk, repository: Repository) -> None:
    with pytest.raises(
        StoreError, match="org_id: expected a uuid in lower case, because the jobs table has one; got acme"
    ):
        await repository.enqueue("scan", "acme")
    assert await rows(table) == []
    assert await table.jobs.count() == []


async def test_jobs_that_were_there_before_the_table_get_rows(local_postgres_url: str) -> None:
    store = PostgresStore(local_postgres_url)
    await store.migrate()
    async with Client(store) as jobs:
        repository = Repository(jobs)
        early = [await repository.enqueue("scan", ORG), await repository.enqueue("scan")]
        await repository.enqueue("scan", "acme")
        await jobs.enqueue("scan", {})
        assert (await install_jobs_table(store, TABLE)).enqueued == 0
        async with connected(local_postgres_url) as sql:
            found = await sql.fetch(f"SELECT id, status FROM {TABLE} ORDER BY id")
        assert [(str(row["id"]), row["status"]) for row in found] == [(id, "queued") for id in sorted(early)]
