"""Databases that older versions made are upgraded in place: all is there, and all of it still works."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from msgspec import structs

from jobmill import Context, Worker
from jobmill.core.durations import to_datetime
from jobmill.core.lifecycle import DEFAULT_POLICY, Succeeded, settle
from jobmill.core.values import Claim, Claimed, Lease, Report
from jobmill.harmonyk import install_jobs_table
from tests.upgrade.conftest import Frozen
from tests.upgrade.reading import plain, read, table_rows
from tests.upgrade.scene import ORG, TABLE, row_id, usage

pytestmark = pytest.mark.stores("sqlite", "postgres", "redis", "mongo")

DAY_MS = 86_400_000


async def claim(frozen: Frozen, label: str, n: int = 1) -> list[Claimed]:
    """Claim jobs of the name and the queue that this one has."""
    job = frozen.job(label)
    wish = Claim(
        queues=(job["queue"],), names={job["name"]: n}, n=n, lease_ms=60_000, worker="new worker", token="fresh"
    )
    claimed = (await frozen.store.exchange([], wish)).claimed
    assert all(isinstance(one, Claimed) for one in claimed)
    return [one for one in claimed if isinstance(one, Claimed)]


def lease_of(frozen: Frozen, label: str) -> Lease:
    """As the worker that claimed it before the upgrade has it."""
    token, until_ms = frozen.expected["leases"][label]
    job = frozen.job(label)
    return Lease(job["id"], token, job["queue"], job["name"], until_ms)


# ---------------------------------------------------------------------------------------------------- reading


async def test_everything_reads_as_it_was_frozen(frozen: Frozen) -> None:
    # As JSON, in which a tuple is a list.
    held = json.loads(json.dumps(await read(frozen.store)))
    assert held["jobs"].keys() == frozen.expected["jobs"].keys()
    for id, job in frozen.expected["jobs"].items():
        assert held["jobs"][id] == job
    for part in ("logs", "settings", "events", "counts"):
        assert held[part] == frozen.expected[part], part


async def test_jobs_are_found_by_id(frozen: Frozen) -> None:
    ids = list(frozen.expected["ids"].values())
    found = await frozen.store.get(ids)
    for id, job in zip(ids, found, strict=True):
        assert job is not None
        assert json.loads(json.dumps(plain(job))) == frozen.expected["jobs"][id]


async def test_a_reader_of_the_feed_continues_where_it_was(frozen: Frozen) -> None:
    events = frozen.expected["events"]["mail"]
    rest = await frozen.store.events("mail", after=events[9]["id"])
    assert [event.to_dict() for event in rest] == events[10:]
    enqueued = await frozen.jobs.enqueue("send", {}, queue="mail")
    told = await frozen.store.events("mail", after=events[-1]["id"])
    assert [(event.type, event.job_id) for event in told] == [("enqueued", enqueued.id)]


@pytest.mark.stores("sqlite", "postgres")
async def test_usage_is_kept(frozen: Frozen, store_name: str) -> None:
    if store_name == "sqlite":
        with closing(sqlite3.connect(frozen.url.removeprefix("sqlite:///"))) as connection:
            rows = connection.execute("SELECT * FROM jobmill_usage ORDER BY job_id").fetchall()
    else:
        from tests.kit.postgres import connected

        async with connected(frozen.url) as sql:
            rows = [tuple(row) for row in await sql.fetch("SELECT * FROM jobmill.usage ORDER BY job_id")]
    assert rows == [structs.astuple(one) for one in usage()]


# ---------------------------------------------------------------------------------------------------- working


async def test_a_job_whose_lease_had_ended_is_claimed_as_a_crash(frozen: Frozen) -> None:
    (claimed,) = await claim(frozen, "ended_lease")
    job = claimed.job
    assert (job.id, job.crashes, job.claims, job.errors) == (frozen.id("ended_lease"), 1, 2, 0)
    assert await frozen.store.extend([lease_of(frozen, "ended_lease")], 60_000) == [job.id]


async def test_a_lease_from_before_the_upgrade_still_holds(frozen: Frozen) -> None:
    assert await claim(frozen, "running") == []
    lease = lease_of(frozen, "running")
    assert await frozen.store.extend([lease], 60_000) == []
    report = Report(lease=lease, lines=("after the upgrade",), attempt=2, level="warning")
    assert await frozen.store.report([report]) == []
    job = await frozen.jobs.get(lease.id)
    done = settle(Claimed(job, lease), Succeeded(b'"done"'), DEFAULT_POLICY, frozen.clock())
    assert (await frozen.store.exchange([done], None)).settled == ["done"]
    job = await frozen.jobs.get(lease.id)
    assert (job.state, job.result) == ("succeeded", "done")
    old, new = await frozen.store.logs(lease.id)
    assert (old.text, old.attempt, old.level) == ("halfway", None, "info")
    assert (new.text, new.attempt, new.level) == ("after the upgrade", 2, "warning")


async def test_a_worker_runs_what_waits_in_the_order_of_priorities(frozen: Frozen) -> None:
    ran: list[str] = []

    @frozen.jobs.handler
    async def greet(who: str) -> str:
        ran.append(who)
        return f"Hallo {who}"

    async with Worker(frozen.jobs, concurrency=1, queues=["default"]):
        assert await frozen.jobs.result(frozen.id("due_low"), timeout=30) == "Hallo low"
    assert ran == ["Jürgen", "middle", "low"]
    assert (await frozen.jobs.get(frozen.id("due"))).state == "succeeded"
    assert (await frozen.jobs.get(frozen.id("delayed"))).state == "waiting"


async def test_a_worker_runs_any_payload(frozen: Frozen) -> None:
    labels = ("list", "text", "number", "null")
    claimed = await claim(frozen, "list", n=10)
    assert {one.job.id: one.job.payload for one in claimed} == {
        frozen.id(label): frozen.job(label)["payload"] for label in labels
    }


async def test_a_retry_continues_to_count(frozen: Frozen) -> None:
    attempts: list[int] = []

    @frozen.jobs.handler
    async def retry(context: Context, n: int) -> None:
        attempts.append(context.attempt)
        raise OSError("third")

    await frozen.jobs.tick()
    job = await frozen.jobs.get(frozen.id("retrying_due"))
    assert attempts == [3]
    assert (job.state, job.errors, job.error, job.due_ms) == ("waiting", 3, "OSError: third", frozen.clock() + 1_000)
    assert [one.traceback for one in job.attempts[:2]] == frozen.job("retrying_due")["tracebacks"]
    assert (len(job.attempts), job.attempts[2].number, job.error_type) == (3, 3, "OSError")


# ---------------------------------------------------------------------------------------------------- unique keys


@pytest.mark.parametrize("label", ["running", "taken_key", "deduped", "deduped_by_hash", "harmonyk"])
async def test_a_live_unique_key_refuses_a_duplicate(frozen: Frozen, label: str) -> None:
    job = frozen.job(label)
    options: dict[str, Any] = {"queue": job["queue"], "tenant": job.get("tenant")}
    options |= {"unique_key": job["unique_key"]} if label in ("running", "taken_key") else {"dedupe": True}
    again = await frozen.jobs.enqueue(job["name"], job["payload"], **options)
    assert (again.status, again.id) == ("duplicate", job["id"])


async def test_the_unique_key_of_a_final_job_is_free(frozen: Frozen) -> None:
    assert (await frozen.jobs.enqueue("send", {}, queue="mail", unique_key="once")).created


async def test_an_id_that_is_taken_stays_taken(frozen: Frozen) -> None:
    again = await frozen.jobs.enqueue("invoice", {}, id=frozen.id("own_id"))
    assert again.status == "exists"


# ---------------------------------------------------------------------------------------------------- recurring


async def test_a_cron_in_a_time_zone_re_arms(frozen: Frozen) -> None:
    @frozen.jobs.handler
    async def digest(für: str) -> None: ...

    before = frozen.job("digest")
    frozen.clock.now_ms = before["due"]
    assert (await frozen.jobs.tick()).succeeded == 1
    job = await recurring(frozen, "digest")
    # Tuesday's run leads to Wednesday's, at seven o'clock in Berlin.
    assert (job.state, job.due_ms, job.runs) == ("waiting", before["due"] + DAY_MS, before["runs"] + 1)


async def test_an_interval_re_arms_and_counts_its_runs(frozen: Frozen) -> None:
    payloads: list[int] = []

    @frozen.jobs.handler
    async def pulse(n: int) -> None:
        payloads.append(n)
        if len(payloads) == 1:
            raise RuntimeError("again no pulse")

    before = frozen.job("pulse")
    assert (before["runs"], before["failed_runs"]) == (2, 1)
    (stats_before,) = await frozen.jobs.stats(before["queue"], "pulse")
    frozen.clock.now_ms = before["due"]
    assert (await frozen.jobs.tick()).failed == 1
    job = await recurring(frozen, "pulse")
    assert (job.state, job.due_ms, job.runs, job.failed_runs) == ("waiting", before["due"] + 300_000, 3, 2)
    frozen.clock.now_ms = job.due_ms
    assert (await frozen.jobs.tick()).succeeded == 1
    job = await recurring(frozen, "pulse")
    assert (job.due_ms, job.runs, job.failed_runs) == (before["due"] + 600_000, 4, 2)
    assert payloads == [2, 2]
    (stats,) = await frozen.jobs.stats(before["queue"], "pulse")
    assert (stats.succeeded, stats.failed) == (stats_before.succeeded + 1, stats_before.failed + 1)


async def test_a_recurring_job_that_ran_during_the_upgrade_re_arms(frozen: Frozen) -> None:
    lease = lease_of(frozen, "nightly")
    job = await frozen.jobs.get(frozen.id("nightly"))
    done = settle(Claimed(job, lease), Succeeded(b"null"), DEFAULT_POLICY, frozen.clock())
    assert (await frozen.store.exchange([done], None)).settled == ["done"]
    job = await recurring(frozen, "nightly")
    assert (job.state, job.runs) == ("waiting", 2)
    assert frozen.clock() < job.due_ms <= frozen.clock() + 30_000


async def test_a_recurring_job_can_be_changed(frozen: Frozen) -> None:
    again = await frozen.jobs.enqueue("pulse", {"n": 3}, every="1m", key="pulse", max_attempts=1)
    assert again.status == "updated"
    job = await recurring(frozen, "pulse")
    assert job.payload == {"n": 3}
    assert job.recurrence is not None
    assert (job.recurrence.every_ms, job.recurrence.revision) == (60_000, 2)


async def recurring(frozen: Frozen, label: str) -> Any:
    """The live job of this recurrence; in Redis each run has an id of its own."""
    job = frozen.job(label)
    found = await frozen.jobs.find(queue=job["queue"], name=job["name"], states=["waiting", "running"])
    (live,) = found.jobs
    return live


# ---------------------------------------------------------------------------------------------------- acting


async def test_a_failed_job_is_requeued_and_runs(frozen: Frozen) -> None:
    @frozen.jobs.handler
    async def send(to: str) -> str:
        return f"sent to {to!r}"

    changed = await frozen.jobs.requeue([frozen.id("failed"), frozen.id("failed_with_taken_key")])
    assert changed.ids == [frozen.id("failed")]
    assert list(changed.refused) == [frozen.id("failed_with_taken_key")]
    assert (await frozen.jobs.tick(queues=["mail"])).succeeded == 1
    job = await frozen.jobs.get(frozen.id("failed"))
    assert (job.state, job.result, job.errors) == ("succeeded", "sent to ''", 0)


async def test_a_paused_queue_stays_paused(frozen: Frozen) -> None:
    assert await claim(frozen, "held_waiting") == []
    await frozen.jobs.queue("held").resume()
    assert [one.job.id for one in await claim(frozen, "held_waiting")] == [frozen.id("held_waiting")]


async def test_a_rate_limit_that_is_used_up_stays_so_until_its_window_ends(frozen: Frozen) -> None:
    assert await claim(frozen, "slow_waiting") == []
    frozen.clock.advance(3_600)
    assert [one.job.id for one in await claim(frozen, "slow_waiting")] == [frozen.id("slow_waiting")]


async def test_a_running_limit_counts_what_ran_before_the_upgrade(frozen: Frozen) -> None:
    assert await claim(frozen, "narrow_waiting", n=2) == []
    await frozen.jobs.cancel(frozen.id("narrow_running"))
    assert [one.job.id for one in await claim(frozen, "narrow_waiting", n=2)] == [frozen.id("narrow_waiting")]


async def test_final_jobs_go_when_their_time_is_over(frozen: Frozen) -> None:
    assert (await frozen.store.purge()).removed == 0
    frozen.clock.now_ms = frozen.job("succeeded")["finished"] + 7 * DAY_MS + 1
    await frozen.store.purge()
    kept = await frozen.store.get(
        [frozen.id(label) for label in ("succeeded", "kept_1", "failed", "cancelled_running")]
    )
    assert [job is not None for job in kept] == [False, True, True, True]


# ---------------------------------------------------------------------------------------------------- jobs table


@pytest.mark.stores("postgres")
async def test_rows_of_a_jobs_table_are_jobs_still(frozen: Frozen) -> None:
    from tests.kit.postgres import connected

    @frozen.jobs.handler
    async def row_due_scan(order: int, für: str) -> str:
        return f"{order} for {für}"

    async with connected(frozen.url) as sql:
        assert await table_rows(sql) == frozen.expected["table"]
        async with Worker(frozen.jobs, queues=["default"]):
            assert await frozen.jobs.result(row_id("row_due"), timeout=30) == "12 for Zoë"
        assert await sql.fetchval(f"SELECT status FROM {TABLE} WHERE id = $1", row_id("row_due")) == "success"
        (claimed,) = await claim(frozen, "row_ended_lease")
        assert (claimed.job.crashes, claimed.job.tenant) == (1, ORG)
        due = to_datetime(frozen.clock())
        made = await sql.fetchval(f"INSERT INTO {TABLE} (type, next_run_at) VALUES ('new', $1) RETURNING id", due)
        assert (await frozen.jobs.get(str(made))).state == "waiting"
        await sql.execute(f"UPDATE {TABLE} SET status = 'queued' WHERE id = $1", row_id("row_failed"))
        assert (await frozen.jobs.get(row_id("row_failed"))).state == "waiting"


@pytest.mark.stores("postgres")
async def test_a_jobs_table_may_be_installed_again(frozen: Frozen) -> None:
    from tests.kit.postgres import connected

    installed = await install_jobs_table(frozen.store, TABLE)
    assert (installed.created, installed.added, installed.enqueued) == (False, (), 0)
    id = row_id("row_due")
    async with connected(frozen.url) as sql:
        await sql.execute(f"UPDATE {TABLE} SET type = 'other', attempts = 2 WHERE id = $1", id)
        job = await frozen.jobs.get(id)
        assert (job.name, job.errors, job.state) == ("other", 2, "waiting")
        await sql.execute(f"UPDATE {TABLE} SET status = 'failed' WHERE id = $1", id)
        assert (await frozen.jobs.get(id)).state == "cancelled"
        # No function of the first version is left beside another one of its name.
        names = "SELECT proname FROM pg_proc WHERE proname LIKE 'jobs\\_table\\_%' GROUP BY proname HAVING count(*) > 1"
        assert await sql.fetch(names) == []
