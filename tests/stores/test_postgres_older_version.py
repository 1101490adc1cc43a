"""Processes of an older version that stay connected while the schema is migrated: what they send is understood."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from jobmill.core.changes import Cancel, Hold, Pin, Release
from jobmill.core.job import Attempt
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import QueueSettings, after
from jobmill.stores.postgres import PostgresStore
from jobmill.testing.contract.flows import edges, waits
from jobmill.testing.contract.lanes import laned, rule
from jobmill.testing.contract.steps import suspend
from jobmill.testing.contract.support import (
    QUEUE,
    claim,
    claim_ids,
    claim_one,
    look,
    new,
    put,
    put_one,
    release,
    retry,
    seize,
    settle,
    state_of,
    succeed,
)
from tests.kit.postgres import connected

pytestmark = pytest.mark.stores("postgres")

# As a worker sends it at schema 4: two numbers, 14 columns of final settlements, others, queues, and a claim.
EXCHANGE = "SELECT * FROM jobmill.exchange(" + ", ".join(f"${number}" for number in range(1, 37)) + ")"
NO_CLAIM: tuple[Any, ...] = ([], [], [], 0, 0, "", "", [], None, [], [], [], [], [], [], [], [], [])


@pytest.fixture
async def old(migrated_url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """The connection of an older process."""
    async with connected(migrated_url) as connection:
        yield connection


async def old_settle(
    old: asyncpg.Connection[asyncpg.Record], *final: Any, waiting: dict[str, Any] | None = None
) -> None:
    """Settle one job as a worker of schema 4 does; it must be settled."""
    columns = [[one] for one in final] if final else [[] for _ in range(10)]
    others = None if waiting is None else json.dumps([waiting])
    rows = await old.fetch(EXCHANGE, None, False, *columns, [], [], [], [], others, [QUEUE], *NO_CLAIM)
    assert rows[-1]["payload"] is None, "all are settled"


async def test_a_job_that_an_older_worker_retries_has_its_traceback(
    direct: PostgresStore, old: asyncpg.Connection[asyncpg.Record]
) -> None:
    await put_one(direct, new("a"))
    lease = (await claim_one(direct)).lease
    waiting = {"id": "a", "token": lease.token, "errors": 1, "crashes": 0, "error": "E: x", "result": "null"}
    waiting |= {"tracebacks": '["Traceback \\u0000"]', "due_ms": None, "delay_ms": 0, "slot_ms": None, "runs": None}
    waiting |= {"failed_runs": None, "last_error": None, "revision": None, "run_state": None}
    await old_settle(old, waiting=waiting)
    again = await claim_one(direct)
    assert (again.job.error, again.job.attempts) == ("E: x", (Attempt(traceback="Traceback \x00"),))
    await settle(direct, retry(again, 0, "boom"))
    assert [one.traceback for one in (await look(direct, "a")).attempts] == ["Traceback \x00", "Traceback of boom"]


async def test_a_job_that_an_older_worker_ends_has_its_traceback(
    direct: PostgresStore, old: asyncpg.Connection[asyncpg.Record]
) -> None:
    await put_one(direct, new("a"))
    await settle(direct, retry(await claim_one(direct), 0, "boom"))
    lease = (await claim_one(direct)).lease
    await old_settle(old, "a", lease.token, "failed", 2, 0, "null", "E: x", '["Traceback"]', 60_000, None)
    job = await look(direct, "a")
    assert (job.state, job.error, job.attempts) == ("failed", "E: x", (Attempt(traceback="Traceback"),))


async def test_an_older_client_cannot_make_a_held_job_due(
    direct: PostgresStore, old: asyncpg.Connection[asyncpg.Record]
) -> None:
    held, free = await put(direct, new("held"), new("free"))
    await direct.change([held], Hold())
    with pytest.raises(asyncpg.CheckViolationError, match="jobs_held"):
        await old.execute("UPDATE jobmill.jobs SET due_ms = 1, updated_ms = 1 WHERE id = 'held'")
    await old.execute("UPDATE jobmill.jobs SET priority = 3, updated_ms = 1 WHERE id = 'held'")
    assert await claim_ids(direct) == [free]
    await direct.change([held], Release())
    assert await claim_ids(direct) == [held]


async def test_a_held_job_that_an_older_client_seizes_can_be_settled(
    direct: PostgresStore, old: asyncpg.Connection[asyncpg.Record]
) -> None:
    held, other = await put(direct, new("held"), new("other"))
    await direct.change([held], Hold())
    claimed = await claim_one(direct)
    assert claimed.job.id == other
    await old.execute(
        "UPDATE jobmill.jobs SET lease_until_ms = jobmill.now_ms() + 60000, token = 't', worker = 'w', started_ms = 1,"
        " claims = 1 WHERE id = 'held'"
    )
    waiting = {"id": "held", "token": "t", "errors": 1, "crashes": 0, "result": "null", "delay_ms": 0}
    await old_settle(old, waiting=waiting)
    assert await claim_ids(direct) == [held]


async def test_an_older_client_states_a_pinned_recurrence(
    direct: PostgresStore, old: asyncpg.Connection[asyncpg.Record]
) -> None:
    rule = Recurrence(key="k", every_ms=60_000)
    id = await put_one(direct, new(key="k", recurrence=rule))
    await direct.change([id], Pin(Recurrence(key="k", every_ms=1_000)))
    job = await look(direct, id)
    parameters = ", ".join(f"${number}" for number in range(1, 17))
    row = await old.fetchrow(
        f"SELECT * FROM jobmill.enqueue_recurring({parameters})",
        *(None, False, False, None, "fresh", job.queue, job.name, 0, None, 0, "{}", "k", None, None),
        *('{"key":"k","every_ms":5}', True),
    )
    assert row is not None
    assert tuple(row) == (id, "pinned")
    recurrence = (await look(direct, id)).recurrence
    assert recurrence is not None
    assert (recurrence.every_ms, recurrence.stated) == (1_000, Recurrence(key="k", every_ms=5))


async def test_an_older_client_moves_or_cancels_a_job_that_was_seized_before_it_was_due(
    direct: PostgresStore, old: asyncpg.Connection[asyncpg.Record]
) -> None:
    moved, cancelled = await put(direct, new("moved", due=after(60_000)), new("cancelled", due=after(60_000)))
    due_ms = (await look(direct, cancelled)).due_ms
    seized = await seize(direct, moved)
    await seize(direct, cancelled)
    # As it writes the recurrence of a person, and as it cancels.
    await old.execute("UPDATE jobmill.jobs SET due_ms = $1 WHERE id = 'moved'", due_ms + 5)
    await old.fetchval("SELECT jobmill.cancel_jobs(jobmill.now_ms(), ARRAY['cancelled'], '{}', '{}', '{}', '{}')")
    assert await settle(direct, release(seized)) == ["done"]
    jobs = [await look(direct, id) for id in (moved, cancelled)]
    assert [(job.state, job.due_ms) for job in jobs] == [("waiting", due_ms + 5), ("cancelled", due_ms)]


async def test_an_older_client_pauses_and_resumes(
    direct: PostgresStore, old: asyncpg.Connection[asyncpg.Record]
) -> None:
    await old.execute("INSERT INTO jobmill.queues (queue, paused) VALUES ($1, true)", QUEUE)
    id = await put_one(direct)
    assert await claim(direct) == []
    assert (await direct.settings([QUEUE]))[QUEUE] == QueueSettings(paused=True)
    await old.execute("UPDATE jobmill.queues SET paused = false WHERE queue = $1", QUEUE)
    assert await claim_ids(direct) == [id]
    assert await state_of(direct, id) == "running"


# ---------------------------------------------------------------------------------------------------- flows


async def test_an_older_worker_releases_what_waits(
    direct: PostgresStore, old: asyncpg.Connection[asyncpg.Record]
) -> None:
    """The functions in the schema decide, for all workers."""
    await put(direct, new("a"), new("b"), waits("then", "a", "b", if_failed="run"))
    for one in await claim(direct):
        await old_settle(old, one.job.id, one.lease.token, "failed", 1, 0, "null", "E: x", None, 0, None)
    assert await state_of(direct, "a") == "failed", "it is kept for its dependent"
    assert await edges(direct, "then") == [("a", "failed"), ("b", "failed")]
    assert await claim_ids(direct) == ["then"]


async def test_an_older_worker_retries_what_waits(
    direct: PostgresStore, old: asyncpg.Connection[asyncpg.Record]
) -> None:
    await put(direct, new("a"), waits("then", "a"))
    await settle(direct, suspend(await seize(direct, "then"), waits_for="go", due=after(60_000)))
    assert (await look(direct, "then")).held is not None
    seized = await seize(direct, "then")
    waiting = {"id": "then", "token": seized.lease.token, "errors": 1, "crashes": 0, "result": "null", "delay_ms": 0}
    await old_settle(old, waiting=waiting)
    job = await look(direct, "then")
    assert (job.held is not None, job.waits_for) == (True, None)
    assert await claim_ids(direct) == ["a"]


async def test_an_older_client_enqueues(direct: PostgresStore, old: asyncpg.Connection[asyncpg.Record]) -> None:
    parameters = ", ".join(f"${number}" for number in range(1, 15))
    jobs: tuple[list[Any], ...] = (
        ["x", "y"],
        [QUEUE] * 2,
        ["send"] * 2,
        [0] * 2,
        [],
        [0] * 2,
        ["{}"] * 2,
        ["k", "k"],
        [],
        [],
    )
    rows = await old.fetch(f"SELECT * FROM jobmill.enqueue_jobs({parameters})", None, False, False, None, *jobs)
    assert [tuple(row) for row in rows] == [(2, "x", "duplicate")]
    await put_one(direct, waits("then", "x"))
    await settle(direct, succeed(await claim_one(direct)))
    assert await claim_ids(direct) == ["then"]


async def test_a_job_that_an_older_client_cancels_is_noticed(
    direct: PostgresStore, old: asyncpg.Connection[asyncpg.Record]
) -> None:
    """It does not know edges: workers find the pending edge later."""
    await put(direct, new("a"), waits("then", "a"))
    await old.execute(
        "WITH gone AS (DELETE FROM jobmill.jobs WHERE id = 'a' RETURNING *) INSERT INTO jobmill.history"
        " (id, queue, name, payload, state, due_ms, created_ms, priority, errors, crashes, claims, updated_ms,"
        " started_ms, finished_ms, worker) SELECT id, queue, name, payload, 'cancelled', due_ms, created_ms, priority,"
        " errors, crashes, claims, 1, started_ms, 1, worker FROM gone"
    )
    assert await claim_ids(direct) == []
    assert await direct.flush_outbox() == 1
    assert (await claim_one(direct)).job.deferred_error == "dependency a was cancelled"


async def test_an_older_client_cannot_requeue_a_job_that_waits(
    direct: PostgresStore, old: asyncpg.Connection[asyncpg.Record]
) -> None:
    await put(direct, new("a"), waits("then", "a"))
    await direct.change(["then"], Cancel())
    requeue = (
        "WITH back AS (INSERT INTO jobmill.jobs (id, queue, name, payload, due_ms, created_ms, updated_ms, priority)"
        " SELECT id, queue, name, payload, 1, 1, 1, priority FROM jobmill.history WHERE id = $1 RETURNING id)"
        " DELETE FROM jobmill.history USING back WHERE history.id = back.id"
    )
    with pytest.raises(asyncpg.CheckViolationError, match="history_requeued"):
        await old.execute(requeue, "then")
    await direct.change(["a"], Cancel())
    await old.execute(requeue, "a")
    assert await claim_ids(direct) == ["a"]


async def test_a_job_with_a_lane_that_an_older_worker_settles_gives_its_slot_on(
    direct: PostgresStore, old: asyncpg.Connection[asyncpg.Record]
) -> None:
    """The functions of the schema do it. Where the older worker does not look again, flush_outbox does."""
    await rule(direct, 1)
    await put(direct, *[laned(id) for id in "abc"])
    lease = (await claim_one(direct)).lease
    await old_settle(old, "a", lease.token, "succeeded", 0, 0, "null", None, None, None, None)
    lease = (await claim_one(direct)).lease
    assert lease.id == "b"
    waiting = {"id": "b", "token": lease.token, "errors": 1, "crashes": 0, "error": "E: x", "result": "null"}
    await old_settle(old, waiting=waiting | {"delay_ms": 60_000})
    assert (await look(direct, "b")).held is not None
    assert await claim_ids(direct) == ["c"]


async def test_a_job_with_a_lane_that_an_older_client_requeues_is_refused(
    direct: PostgresStore, old: asyncpg.Connection[asyncpg.Record]
) -> None:
    await rule(direct, 1)
    await put(direct, laned("a"), laned("b"))
    await settle(direct, succeed(await claim_one(direct)))
    columns = "id, queue, name, priority, due_ms, created_ms, updated_ms, payload"
    await old.execute("BEGIN")
    await old.execute(f"INSERT INTO jobmill.jobs ({columns}) SELECT {columns} FROM jobmill.history WHERE id = 'a'")
    with pytest.raises(asyncpg.CheckViolationError, match="has a lane"):
        await old.execute("DELETE FROM jobmill.history WHERE id = 'a'")
    await old.execute("ROLLBACK")
    assert await state_of(direct, "a") == "succeeded"
