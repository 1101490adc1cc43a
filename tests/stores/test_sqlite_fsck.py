"""What `diagnose` and `fsck` find in a SQLite file. Every damage is planted in a real file."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jobmill.core.changes import Hold, Release
from jobmill.core.due import NEVER_MS, NOW
from jobmill.core.findings import IDS_SHOWN, Finding
from jobmill.core.flows import MAX_RELEASED
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import Filter, after
from jobmill.stores.sqlite import SqliteStore
from jobmill.stores.sqlite.connection import network
from jobmill.testing import ManualClock
from jobmill.testing.contract.flows import waits
from jobmill.testing.contract.support import (
    claim,
    claim_ids,
    claim_one,
    fail,
    in_state,
    look,
    new,
    next_due,
    put,
    put_one,
    settle,
    started,
    succeed,
)

pytestmark = pytest.mark.stores("sqlite")

RULE = Recurrence(key="k", every_ms=60_000)
RULE_JSON = {"key": "k", "every_ms": 60_000}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "jobs.db", clock=clock)
    await store.open()
    yield store
    await store.close()


def plant(store: SqliteStore, statement: str, *parameters: object) -> None:
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute(statement, parameters)


def contents(store: SqliteStore) -> list[str]:
    with closing(sqlite3.connect(store.path)) as connection:
        return list(connection.iterdump())


def damaged(findings: list[Finding]) -> dict[str, tuple[int, int]]:
    """By check: how many records are damaged, how many were repaired."""
    return {one.check: (one.count, one.repaired) for one in findings if one.count}


# ---------------------------------------------------------------------------------------------------- fsck


class Damage(NamedTuple):
    """What is planted in a file that has the jobs a and b, both waiting, and c, which runs."""

    check: str
    statement: str
    ids: list[str]


DAMAGES = [
    Damage("running_without_lease", "UPDATE jobmill_jobs SET lease_until_ms = NULL WHERE id = 'c'", ["c"]),
    Damage("token_on_waiting", "UPDATE jobmill_jobs SET token = 'x' WHERE id = 'a'", ["a"]),
    Damage("token_on_waiting", "UPDATE jobmill_jobs SET lease_until_ms = 5 WHERE state <> 'running'", ["a", "b"]),
    Damage("payload_without_job", "INSERT INTO jobmill_payloads VALUES (77, '{}')", ["77"]),
    Damage(
        "logs_without_job",
        "INSERT INTO jobmill_logs (seq, line, at_ms, text) VALUES (77, 1, 0, 'x'), (77, 2, 0, 'y')",
        ["77"],
    ),
    Damage(
        "recurrence_never",
        f"UPDATE jobmill_jobs SET due_ms = {NEVER_MS}, recurrence = '{json.dumps(RULE_JSON)}' WHERE id = 'a'",
        ["a"],
    ),
    Damage("held_inconsistent", f"UPDATE jobmill_jobs SET due_ms = {NEVER_MS} WHERE id = 'a'", ["a"]),
    Damage(
        "held_inconsistent", "UPDATE jobmill_jobs SET held = '{\"by\":[\"person\"]}' WHERE id IN ('b', 'c')", ["c", "b"]
    ),
    Damage("held_inconsistent", f"UPDATE jobmill_jobs SET held = '[{{', due_ms = {NEVER_MS} WHERE id = 'b'", ["b"]),
]


@pytest.mark.parametrize("planted", DAMAGES, ids=lambda one: one.check)
async def test_damage_is_found_and_repaired(store: SqliteStore, planted: Damage) -> None:
    await started(store, new("c"))
    await put(store, new("a"), new("b"))
    assert damaged(await store.fsck()) == {}
    plant(store, planted.statement)
    before = contents(store)
    count = len(planted.ids)
    findings = await store.fsck()
    assert damaged(findings) == {planted.check: (count, 0)}
    (found,) = [one for one in findings if one.count]
    assert (found.level, found.can_repair, found.evidence) == ("error", True, {"ids": planted.ids})
    assert f"found {count}: " in found.text
    assert found.remedy
    assert contents(store) == before, "nothing is changed without a repair"
    assert damaged(await store.fsck(repair=True)) == {planted.check: (count, count)}
    assert damaged(await store.fsck(repair=True)) == {}


async def test_a_unique_key_that_two_live_jobs_have(store: SqliteStore) -> None:
    await in_state(store, "succeeded", new("d", key="k"))
    await put(store, new("a", key="k"), new("b", key="l"), new("c", key="k", queue="other"))
    assert damaged(await store.fsck()) == {}
    plant(store, "DROP INDEX jobmill_unique")
    plant(store, "UPDATE jobmill_jobs SET unique_key = 'k'")
    before = contents(store)
    for repair in (False, True):
        findings = await store.fsck(repair=repair)
        assert damaged(findings) == {"unique_key_twice": (1, 0)}
        (found,) = [one for one in findings if one.count]
        assert (found.level, found.can_repair, found.evidence) == ("error", False, {"ids": ["b"]})
    assert contents(store) == before, "a person decides which job stays"


async def test_a_job_without_the_end_of_a_lease_is_taken_over(store: SqliteStore) -> None:
    claimed = await started(store)
    plant(store, "UPDATE jobmill_jobs SET lease_until_ms = NULL")
    assert (await next_due(store), await claim_ids(store)) == (None, [])
    await store.fsck(repair=True)
    assert await claim_ids(store) == [claimed.job.id]
    assert (await look(store, claimed.job.id)).crashes == 1


async def test_a_recurring_job_that_is_never_due_gets_its_occurrence(store: SqliteStore) -> None:
    id = await put_one(store, new(key="k", recurrence=RULE, due=after(5_000)))
    due_ms = (await look(store, id)).due_ms
    plant(store, f"UPDATE jobmill_jobs SET due_ms = {NEVER_MS}")
    await store.fsck(repair=True)
    assert (await look(store, id)).due_ms == due_ms
    plant(store, f"UPDATE jobmill_jobs SET due_ms = {NEVER_MS}, slot_ms = {NEVER_MS}")
    await store.fsck(repair=True)
    assert (await look(store, id)).due_ms == store.now()


async def test_a_job_that_is_never_due_is_held_until_a_person_releases_it(store: SqliteStore) -> None:
    id = await put_one(store)
    plant(store, f"UPDATE jobmill_jobs SET due_ms = {NEVER_MS}")
    await store.fsck(repair=True)
    held = (await look(store, id)).held
    assert held is not None
    assert (held.by, held.who, held.due) == (("person",), "fsck", NOW)
    assert await claim_ids(store) == []
    await store.change([id], Release())
    assert await claim_ids(store) == [id]


async def test_what_has_changed_since_it_was_found_is_left_alone(store: SqliteStore) -> None:
    """Another process repairs one of two jobs after they were found."""
    await put(store, new("a"), new("b"))
    plant(store, "UPDATE jobmill_jobs SET token = 'x'")
    reader = store._opened().reader
    find = reader.submit

    def submit(work: Any) -> Any:
        future = find(work)
        future.add_done_callback(
            lambda _: plant(store, "UPDATE jobmill_jobs SET token = NULL, updated_ms = 1 WHERE id = 'a'")
        )
        return future

    reader.submit = submit  # type: ignore[method-assign]
    assert damaged(await store.fsck(repair=True)) == {"token_on_waiting": (2, 1)}


async def test_many_damaged_records(store: SqliteStore) -> None:
    numbers = "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10500)"
    plant(store, f"{numbers} INSERT INTO jobmill_payloads SELECT n, '{{}}' FROM numbers")
    found = {one.check: one for one in await store.fsck(repair=True)}["payload_without_job"]
    assert (found.count, found.repaired, len(found.evidence["ids"])) == (10_000, 10_000, IDS_SHOWN)
    assert "10000 or more" in found.text
    assert damaged(await store.fsck(repair=True)) == {"payload_without_job": (500, 500)}


async def test_held_and_recurring_jobs_are_no_damage(store: SqliteStore) -> None:
    held, recurring = await put(store, new(), new(key="k", recurrence=RULE))
    assert sorted((await store.change([held, recurring], Hold())).ids) == sorted([held, recurring])
    await in_state(store, "cancelled")
    assert damaged(await store.fsck(repair=True)) == {}
    assert len((await store.find(Filter(held=True))).jobs) == 2


async def flow(store: SqliteStore) -> None:
    """The jobs a, b and c: c waits for both, and a has succeeded."""
    await put(store, new("a"), new("b"), waits("c", "a", "b"))
    claimed = {one.job.id: one for one in await claim(store)}
    assert await settle(store, succeed(claimed["a"], 1)) == ["done"]


ENDED = (
    "UPDATE jobmill_jobs SET state = 'succeeded', token = NULL, lease_until_ms = NULL, finished_ms = 5 WHERE id = 'b'"
)
NOT_HELD = "UPDATE jobmill_jobs SET held = NULL, due_ms = 0 WHERE id = 'c'"

FLOW_DAMAGES = [
    # b was settled by a process that knows no edges, or deleted by one.
    Damage("edge_pending", ENDED, ["c"]),
    Damage("edge_pending", "DELETE FROM jobmill_jobs WHERE id = 'b'", ["c"]),
    Damage("released_late", "DELETE FROM jobmill_edges WHERE state = 'pending'", ["c"]),
    Damage("released_late", "UPDATE jobmill_edges SET state = 'succeeded'", ["c"]),
    Damage("released_early", NOT_HELD, ["c"]),
    Damage("released_early", "UPDATE jobmill_jobs SET held = replace(held, 'jobs', 'person') WHERE id = 'c'", ["c"]),
    Damage("edges_without_job", "INSERT INTO jobmill_edges VALUES (77, 0, 1, NULL, 'run', 'succeeded', NULL)", ["77"]),
    Damage("outbox_without_edges", "INSERT INTO jobmill_outbox VALUES (77, 0)", ["77"]),
    Damage("outbox_without_edges", "INSERT INTO jobmill_outbox SELECT seq, 0 FROM jobmill_jobs WHERE id = 'b'", ["2"]),
    Damage("outbox_without_edges", "INSERT INTO jobmill_outbox SELECT seq, 0 FROM jobmill_jobs WHERE id = 'a'", ["1"]),
    Damage(
        "steps_without_job", "INSERT INTO jobmill_steps VALUES (77, 0, 'x', NULL, '1'), (77, 1, 'y', NULL, '1')", ["77"]
    ),
    Damage("signals_without_job", "INSERT INTO jobmill_signals VALUES (77, 'go', '1')", ["77"]),
]


@pytest.mark.parametrize("planted", FLOW_DAMAGES, ids=lambda one: one.check)
async def test_damage_of_a_flow_is_found_and_repaired(store: SqliteStore, planted: Damage) -> None:
    await flow(store)
    assert damaged(await store.fsck()) == {}
    plant(store, planted.statement)
    (found,) = [one for one in await store.fsck() if one.count]
    assert (found.check, found.evidence) == (planted.check, {"ids": planted.ids})
    assert damaged(await store.fsck(repair=True)) == {planted.check: (1, 1)}
    assert damaged(await store.fsck(repair=True)) == {}
    job = await look(store, "c")
    if planted.check in ("edge_pending", "released_late"):
        assert (job.state, job.held) == ("waiting", None)
        is_gone = planted.statement.startswith("DELETE FROM jobmill_jobs")
        assert job.deferred_error == ("dependency b was cancelled" if is_gone else None)
    else:
        assert job.held is not None
        assert "jobs" in job.held.by


async def test_a_job_that_may_run_before_all_others_have_ended_is_no_damage(store: SqliteStore) -> None:
    await put(store, new("a"), new("b"), waits("c", "a", "b", if_failed="now"))
    claimed = {one.job.id: one for one in await claim(store)}
    assert await settle(store, fail(claimed["a"])) == ["done"]
    assert (await look(store, "c")).held is None
    assert damaged(await store.fsck(repair=True)) == {}


async def test_a_flow_in_the_outbox_is_no_damage(store: SqliteStore) -> None:
    await put(store, new("first"), *[waits(f"then-{number}", "first") for number in range(MAX_RELEASED + 5)])
    claimed = await claim_one(store)
    assert await settle(store, succeed(claimed)) == ["done"]
    assert damaged(await store.fsck(repair=True)) == {}
    assert await store.flush_outbox() == 5


# ---------------------------------------------------------------------------------------------------- diagnose


async def found(store: SqliteStore, check: str) -> Finding:
    return {one.check: one for one in await store.diagnose()}[check]


async def test_a_new_file_is_healthy(store: SqliteStore) -> None:
    findings = {one.check: one.level for one in await store.diagnose()}
    names = ["reachable", "journal_mode", "synchronous", "network_filesystem", "wal_size", "free_disk"]
    assert list(findings) == names
    assert {findings[name] for name in names if name != "free_disk"} == {"ok"}


async def test_a_file_without_a_write_ahead_log(store: SqliteStore) -> None:
    await store.close()
    with closing(sqlite3.connect(store.path)) as connection:
        assert connection.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    await store.open()
    finding = await found(store, "journal_mode")
    assert (finding.level, finding.evidence) == ("error", {"journal_mode": "delete"})
    assert finding.remedy


@pytest.mark.parametrize(
    ("synchronous", "level"), [("OFF", "warning"), ("NORMAL", "ok"), ("FULL", "ok"), ("EXTRA", "ok")]
)
async def test_commits_that_a_power_failure_may_lose(tmp_path: Path, synchronous: str, level: str) -> None:
    store = SqliteStore(tmp_path / "jobs.db", synchronous=synchronous)
    await store.open()
    finding = await found(store, "synchronous")
    assert (finding.level, finding.evidence) == (level, {"synchronous": synchronous})
    assert (finding.remedy is None) == (level == "ok")
    await store.close()


async def test_a_file_on_a_network_file_system(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "network_file_system", lambda mountinfo, path: "nfs4")
    finding = await found(store, "network_filesystem")
    assert (finding.level, "nfs4" in finding.text) == ("error", True)
    assert finding.remedy


async def test_a_large_write_ahead_log(store: SqliteStore) -> None:
    await put_one(store)
    size = 300 * 1024 * 1024
    # Sparse, so that it takes no space. SQLite ignores what is behind the last commit.
    os.truncate(f"{store.path}-wal", size)
    finding = await found(store, "wal_size")
    assert (finding.level, finding.evidence) == ("warning", {"bytes": size})
    assert "300.0 MiB" in finding.text
    assert finding.remedy


@pytest.mark.parametrize(("free", "level"), [(50, "error"), (500, "warning"), (5_000, "ok")])
async def test_a_disk_that_is_nearly_full(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, free: int, level: str
) -> None:
    usage = shutil.disk_usage(store.path.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free * 1024 * 1024))
    finding = await found(store, "free_disk")
    assert (finding.level, finding.remedy is None) == (level, level == "ok")
