"""Races: several connections in threads and processes, and everything happens exactly once."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from jobmill.core.changes import Cancel, Requeue
from jobmill.core.job import LIVE
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import EVERYTHING, Filter, QueueChange, RateLimit
from jobmill.store import Store
from jobmill.testing.contract.ahead import ProcessAheadContract
from jobmill.testing.contract.harness import Harness, ProcessHarness
from jobmill.testing.contract.racing import (
    LEASE_MS,
    RACERS,
    Drained,
    claim_what_there_is,
    drain,
    enqueue_ids,
    enqueue_keys,
    in_processes,
    in_threads,
)
from jobmill.testing.contract.support import QUEUE, claim, find_all, in_state, look, new, put, settle, succeed


class ThreadRacesContract:
    """Threads, each with its own event loop and connection."""

    async def test_threads_claim_no_job_twice(self, harness: Harness) -> None:
        ids = await put(harness.store, *[new() for _ in range(200)])
        await each_ran_once(harness.store, ids, await in_threads(harness, drain))

    async def test_threads_create_one_live_job_per_unique_key(self, harness: Harness) -> None:
        each_made_once(await in_threads(harness, enqueue_keys), "duplicate")
        await no_key_lives_twice(harness.store)

    async def test_threads_create_one_job_per_id(self, harness: Harness) -> None:
        each_made_once(await in_threads(harness, enqueue_ids), "exists")
        assert len(await find_all(harness.store, EVERYTHING)) == 30

    async def test_threads_never_exceed_a_running_limit(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, QueueChange(running_limit=3))
        ids = await put(harness.store, *[new() for _ in range(60)])
        drained = await in_threads(harness, drain)
        assert max(one.max_running for one in drained) <= 3
        await each_ran_once(harness.store, ids, drained)

    async def test_threads_never_exceed_a_rate_limit(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, QueueChange(rate_limit=RateLimit(10, 3_600_000)))
        await put(harness.store, *[new() for _ in range(60)])
        claims = await in_threads(harness, claim_what_there_is)
        assert sum(map(len, claims)) == 10

    async def test_of_a_settlement_and_a_cancel_one_wins(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(40)])
        claimed = await claim(harness.store, lease_ms=LEASE_MS)

        async def race(store: Store, number: int) -> list[str]:
            if number % 2:
                changes = [await store.change([one.job.id], Cancel()) for one in claimed]
                return ["cancelled" if change.ids else "no" for change in changes]
            answers = [(await settle(store, succeed(one)))[0] for one in claimed]
            return ["succeeded" if answer == "done" else "no" for answer in answers]

        told = await in_threads(harness, race)
        for one, *answers in zip(claimed, *told, strict=True):
            won = [answer for answer in answers if answer != "no"]
            assert won == [(await look(harness.store, one.job.id)).state], "exactly one ended the job"

    async def test_of_many_requeues_with_one_key_one_wins(self, harness: Harness) -> None:
        ids = [await in_state(harness.store, "cancelled", new(key="k")) for _ in range(RACERS)]

        async def race(store: Store, number: int) -> int:
            return len((await store.change([ids[number]], Requeue())).ids)

        assert sum(await in_threads(harness, race)) == 1
        await no_key_lives_twice(harness.store)

    async def test_no_update_of_a_recurrence_is_lost(self, harness: Harness) -> None:
        rule = Recurrence(key="k", every_ms=60_000)

        async def race(store: Store, number: int) -> list[str]:
            return [(await store.enqueue([new(key="k", recurrence=rule)]))[0].status for _ in range(10)]

        how = Counter(word for words in await in_threads(harness, race) for word in words)
        assert how == {"created": 1, "updated": 10 * RACERS - 1}
        (id,) = await find_all(harness.store, Filter(unique_key="k"))
        recurrence = (await look(harness.store, id)).recurrence
        assert recurrence is not None
        assert recurrence.revision == 10 * RACERS - 1

    async def test_claims_and_enqueues_at_the_same_time_lose_no_job(self, harness: Harness) -> None:
        async def race(store: Store, number: int) -> list[str]:
            seen: list[str] = []
            for _ in range(20):
                await put(store, new(f"racer-{number}-{_}"))
                seen += [one.job.id for one in await claim(store, 1, lease_ms=LEASE_MS)]
            return seen + await claim_what_there_is(store, number)

        claimed = [id for ids in await in_threads(harness, race) for id in ids]
        assert sorted(claimed) == sorted(f"racer-{number}-{_}" for number in range(RACERS) for _ in range(20))

    async def test_tasks_of_one_loop_share_a_connection(self, harness: Harness) -> None:
        ids = await put(harness.store, *[new() for _ in range(100)])
        drained = await asyncio.gather(*[drain(harness.store, number) for number in range(RACERS)])
        await each_ran_once(harness.store, ids, drained)


class ProcessContract(ProcessAheadContract):
    """The same with processes, for stores whose data several processes share."""

    @pytest.fixture(scope="class")
    @classmethod
    def pool(cls) -> Iterator[ProcessPoolExecutor]:
        """Processes that are started fresh, like other workers."""
        with ProcessPoolExecutor(RACERS, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool

    async def test_processes_claim_no_job_twice(self, harness: ProcessHarness, pool: ProcessPoolExecutor) -> None:
        ids = await put(harness.store, *[new() for _ in range(300)])
        await each_ran_once(harness.store, ids, await in_processes(pool, harness.opener, drain))

    async def test_processes_create_one_live_job_per_unique_key(
        self, harness: ProcessHarness, pool: ProcessPoolExecutor
    ) -> None:
        each_made_once(await in_processes(pool, harness.opener, enqueue_keys), "duplicate")
        await no_key_lives_twice(harness.store)

    async def test_processes_create_one_job_per_id(self, harness: ProcessHarness, pool: ProcessPoolExecutor) -> None:
        each_made_once(await in_processes(pool, harness.opener, enqueue_ids), "exists")

    async def test_processes_never_exceed_a_running_limit(
        self, harness: ProcessHarness, pool: ProcessPoolExecutor
    ) -> None:
        await harness.store.configure(QUEUE, QueueChange(running_limit=3))
        ids = await put(harness.store, *[new() for _ in range(60)])
        drained = await in_processes(pool, harness.opener, drain)
        assert max(one.max_running for one in drained) <= 3
        await each_ran_once(harness.store, ids, drained)

    async def test_processes_never_exceed_a_rate_limit(
        self, harness: ProcessHarness, pool: ProcessPoolExecutor
    ) -> None:
        await harness.store.configure(QUEUE, QueueChange(rate_limit=RateLimit(10, 3_600_000)))
        await put(harness.store, *[new() for _ in range(60)])
        claims = await in_processes(pool, harness.opener, claim_what_there_is)
        assert sum(map(len, claims)) == 10


async def each_ran_once(store: Store, ids: list[str], drained: list[Drained]) -> None:
    """Every job was claimed once, settled once, and has ended."""
    assert sorted(id for one in drained for id in one.claimed) == sorted(ids)
    assert Counter(answer for one in drained for answer in one.settled) == {"done": len(ids)}
    jobs = [job for job in await store.get(ids) if job is not None]
    assert {(job.state, job.claims, job.crashes) for job in jobs} == {("succeeded", 1, 0)}
    assert len(jobs) == len(ids)


def each_made_once(told: list[list[str]], otherwise: str) -> None:
    """Exactly one of the racers created each job."""
    for answers in zip(*told, strict=True):
        assert Counter(answers) == {"created": 1, otherwise: RACERS - 1}


async def no_key_lives_twice(store: Store) -> None:
    """Each unique key has one live owner."""
    jobs = (await store.find(Filter(states=LIVE), None, 1_000)).jobs
    owners = Counter((job.queue, job.name, job.unique_key) for job in jobs if job.unique_key is not None)
    assert owners
    assert set(owners.values()) == {1}
