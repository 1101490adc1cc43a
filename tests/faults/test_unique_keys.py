"""Many producers want the same unique keys at the same time: each key has one live job."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

import jobmill
from jobmill import Client
from tests.faults.operations import FaultyServer
from tests.faults.parameters import on_each_store, on_stores
from tests.helpers import until

pytestmark = [pytest.mark.slow, pytest.mark.extended]

PRODUCERS = 16
KEYS = 50


async def enqueue_all(jobs: Client, producer: int, answers: list[Counter[str]]) -> None:
    for n in range(KEYS):
        key = (n * 7 + producer) % KEYS
        answers[key][(await jobs.enqueue("short", {"n": key}, unique_key=f"key-{key}")).id] += 1


@on_each_store
async def test_producers_are_all_given_the_same_job(server: FaultyServer) -> None:
    """Nobody works, so that what is live stays so."""
    answers: list[Counter[str]] = [Counter() for _ in range(KEYS)]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(jobmill.connect(server.url)) for _ in range(PRODUCERS)]
        await asyncio.gather(*(enqueue_all(jobs, n, answers) for n, jobs in enumerate(clients)))
        keys = Counter([job.unique_key async for job in clients[0].find_all(states="waiting")])
    assert [len(ids) for ids in answers] == [1] * KEYS
    assert sum(ids.total() for ids in answers) == PRODUCERS * KEYS
    assert keys == {f"key-{n}": 1 for n in range(KEYS)}


@on_each_store
async def test_a_key_is_free_again_when_its_job_has_ended(server: FaultyServer) -> None:
    answers: list[Counter[str]] = [Counter() for _ in range(KEYS)]
    server.workers.worker("--concurrency", "20", "--lease", "15s")
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(jobmill.connect(server.url)) for _ in range(PRODUCERS)]
        await asyncio.gather(*(enqueue_all(jobs, n, answers) for n, jobs in enumerate(clients)))
        jobs = clients[0]

        async def all_have_succeeded() -> bool:
            return {one.state for one in await jobs.count()} == {"succeeded"}

        await until(all_have_succeeded, 60)
        ended = [job.id async for job in jobs.find_all()]
    # Everybody was given a job that there was, and each of them ran once.
    assert Counter(ended) == dict.fromkeys({id for ids in answers for id in ids}, 1)
    assert Counter(note.id for note in server.workers.notes()) == dict.fromkeys(ended, 1)


# Alone: SQLite's write lock is not fair, and on a busy machine one of 17 writers may wait longer than 5 s.
@pytest.mark.alone
@on_stores("sqlite", "postgres", "mongo")
async def test_a_key_never_has_two_live_jobs(server: FaultyServer) -> None:
    """Seen in one query while jobs come and go. Redis has no query over several states."""
    answers: list[Counter[str]] = [Counter() for _ in range(KEYS)]
    server.workers.worker("--concurrency", "20", "--lease", "15s")
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(jobmill.connect(server.url)) for _ in range(PRODUCERS)]
        producing = asyncio.gather(*(enqueue_all(jobs, n, answers) for n, jobs in enumerate(clients)))
        while not producing.done():
            page = await clients[0].find(states=("waiting", "running"), limit=2 * KEYS)
            assert set(Counter(job.unique_key for job in page.jobs).values()) <= {1}
        await producing
