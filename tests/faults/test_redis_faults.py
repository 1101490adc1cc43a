"""Faults that only Redis knows: scripts that it forgets, and what Node sees of a crash."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import pytest

import jobmill
from jobmill.testing.contract.support import QUEUE, claim_ids, put_one, wish
from tests.faults.load import loaded
from tests.faults.operations import again_and_again
from tests.faults.parameters import on_stores
from tests.faults.redis import FaultyRedis
from tests.helpers import until

pytestmark = pytest.mark.slow

SCRIPTS = 100

#: On a busy machine. A worker that nobody wakes looks for jobs after 5 s.
AT_ONCE_S = 3.0


@on_stores("redis")
async def test_scripts_that_are_forgotten_again_and_again(server: FaultyRedis) -> None:
    """Nobody notices: the store sends them again."""
    async with loaded(server) as load:
        with server.redis.client() as administrator:

            def sent_again() -> int:
                return int(administrator.info("commandstats").get("cmdstat_eval", {}).get("calls", 0))

            before = sent_again()
            async with again_and_again(administrator.script_flush):
                await until(lambda: sent_again() >= before + SCRIPTS, 60)
        await load.resumes()
        assert load.refused == []
        load.check_workers()


@on_stores("redis")
async def test_node_sees_a_job_of_a_stopped_worker_as_stalled(server: FaultyRedis) -> None:
    workers = server.workers
    gate = workers.folder / "gate"
    async with jobmill.connect(server.url) as jobs:
        enqueued = await jobs.enqueue("until_file", {"path": str(gate)})
        sleeper = workers.worker("--lease", "3s")
        await until(lambda: workers.notes(), 30)
        os.kill(sleeper.pid, signal.SIGSTOP)
        workers.worker("--lease", "3s")
        await until(lambda: len(workers.notes()) == 2, 30)
        gate.touch()
        await enqueued.result(timeout=30)
        os.kill(sleeper.pid, signal.SIGCONT)
        await until(lambda: enqueued.id in workers.output(sleeper), 30)
    with server.redis.client() as client:
        key = f"{server.prefix}:default"
        assert client.hmget(f"{key}:{enqueued.id}", "stc", "ats", "atm") == [b"1", b"2", b"1"]
        entries: Any = client.xrange(f"{key}:events")
        events = [fields[b"event"] for _, fields in entries if b"jobId" in fields]
    assert events == [b"added", b"waiting", b"active", b"waiting", b"stalled", b"active", b"completed"]


@on_stores("redis")
async def test_a_marker_that_a_worker_took_without_hearing_of_it(server: FaultyRedis) -> None:
    """It costs no more than the time until the sleeper comes back by itself."""
    async with jobmill.connect(server.url) as jobs, jobmill.connect(server.direct_url) as others:
        assert (await jobs.store.exchange([], wish())).claimed == []
        server.proxy.drop_answer(lambda command: command.startswith(b"BZPOPMIN"))
        sleeping = asyncio.create_task(jobs.store.wait_for_work((QUEUE,), jobs.store.now() + 60_000))
        await until(lambda: sleeps(server), 30)
        id = await put_one(others.store)
        await until(lambda: server.dropped_answers == 1)
        began = time.monotonic()
        await sleeping
        assert time.monotonic() - began < AT_ONCE_S
        assert await claim_ids(jobs.store) == [id]


def sleeps(server: FaultyRedis) -> bool:
    """Whether a client sleeps until a marker is there."""
    with server.redis.client() as client:
        return any(one["cmd"] == "bzpopmin" for one in client.client_list())
