"""Enqueue policies on PostgreSQL: in transactions of callers, beside open transactions, and many in one call."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import pytest
from msgspec import structs

from jobmill.core.changes import Cancel, Hold
from jobmill.core.flows import After
from jobmill.core.job import JobOptions, Keep
from jobmill.core.unique_policy import UniquePolicy
from jobmill.core.values import EVERYTHING, NewJob, QueueChange, Receipt, after, at
from jobmill.stores.postgres import PostgresStore
from jobmill.stores.postgres.connection import pool
from jobmill.testing.contract.support import (
    QUEUE,
    claim_ids,
    claim_one,
    enqueue_one,
    find_all,
    look,
    new,
    put,
    put_one,
    settle,
    state_of,
    succeed,
)
from jobmill.testing.contract.unique_policy import CANCEL, FOR_A_MINUTE, REPLACE, debounced, keyed
from tests.helpers import until
from tests.kit.postgres import PostgresServers, connected
from tests.stores.meddling import waiting_for_locks
from tests.stores.postgres_callers import CALLERS, Caller, of_asyncpg
from tests.stores_under_test import emptied_postgres

pytestmark = pytest.mark.stores("postgres")

HOUR = UniquePolicy(for_ms=3_600_000)


@pytest.fixture
async def url(postgres_servers: PostgresServers) -> str:
    return await emptied_postgres(postgres_servers)


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture(params=CALLERS)
async def caller(request: pytest.FixtureRequest, url: str) -> AsyncIterator[Caller]:
    async with CALLERS[request.param](url) as caller:
        yield caller


@pytest.fixture
async def connection(url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    async with connected(url) as connection:
        yield connection


# ---------------------------------------------------------------------------------------------------- within


async def test_a_rollback_undoes_what_policies_did(store: PostgresStore, caller: Caller) -> None:
    await put(store, new("waits", key="r", payload="old"), new("cancelled", key="c"), new("runs", key="d"))
    await store.change(["waits", "cancelled"], Hold())
    running = await claim_one(store)
    assert running.job.id == "runs"
    new_jobs = [
        keyed(REPLACE, "a", key="r", payload="new"),
        keyed(CANCEL, "b", key="c"),
        structs.replace(debounced(key="d"), id="e"),
        keyed(HOUR, "f", key="f"),
    ]
    expected = [Receipt("waits", "updated"), Receipt("b", "created"), Receipt("e", "created"), Receipt("f", "created")]
    await caller.begin()
    assert await store.enqueue_within(caller.within, new_jobs) == expected
    await caller.rollback()
    assert sorted(await find_all(store, EVERYTHING)) == ["cancelled", "runs", "waits"]
    assert (await look(store, "waits")).payload == "old"
    assert (await look(store, "runs")).unique_key == "d"
    assert await state_of(store, "cancelled") == "waiting"
    await caller.begin()
    assert await store.enqueue_within(caller.within, new_jobs) == expected
    await caller.commit()
    assert (await look(store, "waits")).payload == "new"
    assert (await look(store, "runs")).unique_key is None
    assert await state_of(store, "cancelled") == "cancelled"
    assert await settle(store, succeed(running)) == ["done"]
    await store.change(["f"], Cancel())
    assert (await enqueue_one(store, keyed(HOUR, key="f"))).created


async def test_the_feed_has_what_a_committed_call_did_in_order(store: PostgresStore, caller: Caller) -> None:
    await store.configure(QUEUE, QueueChange(feed=True))
    await caller.begin()
    new_jobs = [keyed(CANCEL, "a"), keyed(CANCEL, "b"), keyed(CANCEL, "c", key="other")]
    await store.enqueue_within(caller.within, new_jobs)
    await caller.rollback()
    assert await store.events(QUEUE) == []
    await caller.begin()
    await store.enqueue_within(caller.within, new_jobs)
    await caller.commit()
    told = [(event.type, event.job_id) for event in await store.events(QUEUE)]
    assert told == [("enqueued", "a"), ("cancelled", "a"), ("enqueued", "b"), ("enqueued", "c")]


async def test_a_caller_with_an_old_snapshot_replaces_nothing_that_it_has_not_seen(
    store: PostgresStore, url: str
) -> None:
    await put_one(store, keyed(REPLACE, "a", payload="old"))
    async with of_asyncpg(url) as caller:
        await caller.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM jobmill.jobs")
        running = await claim_one(store)
        with pytest.raises(asyncpg.SerializationError):
            await store.enqueue_within(caller.within, [keyed(REPLACE, payload="new")])
        await caller.rollback()
    assert await settle(store, succeed(running)) == ["done"]
    assert (await look(store, "a")).payload == "old"


# ---------------------------------------------------------------------------------------------------- open transactions


async def test_an_open_transaction_lets_other_keys_pass(
    store: PostgresStore, connection: asyncpg.Connection[asyncpg.Record], url: str
) -> None:
    await put(store, new("replaced", key="r"), new("cancelled", key="c"), *(new(key=f"{n}") for n in range(20)))
    policies = [keyed(REPLACE, key="r"), keyed(CANCEL, key="c"), keyed(HOUR, key="f")]
    async with connection.transaction():
        await store.enqueue_within(connection, policies)
        others = [
            keyed(policy, key=f"{n} {at}") for n in range(50) for at, policy in enumerate([REPLACE, CANCEL, HOUR])
        ]
        async with asyncio.timeout(pool.CALL_SECONDS / 2):
            assert {receipt.status for receipt in await store.enqueue(others)} == {"created"}
            live = [keyed(policy, key=f"{n}") for n in range(10) for policy in (REPLACE, CANCEL)]
            assert {receipt.status for receipt in await store.enqueue(live)} == {"updated", "created"}
        same = [asyncio.create_task(enqueue_one(store, structs.replace(one, id=new().id))) for one in policies]

        async def all_wait() -> bool:
            return await waiting_for_locks(url) == len(same)

        await until(all_wait)
    assert [(await one).status for one in same] == ["updated", "created", "duplicate"]


@pytest.mark.parametrize(
    ("policy", "ended", "status"),
    [
        # The owner is claimed meanwhile.
        (debounced().policy, "UPDATE jobmill.jobs SET lease_until_ms = 9e15, token = 't', claims = 1", "created"),
        (REPLACE, "UPDATE jobmill.jobs SET lease_until_ms = 9e15, token = 't', claims = 1", "duplicate"),
        (CANCEL, "UPDATE jobmill.jobs SET lease_until_ms = 9e15, token = 't', claims = 1", "created"),
        # It ends meanwhile.
        (REPLACE, "DELETE FROM jobmill.jobs", "created"),
        (CANCEL, "DELETE FROM jobmill.jobs", "created"),
        # Another job gets the key.
        (REPLACE, "UPDATE jobmill.jobs SET id = 'other'", "updated"),
        (CANCEL, "UPDATE jobmill.jobs SET id = 'other'", "created"),
    ],
)
async def test_what_was_decided_is_not_done_to_a_job_that_changes_meanwhile(
    store: PostgresStore,
    connection: asyncpg.Connection[asyncpg.Record],
    url: str,
    policy: UniquePolicy,
    ended: str,
    status: str,
) -> None:
    await put_one(store, new("owner", key="k", payload="old"))
    async with connection.transaction():
        await connection.execute(ended)
        racing = asyncio.create_task(enqueue_one(store, keyed(policy, "next", payload="new")))

        async def waits() -> bool:
            return await waiting_for_locks(url) == 1

        await until(waits)
    receipt = await racing
    assert receipt.status == status
    live = [row["id"] for row in await connection.fetch("SELECT id FROM jobmill.jobs WHERE unique_key = 'k'")]
    assert live == [receipt.id]
    payload = (await look(store, receipt.id)).payload
    assert payload == ("old" if status == "duplicate" else "new")
    if policy is CANCEL:
        assert "waiting" not in {await state_of(store, id) for id in ("owner", "other")}


async def test_a_plain_job_that_takes_a_free_key_first_is_replaced(
    store: PostgresStore, connection: asyncpg.Connection[asyncpg.Record], url: str
) -> None:
    async with connection.transaction():
        await store.enqueue_within(connection, [new("plain", key="k"), new("other", key="taken")])
        racing = asyncio.create_task(
            store.enqueue([keyed(REPLACE, payload="new"), keyed(HOUR, "hour", key="taken"), keyed(HOUR, key="free")])
        )

        async def waits() -> bool:
            return await waiting_for_locks(url) == 1

        await until(waits)
    replaced, duplicate, created = await racing
    assert replaced == Receipt("plain", "updated")
    assert duplicate == Receipt("other", "duplicate")
    assert created.created
    # A job that was not created has not taken its key.
    assert await connection.fetchval("SELECT array_agg(id) FROM jobmill.taken_keys") == [created.id]


async def test_a_claim_finds_a_replaced_job_that_it_has_passed_over(
    store: PostgresStore, connection: asyncpg.Connection[asyncpg.Record]
) -> None:
    await put(store, new("a", key="k"), new("b"), new("c"))
    async with connection.transaction():
        await store.enqueue_within(connection, [keyed(REPLACE)])
        assert await claim_ids(store, 1) == ["b"]
    assert await claim_ids(store, 1) == ["a"]


async def test_calls_with_the_same_keys_in_another_order_do_not_deadlock(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "TRIES", 1)
    stores = [PostgresStore(url) for _ in range(2)]
    for store in stores:
        await store.open()
    for policy, created in ((REPLACE, 1_000), (HOUR, 1_000), (CANCEL, 2_000)):
        keys = [f"{policy} {n}" for n in range(1_000)]
        calls = [
            store.enqueue([keyed(policy, key=key) for key in order])
            for store, order in zip(stores, (keys, keys[::-1]), strict=True)
        ]
        receipts = await asyncio.gather(*calls)
        assert sum(receipt.created for each in receipts for receipt in each) == created
    for store in stores:
        await store.close()


# ---------------------------------------------------------------------------------------------------- many in one call


class Counting:
    """Counts the statements of a connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.sent = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def fetch(self, *sent: Any) -> Any:
        self.sent += 1
        return self._connection.fetch(*sent)


