"""Jobs that end on PostgreSQL: plain successes are settled by a shorter statement, with the same rows as a result."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from msgspec import structs

from jobmill.core.job import KEEP_SUCCEEDED, Attempt, Keep
from jobmill.core.values import Claimed, Lease, Runs, Settlement
from jobmill.stores.postgres import PostgresStore
from jobmill.stores.postgres.settle import parameters
from jobmill.testing.contract.support import claim, fail, new, put, settle, started, succeed
from tests.kit.postgres import connected

pytestmark = pytest.mark.stores("postgres")

#: What fills the columns of a live job, by type.
FILLING = {"text": "'1'", "integer": "1", "bigint": "1", "boolean": "true"}
#: Columns of live jobs that a claim or a settlement decides, or that no final job has.
DECIDED = {"seq", "lease_until_ms", "token", "id", "updated_ms", "errors", "crashes", "error", "result", "held"}
DECIDED |= {"waits_for", "has_dependents", "slot", "joined_ms"}

LEASE = Lease("a", "token", "default", "noop", 0)
PLAIN = Settlement(
    lease=LEASE, outcome="succeeded", state="succeeded", attempt=1, errors=0, crashes=0, keep=KEEP_SUCCEEDED
)


@pytest.fixture
async def store(migrated_url: str) -> AsyncIterator[PostgresStore]:
    """A store in which no time passes."""
    store = PostgresStore(migrated_url, clock=lambda: 1_000)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def connection(migrated_url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    async with connected(migrated_url) as connection:
        yield connection


async def filled(store: PostgresStore, connection: asyncpg.Connection[asyncpg.Record]) -> tuple[Claimed, set[str]]:
    """A running job that has a value in every column, and the columns that must reach the history."""
    running = await started(store, structs.replace(new(), id="the job"))
    rows = await connection.fetch(
        "SELECT column_name::text, data_type::text FROM information_schema.columns"
        " WHERE table_schema = 'jobmill' AND table_name = 'jobs'"
    )
    columns = {row[0]: row[1] for row in rows}
    kept = {"due_ms", "created_ms", "priority", "claims", "started_ms", "worker", "queue", "name", "payload"}
    filling = ", ".join(f"{name} = {FILLING[columns[name]]}" for name in columns.keys() - DECIDED - kept)
    await connection.execute(f"UPDATE jobmill.jobs SET {filling} WHERE id = 'the job'")
    return running, columns.keys() - DECIDED


async def final_row(connection: asyncpg.Connection[asyncpg.Record]) -> dict[str, Any]:
    """The row of that job in the history, which is deleted."""
    row = await connection.fetchrow("DELETE FROM jobmill.history WHERE id = 'the job' RETURNING *")
    assert row is not None
    return dict(row)


@pytest.mark.parametrize("result", [None, "a result"])
async def test_both_statements_leave_the_same_row(
    store: PostgresStore, connection: asyncpg.Connection[asyncpg.Record], result: str | None
) -> None:
    alone, columns = await filled(store, connection)
    assert await settle(store, succeed(alone, result)) == ["done"]
    short = await final_row(connection)
    again, _ = await filled(store, connection)
    failing = await started(store)
    assert await settle(store, succeed(again, result), fail(failing)) == ["done", "done"]
    assert short == await final_row(connection)
    assert {name for name in columns if short[name] is None} == set(), "every column reaches the history"


async def test_the_guard_of_plain_successes_is_a_pair(store: PostgresStore) -> None:
    """A worker that lost a job and claimed it again must not settle it with the token of the lost lease."""
    await put(store, new())
    one = (await claim(store))[0]
    await put(store, new())
    other = (await claim(store))[0]
    swapped = [
        structs.replace(succeed(mine), lease=structs.replace(mine.lease, token=its.lease.token))
        for mine, its in ((one, other), (other, one))
    ]
    assert await settle(store, *swapped) == ["lost", "lost"]
    assert await settle(store, swapped[0], succeed(other)) == ["lost", "done"]


def test_plain_successes_need_two_arrays() -> None:
    sent = parameters([PLAIN, structs.replace(PLAIN, lease=structs.replace(LEASE, id="b"))], ["default"])
    assert sent[:10] == (["a", "b"], ["token", "token"], [], [], [], [], [], [], [KEEP_SUCCEEDED.age_ms], [None])
    assert parameters([structs.replace(PLAIN, result_json=b"1"), PLAIN], ["default"])[5] == ["1", "null"]


@pytest.mark.parametrize(
    "more",
    [
        {"state": "failed"},
        {"errors": 1},
        {"crashes": 1},
        {"error": "no luck"},
        {"attempts": (Attempt(),)},
        {"runs": Runs(runs=1, failed_runs=0, last_error=None, revision=1, started_ms=0)},
        {"keep": Keep(age_ms=0)},
        {"keep": Keep(last=0)},
        {"keep": Keep(last=5)},
        {"keep": None},
    ],
    ids=str,
)
def test_any_other_end_needs_all_columns(more: dict[str, Any]) -> None:
    other = structs.replace(PLAIN, **more)
    for both in ([PLAIN, other], [other, PLAIN]):
        assert len(parameters(both, ["default"])[2]) == 2, "one state for each"  # type: ignore[arg-type]


@pytest.mark.parametrize("keep", [Keep(age_ms=0), Keep(last=0)], ids=str)
def test_jobs_that_are_not_kept_need_all_columns(keep: Keep) -> None:
    assert len(parameters([structs.replace(PLAIN, keep=keep)] * 2, ["default"])[2]) == 2  # type: ignore[arg-type]


def test_no_settlement_needs_no_array() -> None:
    assert parameters([], []) == (*([],) * 14, None, [])
