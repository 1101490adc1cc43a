"""A process of version 0.1.0 that had the SQLite file open goes on beside the new schema. Its statements are here.

At its next open it is refused: tests/stores/test_sqlite_file.py.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from msgspec import Raw, structs

from jobmill.core.changes import Cancel, Hold
from jobmill.core.due import NEVER_MS
from jobmill.core.flows import After, IfFailed
from jobmill.core.values import Filter, Pause, QueueChange
from jobmill.testing.contract.support import new
from tests.upgrade.conftest import Frozen
from tests.upgrade.test_upgrade import claim

pytestmark = pytest.mark.stores("sqlite")

WRITE_QUEUE = """
INSERT OR REPLACE INTO jobmill_queues (
    queue, paused, rate_count, rate_per_ms, running_limit, feed, events_max_len, window_ends_ms, window_used, last_event
) VALUES (?1, ?2, NULL, NULL, NULL, 0, 10000, 0, 0, 0)
"""
RESCHEDULE = "UPDATE jobmill_jobs SET due_ms = ?2, updated_ms = ?2 WHERE id = ?1 AND state = 'waiting'"
SETTLE = """
UPDATE jobmill_jobs SET
    state = 'waiting', token = NULL, lease_until_ms = NULL, errors = errors + 1, error = 'OSError: no',
    tracebacks = '["from the old process"]'
WHERE id = ?1
"""

SUCCEED = """
UPDATE jobmill_jobs SET
    state = 'succeeded', token = NULL, lease_until_ms = NULL, finished_ms = ?2, updated_ms = ?2, result = '7',
    keep_age_ms = 60000, keep_last = NULL
