"""Jobs of a jobs table, and jobs that plain SQL enqueued, that other jobs wait for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from msgspec import Raw

from jobmill.core.changes import Requeue
from jobmill.testing.contract.flows import edges, waits
from jobmill.testing.contract.support import claim, claim_ids, claim_one, fail, put_one, settle, succeed
from tests.kit.postgres import PostgresServers
from tests.stores.jobs_tables import TABLE, Desk, desk, emptied

pytestmark = pytest.mark.stores("postgres")


@pytest.fixture
async def table(postgres_servers: PostgresServers, postgres_name: str) -> AsyncIterator[Desk]:
    async with desk(await emptied(postgres_servers[postgres_name])) as made:
        await made.store.open()
        yield made


async def row_and_dependent(table: Desk) -> str:
    """A row, and a job `then` that waits for its job; the id of the row."""
    id = await table.insert()
    await put_one(table.store, waits("then", id))
    assert await claim_ids(table.store, names=("send",)) == []
    return id


async def test_the_job_of_a_row_ends(table: Desk) -> None:
    id = await row_and_dependent(table)
    (claimed,) = await claim(table.store, queues=("default",), names=("scan",))
    assert await settle(table.store, succeed(claimed, "clean")) == ["done"]
    assert await claim_ids(table.store) == ["then"]
    (edge,) = await table.store.dependencies("then")
    assert (edge.id, edge.result_json) == (id, Raw(b'"clean"'))
    await table.check()


async def test_a_row_is_cancelled(table: Desk) -> None:
    id = await row_and_dependent(table)
    await table.update(id, status="failed")
    then = await claim_one(table.store)
    assert (then.job.id, then.job.deferred_error) == ("then", f"dependency {id} was cancelled")
    await table.check()


async def test_a_row_is_deleted(table: Desk) -> None:
    id = await row_and_dependent(table)
    await table.sql.execute(f"DELETE FROM {TABLE}")
    then = await claim_one(table.store)
    assert (then.job.id, then.job.deferred_error) == ("then", f"dependency {id} was cancelled")
    await table.check()


async def test_a_row_of_a_running_job_is_deleted(table: Desk) -> None:
    await row_and_dependent(table)
    (claimed,) = await claim(table.store, queues=("default",), names=("scan",))
    await table.sql.execute(f"DELETE FROM {TABLE}")
    assert await settle(table.store, succeed(claimed)) == ["lost"]
    assert (await claim_one(table.store)).job.deferred_error is not None


async def test_a_row_is_queued_again(table: Desk) -> None:
    id = await row_and_dependent(table)
    (claimed,) = await claim(table.store, queues=("default",), names=("scan",))
    await settle(table.store, fail(claimed))
    await table.update(id, status="queued")
    assert await edges(table.store, "then") == [(id, "pending")]
    (again,) = await claim(table.store, queues=("default",), names=("scan",))
    await settle(table.store, succeed(again))
    then = await claim_one(table.store)
    assert (then.job.id, then.job.deferred_error) == ("then", None)
    await table.check()


async def test_a_client_requeues_the_job_of_a_row(table: Desk) -> None:
    id = await row_and_dependent(table)
    (claimed,) = await claim(table.store, queues=("default",), names=("scan",))
    await settle(table.store, fail(claimed))
    assert (await table.store.change([id], Requeue())).ids == [id]
    assert await edges(table.store, "then") == [(id, "pending")]
    await table.check()


async def test_a_job_of_plain_sql(table: Desk) -> None:
    id = str(await table.sql.fetchval("SELECT jobmill.enqueue('sweep')"))
    await put_one(table.store, waits("then", id))
    (claimed,) = await claim(table.store, queues=("default",), names=("sweep",))
    assert await settle(table.store, succeed(claimed)) == ["done"]
    assert await claim_ids(table.store) == ["then"]
