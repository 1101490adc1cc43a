"""The server does what a verb asks for, and its answer is lost: to repeat the verb is safe.

A verb may send several statements. Each test loses the answer to the first, then to the second, and so on.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest

import jobmill
from jobmill.core.changes import Cancel, Change, Requeue
from jobmill.core.job import Keep, Progress, State
from jobmill.core.lifecycle import Policy, Succeeded
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import EVERYTHING, NewJob, QueueChange, Report
from jobmill.errors import StoreUnavailable
from jobmill.store import Store
from jobmill.testing.contract.support import claim, end, look, new, put_one, readable, settle, started, succeed, wish
from tests.faults.operations import FaultyServer
from tests.faults.parameters import on_each_server
from tests.helpers import until

pytestmark = pytest.mark.slow

#: No verb sends more statements for one job.
MAX_STATEMENTS = 30

T = TypeVar("T")


class Loss:
    """One answer that is lost: the one to statement `number` of a verb."""

    def __init__(self, server: FaultyServer, number: int) -> None:
        self._server = server
        self.number = number
        self.has_happened = False

    async def during(self, verb: Callable[[], Awaitable[T]]) -> T | None:
        """Call a verb; None where it failed. A driver may repeat a statement by itself, and have an answer then."""
        before = self._server.dropped_answers
        self._server.drop_answer(self.number)
        try:
            return await verb()
        except StoreUnavailable:
            return None
        finally:
            self._server.drop_answer(-1)
            self.has_happened = self._server.dropped_answers > before


async def losses(server: FaultyServer) -> AsyncIterator[Loss]:
    """Lose one answer after the other, until a verb has no more statements."""
    for number in range(MAX_STATEMENTS):
        loss = Loss(server, number)
        yield loss
        if not loss.has_happened:
            assert number, "no answer was lost"
            return
    raise AssertionError(f"a verb sends more than {MAX_STATEMENTS} statements")


@pytest.fixture
async def store(server: FaultyServer) -> AsyncIterator[Store]:
    """A store that is open, through the proxy."""
    async with jobmill.connect(server.url) as jobs:
        yield jobs.store


NEW: dict[str, Callable[[str], NewJob]] = {
    "plain": lambda name: new(name),
    "options": lambda name: new(name, priority=5, tenant="t"),
    "unique key": lambda name: new(name, key=name),
    "feed": lambda name: new(name, queue="told"),
}


@on_each_server
@pytest.mark.parametrize("kind", NEW)
async def test_a_repeated_enqueue_makes_one_job(server: FaultyServer, store: Store, kind: str) -> None:
    await store.configure("told", QueueChange(feed=True))
    statuses = set()
    async for loss in losses(server):
        job = NEW[kind](f"job-{loss.number}")
        await loss.during(functools.partial(store.enqueue, [job]))
        (receipt,) = await store.enqueue([job])
        assert receipt.id == job.id
        statuses.add(receipt.status)
        assert [one.id for one in (await store.find(EVERYTHING)).jobs if one.state == "waiting"] == [job.id]
        # Once it has run, it is not made again either.
        (claimed,) = await claim(store, queues=("mail", "told"))
        assert await settle(store, succeed(claimed)) == ["done"]
        assert (await store.enqueue([job]))[0].status == "exists"
    assert statuses <= {"created", "exists"}
    assert "exists" in statuses


@on_each_server
async def test_a_repeated_recurring_job_is_one(server: FaultyServer, store: Store) -> None:
    statuses = set()
    async for loss in losses(server):
        key = f"key-{loss.number}"
        job = new(f"job-{loss.number}", key=key, recurrence=Recurrence(key=key, every_ms=60_000))
        await loss.during(functools.partial(store.enqueue, [job]))
        (receipt,) = await store.enqueue([job])
        statuses.add(receipt.status)
        assert [one.id for one in (await store.find(EVERYTHING)).jobs if one.unique_key == key] == [receipt.id]
    assert statuses <= {"created", "exists", "updated"}
    assert statuses & {"exists", "updated"}


@on_each_server
async def test_what_was_settled_stays_settled_and_what_was_claimed_comes_again(
    server: FaultyServer, store: Store
) -> None:
    seen = set()
    async for loss in losses(server):
        first = await started(store)
        second = await put_one(store)
        answer = await loss.during(functools.partial(store.exchange, [succeed(first, "once")], wish(lease_ms=500)))
        # A worker repeats its settlement, under the same lease.
        repeated = await settle(store, succeed(first, "twice"))
        job = await look(store, first.job.id)
        assert (repeated, job.state, job.result) in (
            (["lost"], "succeeded", "once"),
            (["done"], "succeeded", "twice"),
        )
        seen.add(repeated[0])
        claimed = [] if answer is None else readable(answer.claimed)
        # A claim that nobody heard of ends with its lease, and counts as a crash.
        (again,) = claimed or await until(lambda: claim(store), 30)
        assert again.job.id == second
        assert (again.job.claims, again.job.crashes) in ((1, 0), (2, 1))
        await store.extend([again.lease], 15_000)
        await store.exchange([succeed(again)], None)
        await until(functools.partial(_has_ended, store, second), 30)
    assert "lost" in seen


async def _has_ended(store: Store, id: str) -> bool:
    """Settle a job, under a new claim if its lease has ended meanwhile."""
    if (await look(store, id)).state == "succeeded":
        return True
    for claimed in await claim(store):
        await settle(store, succeed(claimed))
    return False


@on_each_server
async def test_a_repeated_extension_holds(server: FaultyServer, store: Store) -> None:
    async for loss in losses(server):
        claimed = await started(store)
        await loss.during(functools.partial(store.extend, [claimed.lease], 60_000))
        assert await store.extend([claimed.lease], 60_000) == []
        await end(store, claimed, Succeeded(b"null"))


@on_each_server
async def test_a_repeated_report_is_kept(server: FaultyServer, store: Store) -> None:
    async for loss in losses(server):
        claimed = await started(store)
        report = Report(lease=claimed.lease, progress=Progress(50, "half"))
        await loss.during(functools.partial(store.report, [report]))
        assert await store.report([report]) == []
        assert (await look(store, claimed.job.id)).progress == Progress(50, "half")
        await end(store, claimed, Succeeded(b"null"))


CHANGES: list[tuple[Change, State]] = [(Cancel(), "cancelled"), (Requeue(), "waiting")]


@on_each_server
@pytest.mark.parametrize(("change", "state"), CHANGES, ids=["cancel", "requeue"])
async def test_a_repeated_change_happens_once(server: FaultyServer, store: Store, change: Change, state: State) -> None:
    refusals = 0
    async for loss in losses(server):
        id = await put_one(store)
        if state == "waiting":
            await store.change([id], Cancel())
        await loss.during(functools.partial(store.change, [id], change))
        again = await store.change([id], change)
        assert [*again.ids, *again.refused] == [id]
        refusals += len(again.refused)
        assert (await look(store, id)).state == state
    assert refusals


@on_each_server
async def test_a_repeated_purge_removes_no_other_job(server: FaultyServer, store: Store) -> None:
    kept = await started(store)
    await end(store, kept, Succeeded(b"null"))

    async def is_purged() -> bool:
        await store.purge()
        return [job.id for job in (await store.find(EVERYTHING)).jobs] == [kept.job.id]

    async for loss in losses(server):
        claimed = await started(store)
        await end(store, claimed, Succeeded(b"null"), Policy(keep_succeeded=Keep(age_ms=1)))
        await loss.during(store.purge)
        await until(is_purged)


@on_each_server
async def test_a_repeated_setting_is_set(server: FaultyServer, store: Store) -> None:
    async for loss in losses(server):
        change = QueueChange(running_limit=loss.number + 1)
        await loss.during(functools.partial(store.configure, "mail", change))
        assert (await store.configure("mail", change)).running_limit == loss.number + 1
        assert (await store.settings(["mail"]))["mail"].running_limit == loss.number + 1