WHERE id = ?1
"""
CANCEL = (
    "UPDATE jobmill_jobs SET state = 'cancelled', token = NULL, finished_ms = ?2, keep_age_ms = 60000 WHERE id = ?1"
)
DELETE = "DELETE FROM jobmill_jobs WHERE id = ?1"
REQUEUE = "UPDATE jobmill_jobs SET state = 'waiting', due_ms = ?2, updated_ms = ?2, finished_ms = NULL WHERE id = ?1"

Old = Callable[..., object]


@pytest.fixture
def old(frozen: Frozen) -> Iterator[Old]:
    """Runs a statement of the old process."""
    with closing(sqlite3.connect(frozen.url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        yield lambda statement, *parameters: connection.execute(statement, parameters)


async def test_it_writes_a_queue_and_the_end_of_a_pause_stays(frozen: Frozen, old: Old) -> None:
    pause = Pause(who="ada", note="wrong letters", until_ms=frozen.clock() + 60_000)
    await frozen.store.configure("default", QueueChange(paused=True, pause=pause))
    old(WRITE_QUEUE, "default", 1)
    assert (await frozen.store.settings(["default"]))["default"].pause == pause
    assert await claim(frozen, "due") == []
    frozen.clock.advance(60)
    assert [one.job.id for one in await claim(frozen, "due")] == [frozen.id("due")]


async def test_it_sees_that_a_pause_is_over_after_a_purge(frozen: Frozen) -> None:
    pause = Pause(until_ms=frozen.clock() + 60_000)
    await frozen.store.configure("default", QueueChange(paused=True, pause=pause))
    for seconds, paused in ((59, 1), (1, 0)):
        frozen.clock.advance(seconds)
        await frozen.store.purge()
        with closing(sqlite3.connect(frozen.url.removeprefix("sqlite:///"))) as connection:
            row = connection.execute("SELECT paused FROM jobmill_queues WHERE queue = 'default'").fetchone()
        assert row == (paused,)


async def test_it_resumes_a_queue_and_pauses_it_again(frozen: Frozen, old: Old) -> None:
    pause = Pause(who="ada", until_ms=frozen.clock() + 60_000)
    await frozen.store.configure("default", QueueChange(paused=True, pause=pause))
    old(WRITE_QUEUE, "default", 0)
    assert (await frozen.store.settings(["default"]))["default"].paused is False
    old(WRITE_QUEUE, "default", 1)
    frozen.clock.advance(3_600)
    settings = (await frozen.store.settings(["default"]))["default"]
    assert (settings.paused, settings.pause) == (True, None), "this pause has no end"
    assert await claim(frozen, "due") == []


async def test_it_reschedules_a_held_job_which_ends_the_hold(frozen: Frozen, old: Old) -> None:
    id = frozen.id("due")
    assert (await frozen.store.change([id], Hold(who="ada"))).ids == [id]
    (held,) = (await frozen.store.find(Filter(held=True))).jobs
    assert (held.id, held.due_ms) == (id, NEVER_MS)
    old(RESCHEDULE, id, frozen.clock())
    assert (await frozen.jobs.get(id)).held is None
    assert (await frozen.store.find(Filter(held=True))).jobs == []
    assert [one.held for one in await frozen.store.depths(["default"])] == [0]
    (claimed,) = await claim(frozen, "due")
    assert (claimed.job.id, claimed.job.held) == (id, None)


# ---------------------------------------------------------------------------------------------------- flows


async def then(frozen: Frozen, *, if_failed: IfFailed = "fail") -> str:
    """A job that waits for the frozen job that is due."""
    job = structs.replace(new("then"), after=(After(frozen.id("due"), if_failed),))
    return (await frozen.store.enqueue([job]))[0].id


async def test_it_ends_a_job_that_others_wait_for(frozen: Frozen, old: Old) -> None:
    """It sets no edge: the outbox of the new processes does."""
    id = await then(frozen)
    old(SUCCEED, frozen.id("due"), frozen.clock())
    assert (await frozen.jobs.get(id)).held is not None
    assert await frozen.store.flush_outbox() == 1
    job = await frozen.jobs.get(id)
    assert (job.held, job.deferred_error) == (None, None)
    (edge,) = await frozen.store.dependencies(id)
    assert (edge.state, edge.result_json) == ("succeeded", Raw(b"7"))
    assert await frozen.store.flush_outbox() == 0


@pytest.mark.parametrize("statement", [CANCEL, DELETE], ids=["cancel", "delete"])
@pytest.mark.parametrize("if_failed", ["fail", "run"])
async def test_it_cancels_or_deletes_a_job_that_others_wait_for(
    frozen: Frozen, old: Old, statement: str, if_failed: IfFailed
) -> None:
    id, due = await then(frozen, if_failed=if_failed), frozen.id("due")
    old(statement, due, *[frozen.clock()] * (statement is CANCEL))
    assert await frozen.store.flush_outbox() == 1
    job = await frozen.jobs.get(id)
    assert (job.held, job.deferred_error) == (None, f"dependency {due} was cancelled" if if_failed == "fail" else None)
    assert [(edge.id, edge.state) for edge in await frozen.store.dependencies(id)] == [(due, "cancelled")]


async def test_it_purges_a_job_that_others_have_waited_for(frozen: Frozen, old: Old) -> None:
    """Only the result is lost."""
    id = await then(frozen)
    old(SUCCEED, frozen.id("due"), frozen.clock())
    await frozen.store.flush_outbox()
    old(DELETE, frozen.id("due"))
    (edge,) = await frozen.store.dependencies(id)
    assert (edge.id, edge.state, edge.result_json) == (frozen.id("due"), "succeeded", None)
    assert (await frozen.jobs.get(id)).deferred_error is None


async def test_it_requeues_a_job_that_waited_for_others(frozen: Frozen, old: Old) -> None:
    """It does not look for edges, so the job may run too early; fsck holds it again."""
    id = await then(frozen)
    await frozen.store.change([id], Cancel())
    old(REQUEUE, id, frozen.clock())
    assert (await frozen.jobs.get(id)).held is None
    repaired = {one.check: one.repaired for one in await frozen.store.fsck(repair=True) if one.count}
    assert repaired == {"released_early": 1}
    assert (await frozen.jobs.get(id)).held is not None


async def test_tracebacks_that_it_writes_are_attempts(frozen: Frozen, old: Old) -> None:
    (claimed,) = await claim(frozen, "due")
    old(SETTLE, claimed.job.id)
    job = await frozen.jobs.get(claimed.job.id)
    assert [one.traceback for one in job.attempts] == ["from the old process"]
