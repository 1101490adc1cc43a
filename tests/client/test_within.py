"""Enqueueing within the caller's own transaction, from code with and without a loop."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import jobmill
from jobmill import Client, InvalidValue, StoreBusy

pytestmark = pytest.mark.stores("sqlite")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def jobs(path: Path) -> Iterator[Client]:
    client = jobmill.connect(f"sqlite:///{path}")
    yield client
    client.sync.close()


def counted(jobs: Client) -> int:
    return sum(one.count for one in jobs.sync.count())


def test_code_without_a_loop_enqueues_in_its_own_transaction(jobs: Client, path: Path) -> None:
    @jobs.handler
    async def send(to: str) -> None: ...

    jobs.sync.open()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (id)")
        connection.execute("INSERT INTO orders VALUES (1)")
        jobs.sync.enqueue_many([send.draft(to="ada")], within=connection)
        jobs.sync.enqueue("send", {"to": "grace"}, within=connection)
        connection.rollback()
        assert counted(jobs) == 0
        jobs.sync.enqueue("send", {"to": "grace"}, within=connection)
        connection.commit()
    assert counted(jobs) == 1


def test_a_write_that_would_wait_for_its_own_callers_lock_is_refused_at_once(jobs: Client, path: Path) -> None:
    jobs.sync.open()
    with closing(sqlite3.connect(path)) as connection:
        jobs.sync.enqueue("send", {}, within=connection)
        with pytest.raises(StoreBusy, match="commit or roll it back first"):
            jobs.sync.enqueue("send", {})
        connection.commit()
        jobs.sync.enqueue("send", {})
    assert counted(jobs) == 2


async def test_only_the_caller_that_holds_the_lock_is_refused(path: Path) -> None:
    async with jobmill.connect(f"sqlite:///{path}") as jobs:
        holds = asyncio.Event()
        refused = asyncio.Event()

        async def holder() -> None:
            with closing(sqlite3.connect(path)) as connection:
                await jobs.enqueue("send", {}, within=connection)
                holds.set()
                with pytest.raises(StoreBusy, match="commit or roll it back first"):
                    await jobs.enqueue("send", {})
                refused.set()
                connection.commit()

        async def other() -> jobmill.Enqueued[Any]:
            await holds.wait()
            # In one batch with the holder's, and none the worse for it: it waits until the lock is free.
            return await jobs.enqueue("send", {})

        _, enqueued = await asyncio.gather(holder(), other())
        assert refused.is_set()
        assert enqueued.created
        assert sum(one.count for one in await jobs.count()) == 2


def test_a_connection_of_another_thread_is_refused_with_the_way_to_do_it(jobs: Client, path: Path) -> None:
    @jobs.handler
    async def send() -> None: ...

    jobs.sync.open()
    with closing(sqlite3.connect(path)) as connection, pytest.raises(InvalidValue, match=r"jobs\.sync\.enqueue_many"):
        # Runs in the thread of the loop.
        jobs.sync(send.options(within=connection).enqueue())
    assert threading.current_thread() is threading.main_thread()
    assert counted(jobs) == 0


def test_a_queue_from_code_without_a_loop(jobs: Client) -> None:
    assert jobs.sync.queue("mail").pause().paused
    assert jobs.sync.queue("mail").settings().paused
    assert not jobs.sync.queue("mail").resume().paused
