"""`fsck` and `diagnose` on PostgreSQL: damage is planted, found and repaired; wrong settings are found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from jobmill.core.changes import Hold, Release
from jobmill.core.due import NEVER_MS
from jobmill.core.findings import Finding
from jobmill.core.flows import MAX_RELEASED, Signal
from jobmill.core.queue_settings import LaneChange, Pause, RateLimit
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import after, at
from jobmill.stores.postgres import PostgresStore, diagnose
from jobmill.stores.postgres.fsck import CHECKS
from jobmill.testing.contract.flows import waits
from jobmill.testing.contract.lanes import laned, rule
from jobmill.testing.contract.steps import suspend
from jobmill.testing.contract.support import (
    QUEUE,
    claim_ids,
    claim_one,
    in_state,
    look,
    new,
    put,
    put_one,
    seize,
    settle,
    started,
    state_of,
    succeed,
)
from tests.helpers import until
from tests.kit.pgbouncer import PgBouncer
from tests.kit.places import port_of
from tests.kit.postgres import PostgresServer, connected

pytestmark = pytest.mark.stores("postgres")

Sql = asyncpg.Connection


@pytest.fixture
async def sql(migrated_url: str) -> AsyncIterator[Sql]:
    async with connected(migrated_url) as connection:
        yield connection


async def check(store: PostgresStore, name: str, *, repair: bool = False) -> Finding:
    """The finding of one check; all others are well."""
    findings = {one.check: one for one in await store.fsck(repair=repair)}
    assert findings.keys() == CHECKS.keys()
    assert [one.check for one in findings.values() if one.count and one.check != name] == []
    return findings[name]


async def repaired(store: PostgresStore, name: str, *ids: str) -> None:
    """The check finds these, leaves them alone without repair, repairs them, and then finds nothing."""
    for _ in range(2):
        found = await check(store, name)
        assert (found.level, found.count, found.evidence["ids"], found.repaired) == ("error", len(ids), sorted(ids), 0)
        assert found.can_repair
        assert found.remedy is not None
    found = await check(store, name, repair=True)
    assert (found.level, found.count, found.repaired, found.remedy) == ("ok", len(ids), len(ids), None)
    assert (await check(store, name)).count == 0


async def test_a_job_that_runs_without_a_token(direct: PostgresStore, sql: Sql) -> None:
    await put(direct, new("a"), new("b"), new("c"))
    await claim_ids(direct, 3)
    await sql.execute("UPDATE jobmill.jobs SET token = '', lease_until_ms = 99999999999999 WHERE id IN ('a', 'b')")
    await repaired(direct, "running_without_lease", "a", "b")
    assert await state_of(direct, "c") == "running"
    assert sorted(await claim_ids(direct)) == ["a", "b"]


async def test_a_job_that_was_seized_before_it_was_due_and_has_no_token(direct: PostgresStore, sql: Sql) -> None:
    id = await put_one(direct, new(due=after(60_000)))
    due_ms = (await look(direct, id)).due_ms
    await seize(direct, id)
    await sql.execute("UPDATE jobmill.jobs SET token = ''")
    await repaired(direct, "running_without_lease", id)
    job = await look(direct, id)
    assert (job.state, job.due_ms) == ("waiting", due_ms)
    assert await claim_ids(direct) == []


async def test_a_waiting_job_with_a_token(direct: PostgresStore, sql: Sql) -> None:
    await put(direct, new("a"), new("b"))
    await sql.execute("UPDATE jobmill.jobs SET token = 't' WHERE id = 'a'")
    await repaired(direct, "token_on_waiting", "a")
    assert sorted(await claim_ids(direct)) == ["a", "b"]


async def test_a_unique_key_that_two_jobs_have(direct: PostgresStore, sql: Sql) -> None:
    await put(direct, new("a", key="k"), new("b", key="other"), new("c", key="k", queue="elsewhere"))
    await sql.execute("DROP INDEX jobmill.jobs_unique_key; UPDATE jobmill.jobs SET unique_key = 'k' WHERE id = 'b'")
    for repair in (False, True):
        found = await check(direct, "unique_key_twice", repair=repair)
        assert (found.level, found.count, found.evidence) == ("error", 1, {"ids": ["b"]})
        assert (found.can_repair, found.repaired) == (False, 0)
        assert "jobs_unique_key" in str(found.remedy)


async def test_a_job_that_is_live_and_final(direct: PostgresStore, sql: Sql) -> None:
    await in_state(direct, "succeeded", new("a"))
    await in_state(direct, "succeeded", new("done"))
    await sql.execute(
        "INSERT INTO jobmill.jobs (id, queue, name, priority, due_ms, created_ms, updated_ms, payload)"
        " SELECT id, queue, name, priority, due_ms, created_ms, updated_ms, payload FROM jobmill.history WHERE id = 'a'"
    )
    await repaired(direct, "history_also_live", "a")
    assert await settle(direct, succeed(await claim_one(direct))) == ["done"]
    assert [await state_of(direct, id) for id in ("a", "done")] == ["succeeded", "succeeded"]


async def test_log_lines_without_a_job(direct: PostgresStore, sql: Sql) -> None:
    await in_state(direct, "failed", new("b"))
    await put_one(direct, new("a"))
    await sql.execute(
        "INSERT INTO jobmill.logs (id, line, at_ms, text)"
        " SELECT id, n, 1, 'x' FROM unnest(ARRAY['a', 'b', 'gone', 'lost']) AS id, generate_series(1, 3) AS n"
    )
    await repaired(direct, "logs_without_job", "gone", "lost")
    assert [len(await direct.logs(id)) for id in ("a", "b", "gone")] == [3, 3, 0]


async def test_a_recurrence_that_is_never_due(direct: PostgresStore, sql: Sql) -> None:
    rule = Recurrence(key="k", every_ms=60_000)
    await put(direct, new("a", key="k", recurrence=rule), new("b", key="l", recurrence=rule, due=after(60_000)))
    await direct.change(["b"], Hold())
    occurrence_ms = (await look(direct, "a")).occurrence_ms
    await sql.execute("UPDATE jobmill.jobs SET due_ms = $1 WHERE id = 'a'", NEVER_MS)
    await repaired(direct, "recurrence_never", "a")
    assert (await look(direct, "a")).due_ms == occurrence_ms
    assert await claim_ids(direct) == ["a"]


async def test_a_job_that_is_never_due_and_a_held_one_that_is(direct: PostgresStore, sql: Sql) -> None:
    await put(direct, new("never"), new("held"), new("both"), new("free"))
    await direct.change(["held", "both"], Hold(who="ada"))
    await sql.execute("DROP TRIGGER jobs_held ON jobmill.jobs")
    await sql.execute("UPDATE jobmill.jobs SET due_ms = $1 WHERE id = 'never'", NEVER_MS)
    await sql.execute("UPDATE jobmill.jobs SET due_ms = 1 WHERE id = 'held'")
    await repaired(direct, "held_inconsistent", "never", "held")
    held = (await look(direct, "held")).held
    assert held is not None
    assert held.who == "ada"
    assert await claim_ids(direct) == ["free"]
    assert (await direct.change(["never", "held", "both"], Release())).ids == ["never", "held", "both"]
    assert sorted(await claim_ids(direct)) == ["both", "held", "never"]


async def test_a_repair_is_bounded(direct: PostgresStore, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobmill.stores.postgres.fsck.MAX_REPAIRED", 3)
    await put(direct, *[new() for _ in range(5)])
    await sql.execute("UPDATE jobmill.jobs SET token = 't'")
    found = await check(direct, "token_on_waiting", repair=True)
    assert (found.level, found.count, found.repaired) == ("error", 5, 3)
    found = await check(direct, "token_on_waiting", repair=True)
    assert (found.level, found.count, found.repaired) == ("ok", 2, 2)


async def test_a_job_that_is_claimed_meanwhile_is_left_alone(direct: PostgresStore, sql: Sql) -> None:
    """The repair finds the damage, waits for a transaction that has the row, and sees that it is well."""
    await put_one(direct, new("a"))
    await sql.execute("UPDATE jobmill.jobs SET token = 't'")
    text = direct.context.statements("repair_token_on_waiting")
    async with connected(str(direct.context.url.url)) as other:
        await other.execute("BEGIN; UPDATE jobmill.jobs SET lease_until_ms = 99999999999999, token = 'own'")
        pid = await sql.fetchval("SELECT pg_backend_pid()")
        repair = asyncio.ensure_future(sql.fetchval(text, 10, 1))
        waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1"
        await until(lambda: other.fetchval(waits, pid))
        await other.execute("COMMIT")
        assert await repair == 0
    assert await sql.fetchval("SELECT token FROM jobmill.jobs") == "own"


# ---------------------------------------------------------------------------------------------------- diagnose


async def diagnosed(store: PostgresStore, name: str) -> Finding:
    (finding,) = [one for one in await store.diagnose() if one.check == name]
    assert (finding.level == "ok") == (finding.remedy is None)
    return finding


@pytest.mark.slow
async def test_a_server_with_the_default_settings_is_well() -> None:
    with PostgresServer(durable=True) as server:
        async with server.database() as url, connected(url) as sql:
            store = PostgresStore(url)
            await store.migrate()
            assert {one.level for one in await store.diagnose()} == {"ok"}
            await store.close()
            await sql.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET synchronous_commit = off")
            store = PostgresStore(url)
            found = await diagnosed(store, "durability")
            assert (found.level, found.evidence) == ("warning", {"off": ["synchronous_commit"]})
            await store.close()


async def test_a_server_that_does_not_write_to_disk(direct: PostgresStore) -> None:
    found = await diagnosed(direct, "durability")
    assert (found.level, found.evidence) == ("error", {"off": ["fsync", "full_page_writes"]})


async def test_a_table_without_autovacuum(direct: PostgresStore, sql: Sql) -> None:
    assert (await diagnosed(direct, "autovacuum")).level == "ok"
    await sql.execute("ALTER TABLE jobmill.history SET (autovacuum_enabled = false)")
    found = await diagnosed(direct, "autovacuum")
    assert (found.level, found.evidence) == ("error", {"off": ["history"]})


async def test_a_table_without_room_for_updates(direct: PostgresStore, sql: Sql) -> None:
    assert (await diagnosed(direct, "fillfactor")).level == "ok"
    await sql.execute("ALTER TABLE jobmill.jobs RESET (fillfactor)")
    found = await diagnosed(direct, "fillfactor")
    assert found.level == "warning"
    await sql.execute(str(found.remedy))
    assert (await diagnosed(direct, "fillfactor")).level == "ok"


async def test_a_transaction_that_is_open_for_long_and_the_rows_that_it_keeps(
    direct: PostgresStore, sql: Sql, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await diagnosed(direct, "xmin_horizon")).level == "ok"
    monkeypatch.setattr(diagnose, "MAX_TRANSACTION_SECONDS", 0)
    monkeypatch.setattr(diagnose, "MAX_DEAD_ROWS", 90)
    async with connected(migrated_url) as reader, reader.transaction(isolation="repeatable_read"):
        await put(direct, *[new() for _ in range(100)])
        await reader.fetchval("SELECT count(*) FROM jobmill.jobs")
        pid = await reader.fetchval("SELECT pg_backend_pid()")
        found = await diagnosed(direct, "xmin_horizon")
        assert (found.level, found.evidence["what"]) == ("warning", f"process {pid}")
        assert (await diagnosed(direct, "dead_rows")).level == "ok"
        await sql.execute("DELETE FROM jobmill.jobs")
        await sql.execute("SELECT pg_stat_force_next_flush()")
        found = await diagnosed(direct, "dead_rows")
        assert (found.level, found.evidence["dead"]) == ("warning", 100)


@pytest.mark.slow
async def test_a_pooler_before_the_server(direct: PostgresStore, migrated_url: str) -> None:
    assert (await diagnosed(direct, "pooler")).level == "ok"
    with PgBouncer(port_of(migrated_url), pool_size=2) as bouncer:
        store = PostgresStore(bouncer.url(migrated_url))
        assert (await diagnosed(store, "pooler")).level == "warning"
        await store.close()


# ---------------------------------------------------------------------------------------------------- flows


async def flow(store: PostgresStore) -> None:
    """b waits for a, which has ended; c for b, which is due; d has waited for a, and has ended."""
    await put(store, new("a"), waits("b", "a", priority=1), waits("c", "b"), waits("d", "a"))
    await settle(store, succeed(await claim_one(store)))
    last = await claim_one(store)
    assert last.job.id == "d"
    await settle(store, succeed(last))


ENDED = "WITH b AS (DELETE FROM jobmill.jobs WHERE id = 'b' RETURNING *) INSERT INTO jobmill.history"
ENDED += (
    " (id, queue, name, payload, state, due_ms, created_ms, priority, errors, crashes, claims, updated_ms, started_ms,"
)
ENDED += " finished_ms, worker, has_dependents, dependencies) SELECT id, queue, name, payload, 'succeeded', due_ms,"
ENDED += " created_ms, priority, 0, 0, 1, 1, 1, 1, '', has_dependents, dependencies FROM b"


@pytest.mark.parametrize(
    ("name", "damage", "ids"),
    [
        ("edge_pending", ENDED, ["c"]),
        ("released_late", "UPDATE jobmill.edges SET state = 'succeeded' WHERE job_id = 'c'", ["c"]),
        ("released_late", "DELETE FROM jobmill.edges WHERE job_id = 'c'", ["c"]),
        ("released_early", "UPDATE jobmill.jobs SET held = NULL, due_ms = 1 WHERE id = 'c'", ["c"]),
        ("edges_without_job", "INSERT INTO jobmill.edges VALUES ('x', 0, 'a', 'run', 'succeeded')", ["x"]),
        ("dependents_unmarked", "UPDATE jobmill.jobs SET has_dependents = NULL WHERE id = 'b'", ["b"]),
        ("dependents_unmarked", "UPDATE jobmill.history SET has_dependents = NULL WHERE id = 'a'", ["a"]),
        ("pinned_for_nobody", "UPDATE jobmill.history SET has_dependents = true WHERE id = 'd'", ["d"]),
        ("outbox_without_edges", "INSERT INTO jobmill.outbox VALUES ('a'), ('b'), ('x')", ["a", "b", "x"]),
        ("records_without_job", "INSERT INTO jobmill.steps VALUES ('x', 0, 'n', 'null')", ["x"]),
        ("records_without_job", "INSERT INTO jobmill.signals VALUES ('x', 'n', 'null')", ["x"]),
    ],
)
async def test_damage_of_a_flow(direct: PostgresStore, sql: Sql, name: str, damage: str, ids: list[str]) -> None:
    await flow(direct)
    assert [one.check for one in await direct.fsck() if one.count] == []
    await sql.execute(damage)
    await repaired(direct, name, *ids)
    if name in ("edge_pending", "released_late"):
        assert "c" in await claim_ids(direct)
    else:
        assert await claim_ids(direct) == ["b"]
        assert await sql.fetchval("SELECT held FROM jobmill.jobs WHERE id = 'c'") is not None


async def test_a_job_that_must_fail_is_released_late(direct: PostgresStore, sql: Sql) -> None:
    await put(direct, new("a"), waits("b", "a"))
    await sql.execute("UPDATE jobmill.edges SET state = 'failed', error = 'no luck'")
    await repaired(direct, "released_late", "b")
    assert (await look(direct, "b")).deferred_error == "dependency a failed: no luck"


async def test_a_lost_release_is_found_without_fsck(direct: PostgresStore, sql: Sql) -> None:
    """A worker calls flush_outbox now and then: it examines the pending edges in turn."""
    await flow(direct)
    await sql.execute(ENDED)
    assert await direct.flush_outbox() == 1
    assert await claim_ids(direct) == ["c"]
    assert await direct.flush_outbox() == 0


async def test_a_dependency_that_was_deleted_counts_as_cancelled(direct: PostgresStore, sql: Sql) -> None:
    await put(direct, new("a"), waits("b", "a"))
    await sql.execute("DELETE FROM jobmill.jobs WHERE id = 'a'")
    assert await direct.flush_outbox() == 1
    assert (await look(direct, "b")).deferred_error == "dependency a was cancelled"


async def test_a_job_that_waits_for_a_signal_without_end_is_no_damage(direct: PostgresStore) -> None:
    claimed = await started(direct, new("p"))
    await settle(direct, suspend(claimed, waits_for="go", due=at(NEVER_MS)))
    assert [one.check for one in await direct.fsck() if one.count] == []
    assert await claim_ids(direct) == []
    await direct.signal("p", Signal(name="go"))
    assert await claim_ids(direct) == ["p"]


async def test_a_flow_in_the_outbox_is_no_damage(direct: PostgresStore) -> None:
    await put(direct, new("a"), *[waits(f"then-{number:04}", "a") for number in range(MAX_RELEASED + 5)])
    await settle(direct, succeed(await claim_one(direct)))
    assert [one.check for one in await direct.fsck() if one.count] == []
    assert await direct.flush_outbox() == 5


# ---------------------------------------------------------------------------------------------------- lanes


@pytest.mark.parametrize(
    ("name", "damage", "ids"),
    [
        ("slot_inconsistent", "UPDATE jobmill.jobs SET slot = -1 WHERE id = 'a0'", ["a0"]),
        ("slot_inconsistent", "UPDATE jobmill.jobs SET slot = NULL WHERE id = 'a0'", ["a0"]),
        ("slot_inconsistent", "UPDATE jobmill.jobs SET slot = NULL, joined_ms = NULL WHERE id = 'a1'", ["a1"]),
        ("slot_inconsistent", "UPDATE jobmill.jobs SET slot = -1 WHERE id = 'held'", ["held"]),
        ("slot_inconsistent", "UPDATE jobmill.jobs SET joined_ms = 5 WHERE id IN ('a1', 'late')", ["a1", "late"]),
        ("slot_inconsistent", "UPDATE jobmill.jobs SET slot = 0 WHERE id = 'free'", ["free"]),
        ("slots_free", "DELETE FROM jobmill.jobs WHERE id = 'a0'", ["a1"]),
        ("slots_free", "UPDATE jobmill.queues SET lane_running = 2", ["a1"]),
        ("slots_free", "UPDATE jobmill.queues SET lane_running = NULL", ["a1"]),
    ],
)
async def test_damage_of_a_lane(direct: PostgresStore, sql: Sql, name: str, damage: str, ids: list[str]) -> None:
    await rule(direct, 1)
    await put(direct, laned("a0"), laned("a1"), laned("a2"), laned("held", "b"), laned("late", "b", due=after(60_000)))
    await put_one(direct, new("free"))
    await direct.change(["held"], Hold())
    assert [one.check for one in await direct.fsck() if one.count] == []
    await sql.execute(damage)
    await repaired(direct, name, *ids)
    expected = {"a0", "free"} if name == "slot_inconsistent" else {"a1", "free"}
    assert {*await claim_ids(direct)} >= expected


@pytest.mark.parametrize("change", [LaneChange(pause=Pause()), LaneChange(rate=RateLimit(1, 60_000))])
async def test_a_lane_that_gives_no_slots_is_no_damage(direct: PostgresStore, change: LaneChange) -> None:
    await rule(direct, 5)
    await direct.configure_lane(QUEUE, "a", change)
    await put(direct, laned("a0"), laned("a1"))
    await claim_ids(direct)
    assert [one.check for one in await direct.fsck() if one.count] == []