async def enqueued(
    store: PostgresStore, new_jobs: Sequence[NewJob], monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, int]:
    """The receipts of a call, and how many statements it took."""
    counting: list[Counting] = []
    use = store.context.use

    async def counted(work: Any, *more: Any) -> Any:
        async def with_counting(connection: Any) -> Any:
            counting.append(Counting(connection))
            return await work(counting[-1])

        return await use(with_counting, *more)

    with monkeypatch.context() as patched:
        patched.setattr(store.context, "use", counted)
        receipts = await store.enqueue(new_jobs)
    return receipts, sum(one.sent for one in counting)


@pytest.mark.parametrize(
    "policy", [REPLACE, CANCEL, HOUR, debounced().policy], ids=["replace", "cancel", "for", "debounce"]
)
async def test_many_jobs_take_as_many_statements_as_one(
    store: PostgresStore, policy: UniquePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        receipts, sent = await enqueued(store, [keyed(policy, key=f"{n}") for n in range(100)], monkeypatch)
        assert len(receipts) == 100
        assert sent == 1 + any(receipt.status != "duplicate" for receipt in receipts)


async def test_a_key_that_comes_again_takes_no_further_statement(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_jobs = [debounced(f"{n}", key=f"{n % 5}") for n in range(50)]
    receipts, sent = await enqueued(store, new_jobs, monkeypatch)
    assert sent == 2
    assert [receipt.status for receipt in receipts] == ["created"] * 5 + ["updated"] * 45
    assert [receipt.id for receipt in receipts] == [receipt.id for receipt in receipts[:5]] * 10
    jobs = [await look(store, receipt.id) for receipt in receipts[:5]]
    assert [job.payload for job in jobs] == ["45", "46", "47", "48", "49"]
    # The call is repeated: the first job of each key is there, and has the payload.
    again, sent = await enqueued(store, new_jobs, monkeypatch)
    assert sent == 1 + 2
    assert [receipt.status for receipt in again] == ["exists"] * 5 + ["updated"] * 45
    kinds = [keyed(HOUR, "x"), keyed(HOUR, "y"), keyed(REPLACE, payload="z"), keyed(CANCEL, "c"), keyed(CANCEL, "d")]
    receipts = await store.enqueue(kinds)
    assert receipts[:3] == [Receipt("x", "created"), Receipt("x", "duplicate"), Receipt("x", "updated")]
    assert receipts[3:] == [Receipt("c", "created"), Receipt("d", "created")]
    assert [await state_of(store, id) for id in ("x", "c", "d")] == ["cancelled", "cancelled", "waiting"]


async def test_jobs_are_claimed_in_the_order_of_the_call(store: PostgresStore) -> None:
    """They are inserted in the order of their keys."""
    ids = [f"{n:02}" for n in range(40)]
    await store.enqueue([keyed(HOUR, id, key=f"key {id}") if int(id) % 10 else new(id) for id in ids])
    assert await claim_ids(store, 40) == ids


# ---------------------------------------------------------------------------------------------------- owners


async def test_a_job_that_waits_for_others_takes_over_the_due_time_for_its_release(store: PostgresStore) -> None:
    a, _ = await put(store, new("a"), structs.replace(new("b", key="k"), after=(After("a"),)))
    for due in (after(60_000), at(1)):
        assert await enqueue_one(store, keyed(REPLACE, payload="new", due=due)) == Receipt("b", "updated")
        held = (await look(store, "b")).held
        assert held is not None
        assert (held.by, held.due) == (("jobs",), due)
    first = await claim_one(store)
    assert first.job.id == a
    await settle(store, succeed(first))
    second = await claim_one(store)
    assert (second.job.id, second.job.payload) == ("b", "new")


async def test_a_held_job_keeps_who_holds_it_and_why(store: PostgresStore) -> None:
    await put_one(store, keyed(REPLACE, "a"))
    await store.change(["a"], Hold(who="ada", note='wait, "due":{"at_ms":1}'))
    await enqueue_one(store, debounced(seconds=7))
    held = (await look(store, "a")).held
    assert held is not None
    assert (held.who, held.note, held.due.after_ms) == ("ada", 'wait, "due":{"at_ms":1}', 7_000)


async def test_a_cancelled_owner_that_is_not_kept_leaves_the_store(store: PostgresStore) -> None:
    await store.configure(QUEUE, QueueChange(feed=True))
    await enqueue_one(store, keyed(CANCEL, "a", options=JobOptions(keep_failed=Keep(last=0))))
    await enqueue_one(store, keyed(CANCEL, "b"))
    assert await state_of(store, "a") is None
    told = [(event.type, event.job_id) for event in await store.events(QUEUE)]
    assert told == [("enqueued", "a"), ("cancelled", "a"), ("removed", "a"), ("enqueued", "b")]


async def test_listeners_hear_that_an_owner_was_cancelled(
    store: PostgresStore, connection: asyncpg.Connection[asyncpg.Record]
) -> None:
    heard: list[str] = []
    channel = store.context.statements.hints_channel
    await connection.add_listener(channel, lambda *notification: heard.append(str(notification[3])))
    id = await put_one(store, keyed(CANCEL))
    await enqueue_one(store, keyed(CANCEL))
    await until(lambda: heard)
    assert [json.loads(one) for one in heard] == [{"cancelled": [id]}]


async def test_a_purge_forgets_keys_whose_time_is_over(url: str) -> None:
    now_ms = 1_000_000
    store = PostgresStore(url, clock=lambda: now_ms)
    await store.open()
    await store.enqueue([keyed(FOR_A_MINUTE, key=f"{n}") for n in range(5)])
    await enqueue_one(store, keyed(HOUR, key="hour"))

    async def keys() -> int:
        async with connected(url) as connection:
            count: int = await connection.fetchval("SELECT count(*) FROM jobmill.taken_keys")
            return count

    now_ms += 59_999
    assert not (await store.purge()).more
    assert await keys() == 6
    now_ms += 1
    assert (await store.purge(limit=3)).more
    assert await keys() == 3
    assert not (await store.purge(limit=3)).more
    assert await keys() == 1
    await store.close()


@pytest.mark.parametrize("policy", [None, REPLACE], ids=["plain", "replace"])
async def test_old_statistics_do_not_make_many_keys_slow(
    store: PostgresStore, connection: asyncpg.Connection[asyncpg.Record], policy: UniquePolicy | None
) -> None:
    """If no job had a key when the table was analyzed, a plan may look cheap that reads all jobs for each key."""
    await put(store, new("one"))
    await connection.execute("ANALYZE jobmill.jobs")
    await connection.execute("ALTER TABLE jobmill.jobs SET (autovacuum_enabled = off)")
    keys = [f"k{n}" for n in range(2_000)]
    began = time.monotonic()
    await put(store, *[new(key=key) for key in keys])
    inserted = time.monotonic() - began
    again = [structs.replace(new(key=key), policy=policy) for key in keys]
    began_again = time.monotonic()
    receipts = await store.enqueue(again)
    assert not any(receipt.created for receipt in receipts)
    assert time.monotonic() - began_again < 20 * inserted + 1
