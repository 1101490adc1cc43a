"""One PostgreSQL store in several event per_loop, threads and processes: each has connections of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import jobmill
from jobmill.core.values import EVERYTHING
from jobmill.errors import StoreUnavailable
from jobmill.stores.common import per_loop
from jobmill.stores.postgres import PostgresStore
from tests.helpers import until
from tests.kit.postgres import connected

pytestmark = pytest.mark.stores("postgres")

ROOT = Path(__file__).parents[2]


async def backends(url: str) -> int:
    """How many others are connected to this database."""
    async with connected(url) as connection:
        count: int = await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        return count


async def nobody_is_connected(url: str) -> None:
    async def nobody() -> bool:
        return await backends(url) == 0

    await until(nobody)


async def run(url: str, program: str, *, complains: bool = False) -> str:
    """A program in a process of its own, which must end well, and mostly complain of nothing; what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-W",
            "ignore" if complains else "error",
            "-c",
            f"import asyncio, os, sys, threading, jobmill\n{program}",
        ),
        env={**os.environ, "JOBMILL_URL": url},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    async with asyncio.timeout(30):
        printed, said = await process.communicate()
    assert (process.returncode, "" if complains else said.decode()) == (0, "")
    return printed.decode()


async def test_two_loops_use_one_store_at_the_same_time(migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_loop, "ELSEWHERE_SECONDS", 0.5)
    jobs = jobmill.connect(migrated_url)
    async with asyncio.timeout(20):

        def elsewhere() -> None:
            for n in range(100):
                jobs.sync.enqueue("send", {"n": n})

        there = asyncio.create_task(asyncio.to_thread(elsewhere))
        for n in range(100):
            await jobs.enqueue("send", {"n": n})
        await there
        assert sum(one.count for one in await jobs.count()) == 200
        # The main loop waits in this thread, and cannot close its own meanwhile: that must not be waited for long.
        began = time.monotonic()
        jobs.sync.close()
        assert time.monotonic() - began < 10, "without a limit it would wait for ever"
    await jobs.close()
    await nobody_is_connected(migrated_url)


async def test_closing_reaches_the_loops_of_other_threads(migrated_url: str) -> None:
    store = PostgresStore(migrated_url)
    called, over = threading.Event(), threading.Event()
    ended: list[object] = []

    async def there() -> None:
        await store.count(EVERYTHING)
        looking = asyncio.create_task(store.context.use(lambda connection: connection.execute("SELECT pg_sleep(60)")))
        await until(lambda: store.context.loops.here().pool._used)
        called.set()
        ended.extend(await asyncio.gather(looking, return_exceptions=True))
        await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(there()))
    thread.start()
    await asyncio.to_thread(called.wait)
    await store.count(EVERYTHING)
    async with asyncio.timeout(20):
        await store.close()
    await nobody_is_connected(migrated_url)
    over.set()
    await asyncio.to_thread(thread.join)
    assert [(type(one), str(one)) for one in ended] == [(StoreUnavailable, "the store was closed")]


async def test_a_client_outlives_loops_that_end_without_closing_it(migrated_url: str) -> None:
    program = """
jobs = jobmill.connect()
async def main():
    await asyncio.gather(*(jobs.enqueue("send") for _ in range(3)))
    return sum(one.count for one in await jobs.count())
print(asyncio.run(main()), asyncio.run(main()))
jobs.sync.enqueue("send")
print(asyncio.run(main()))
"""
    assert (await run(migrated_url, program)).split() == ["3", "6", "10"]
    await nobody_is_connected(migrated_url)


async def test_loops_that_were_closed_as_they_stood_are_forgotten(migrated_url: str) -> None:
    # Nobody cancels tasks or ends generators here: sockets are closed by the collector, and asyncio says so.
    program = """
jobs = jobmill.connect()
async def main():
    await jobs.enqueue("send")
    return sum(one.count for one in await jobs.count())
loop = asyncio.new_event_loop()
print(loop.run_until_complete(main()))
loop.close()
print(asyncio.run(main()))
asyncio.run(jobs.close())
"""
    assert (await run(migrated_url, program, complains=True)).split() == ["1", "2"]
    await nobody_is_connected(migrated_url)


async def test_a_fork_has_connections_of_its_own(migrated_url: str) -> None:
    program = """
jobs = jobmill.connect()
async def backends():
    calls = (jobs.store.context.use(lambda c: c.fetchval("SELECT pg_backend_pid()")) for _ in range(3))
    return await asyncio.gather(*calls)
before = jobs.sync(backends())
children = []
for _ in range(2):
    child = os.fork()
    if not child:
        assert not set(jobs.sync(backends())) & set(before)
        assert not set(asyncio.run(backends())) & set(before)
        jobs.sync.enqueue("send")
        jobs.sync.close()
        sys.exit(0)  # collects what it has, as os._exit would not
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
# The parent's are as they were, and heard by its loop.
assert sorted(jobs.sync(backends())) == sorted(before)
jobs.sync.enqueue("send")
print(sum(one.count for one in jobs.sync.count()))
jobs.sync.close()
"""
    assert (await run(migrated_url, program)).split() == ["3"]
    await nobody_is_connected(migrated_url)


async def test_a_fork_inside_a_running_loop_leaves_that_alone(migrated_url: str) -> None:
    program = """
async def main():
    jobs = jobmill.connect()
    before = await jobs.store.context.use(lambda c: c.fetchval("SELECT pg_backend_pid()"))
    child = os.fork()
    if not child:
        asyncio.events._set_running_loop(None)
        async def there():
            await jobs.enqueue("send")
            await jobs.close()
        asyncio.run(there())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert await jobs.store.context.use(lambda c: c.fetchval("SELECT pg_backend_pid()")) == before
    await jobs.close()
asyncio.run(main())
"""
    await run(migrated_url, program)
    async with jobmill.connect(migrated_url) as jobs:
        assert sum(one.count for one in await jobs.count()) == 1
