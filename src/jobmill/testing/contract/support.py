"""Helpers for the tests of the contract: create a job, claim it, settle it as a worker would."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from jobmill.core.changes import Cancel, Changed, Seize
from jobmill.core.job import NO_OPTIONS, Job, JobOptions, State
from jobmill.core.lifecycle import DEFAULT_POLICY, Errored, Outcome, Policy, Released, Snoozed, Succeeded
from jobmill.core.lifecycle import settle as decide
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import NOW, Claim, Claimed, Due, Filter, Lease, NewJob, Page, Receipt, Settled, Settlement
from jobmill.store import Store
from jobmill.testing.contract.harness import Harness

QUEUE = "mail"
NAME = "send"
LEASE_MS = 15_000
ROOM = 100_000

_numbers = itertools.count(1)


# ---------------------------------------------------------------------------------------------------- enqueue


def new(
    id: str | None = None,
    *,
    name: str = NAME,
    queue: str = QUEUE,
    payload: object = None,
    due: Due = NOW,
    priority: int = 0,
    key: str | None = None,
    tenant: str | None = None,
    options: JobOptions = NO_OPTIONS,
    recurrence: Recurrence | None = None,
) -> NewJob:
    """A job to enqueue, with a new id unless one is given."""
    return NewJob(
        id=f"job-{next(_numbers)}" if id is None else id,
        name=name,
        queue=queue,
        payload_json=msgspec.json.encode(payload),
        due=due,
        priority=priority,
        unique_key=key,
        tenant=tenant,
        options=options,
        recurrence=recurrence,
    )


async def put(store: Store, *jobs: NewJob) -> list[str]:
    """Enqueue jobs in one call; all must be created. Returns their ids."""
    receipts = await store.enqueue(jobs)
    assert [receipt.status for receipt in receipts] == ["created"] * len(jobs)
    return [receipt.id for receipt in receipts]


async def put_one(store: Store, job: NewJob | None = None) -> str:
    """Enqueue one job, which must be created. Returns its id."""
    return (await put(store, new() if job is None else job))[0]


async def enqueue_one(store: Store, job: NewJob) -> Receipt:
    """Enqueue one job. Returns its receipt."""
    (receipt,) = await store.enqueue([job])
    return receipt


# ---------------------------------------------------------------------------------------------------- claim


def wish(
    n: int = 100,
    *,
    queues: Sequence[str] = (QUEUE,),
    names: Mapping[str, int] | Sequence[str] = (NAME,),
    lease_ms: int = LEASE_MS,
    worker: str = "worker-1",
    token: str | None = None,
) -> Claim:
    """A claim with a new token. Names without a given room have practically unlimited room."""
    rooms = dict(names) if isinstance(names, Mapping) else dict.fromkeys(names, ROOM)
    return Claim(
        queues=tuple(queues),
        names=rooms,
        n=n,
        lease_ms=lease_ms,
        worker=worker,
        token=secrets.token_hex(16) if token is None else token,
    )


async def claim(store: Store, n: int = 100, **about: Any) -> list[Claimed]:
    """Claim up to n jobs, all of which must be readable."""
    return readable((await store.exchange([], wish(n, **about))).claimed)


async def claim_ids(store: Store, n: int = 100, **about: Any) -> list[str]:
    """Claim up to n jobs. Returns their ids, in the order of the answer."""
    return [claimed.job.id for claimed in await claim(store, n, **about)]


async def claim_in_turn(store: Store, **about: Any) -> list[str]:
    """Claim one by one until none is left. Returns the ids in that order."""
    ids: list[str] = []
    for _ in turns():
        one = await claim_ids(store, 1, **about)
        if not one:
            break
        ids += one
    return ids


async def claim_one(store: Store, **about: Any) -> Claimed:
    """Claim one job, which must exist."""
    claimed = await claim(store, 1, **about)
    assert len(claimed) == 1, "expected one claimable job"
    return claimed[0]


async def started(store: Store, job: NewJob | None = None, **about: Any) -> Claimed:
    """Enqueue a job and claim it."""
    one = new() if job is None else job
    id = await put_one(store, one)
    claimed = await claim_one(store, **{"queues": (one.queue,), "names": (one.name,)} | about)
    assert claimed.job.id == id, "the test needs a queue in which nothing else is claimable"
    return claimed


async def seize(store: Store, id: str, lease_ms: int = LEASE_MS, worker: str = "by hand") -> Claimed:
    """Seize a live job from any worker. The caller creates the lease, as `Seize` requires."""
    change = Seize(token=secrets.token_hex(16), worker=worker, lease_ms=lease_ms)
    assert (await store.change([id], change)).ids == [id]
    job = await look(store, id)
    return Claimed(job, Lease(id, change.token, job.queue, job.name, store.now() + lease_ms, None, job.lane))


async def recovered(harness: Harness, lost: Claimed) -> Claimed:
    """The job of a worker that has died: claimed when its lease has ended, not before. An idle claim says when."""
    store, id, until_ms = harness.store, lost.job.id, lost.lease.until_ms
    due_ms = (await look(store, id)).due_ms
    next_ms = await next_due(store)
    assert next_ms is not None
    assert next_ms <= until_ms
    await harness.advance((until_ms - store.now() - 1) / 1_000)
    assert await claim(store) == []
    await harness.advance(0.001)
    again = await claim_one(store)
    assert (again.job.id, again.recovered_from, again.job.crashes) == (id, lost.job.worker, lost.job.crashes + 1)
    assert again.job.due_ms == (await look(store, id)).due_ms == due_ms
    return again


def readable(claimed: Sequence[object]) -> list[Claimed]:
    """The claimed jobs, none of which may be broken."""
    whole = [one for one in claimed if isinstance(one, Claimed)]
    assert len(whole) == len(claimed), f"broken jobs among {claimed!r}"
    return whole


async def next_due(store: Store, **about: Any) -> int | None:
    """The `next_due_ms` of a claim."""
    return (await store.exchange([], wish(**about))).next_due_ms


# ---------------------------------------------------------------------------------------------------- settle


def succeed(claimed: Claimed, result: object = None, rules: Policy = DEFAULT_POLICY, now_ms: int = 0) -> Settlement:
    """The handler returned."""
    return decide(claimed, Succeeded(msgspec.json.encode(result)), rules, now_ms)


def fail(claimed: Claimed, error: str = "no luck", rules: Policy = DEFAULT_POLICY, now_ms: int = 0) -> Settlement:
    """The handler raised, and no attempt is left."""
    return decide(claimed, Errored(error=error, traceback=f"Traceback of {error}", final=True), rules, now_ms)


def retry(claimed: Claimed, delay_ms: int = 1_000, error: str = "no luck") -> Settlement:
    """The handler raised, and may try again after a delay."""
    rules = Policy(max_attempts=1_000_000)
    outcome = Errored(error=error, traceback=f"Traceback of {error}", delay_ms=delay_ms)
    return decide(claimed, outcome, rules, 0)


def snooze(claimed: Claimed, delay_ms: int = 1_000) -> Settlement:
    """The handler snoozed."""
    return decide(claimed, Snoozed(delay_ms), DEFAULT_POLICY, 0)


def release(claimed: Claimed, delay_ms: int | None = None) -> Settlement:
    """The worker releases the job."""
    return decide(claimed, Released(delay_ms), DEFAULT_POLICY, 0)


async def settle(store: Store, *settlements: Settlement) -> list[Settled]:
    """Settle without claiming. Returns the answers."""
    exchanged = await store.exchange(settlements, None)
    assert exchanged.claimed == []
    return exchanged.settled


async def end(store: Store, claimed: Claimed, outcome: Outcome, rules: Policy = DEFAULT_POLICY) -> Settlement:
    """Settle as a worker does, with the time of the store. Returns the settlement, which must be accepted."""
    settlement = decide(claimed, outcome, rules, store.now())
    assert await settle(store, settlement) == ["done"]
    return settlement


async def in_state(store: Store, state: State, job: NewJob | None = None) -> str:
    """Create a job in this state. Returns its id."""
    one = new() if job is None else job
    if state == "waiting":
        return await put_one(store, one)
    if state == "cancelled":
        id = await put_one(store, one)
        assert (await store.change([id], Cancel())).ids == [id]
        return id
    claimed = await started(store, one)
    if state == "succeeded":
        assert await settle(store, succeed(claimed)) == ["done"]
    if state == "failed":
        assert await settle(store, fail(claimed)) == ["done"]
    return claimed.job.id


# ---------------------------------------------------------------------------------------------------- read


async def look(store: Store, id: str) -> Job:
    """A job that must exist."""
    (job,) = await store.get([id])
    assert job is not None, f"no job {id!r}"
    return job


async def state_of(store: Store, id: str) -> State | None:
    """The state of a job; None if it does not exist."""
    (job,) = await store.get([id])
    return None if job is None else job.state


async def find_all(store: Store, filter: Filter, limit: int = 100) -> list[str]:
    """The ids of all matches, page by page."""
    return [job.id for page in await all_pages(store, filter, limit) for job in page.jobs]


async def all_pages(store: Store, filter: Filter, limit: int = 100) -> list[Page]:
    """All pages, one after the other."""
    pages = [await store.find(filter, None, limit)]
    for _ in turns():
        cursor = pages[-1].next
        if cursor is None:
            break
        pages.append(await store.find(filter, cursor, limit))
    return pages


def turns(maximum: int = 1_000) -> Iterator[int]:
    """For loops that might never end with a broken store: they fail after a maximum number of turns."""
    yield from range(maximum)
    raise AssertionError(f"no end after {maximum} turns")


def only_refused(changed: Changed, id: str) -> str:
    """The reason why this job, and no other, was refused."""
    assert changed.ids == []
    assert list(changed.refused) == [id]
    assert changed.refused[id], "a refusal has a reason"
    return changed.refused[id]


@asynccontextmanager
async def second(harness: Harness) -> AsyncIterator[Store]:
    """A second connection, closed afterwards unless it is the store itself."""
    store = await harness.another()
    try:
        yield store
    finally:
        if store is not harness.store:
            await store.close()
