"""Async handlers that block the event loop are named in a warning, and nobody else is. With real workers."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import jobmill
from jobmill import Client
from tests.helpers import until
from tests.kit.workers import WorkerProcesses

pytestmark = [pytest.mark.slow, pytest.mark.stores("sqlite")]

APP = """
import asyncio, os, pathlib, time
import jobmill

jobs = jobmill.connect()
here = pathlib.Path(os.environ["NOTES_DIR"])

@jobs.handler
async def innocent() -> None:
    (here / "innocent").touch()
    await asyncio.sleep(3600)

@jobs.handler
async def busy(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(0)

@jobs.handler
async def sleeper(seconds: float) -> None:
    await asyncio.sleep(0.01)
    pause(seconds)  # the line to be named

def pause(seconds: float) -> None:
    time.sleep(seconds)

@jobs.handler
async def computes(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(100))

@jobs.handler
async def delegates(seconds: float) -> None:
    async def helper() -> None:
        pause(seconds)
    await asyncio.create_task(helper(), name="helper 7")

@jobs.handler
def plain(seconds: float) -> None:
    time.sleep(seconds)
"""

LINE = next(number for number, line in enumerate(APP.splitlines(), 1) if "to be named" in line)
#: A third of the lease is a second: what blocks for longer is warned of.
LEASE = "3s"
TOO_LONG = {"seconds": 2.5}


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[WorkerProcesses]:
    made = WorkerProcesses(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}")
    (tmp_path / "app.py").write_text(APP)
    made.start("worker", f"{tmp_path / 'app.py'}:jobs", "--lease", LEASE, "--log-format", "json")
    yield made
    made.end()


@pytest.fixture
async def jobs(workers: WorkerProcesses) -> AsyncIterator[Client]:
    async with jobmill.connect(workers.url) as client:
        await client.enqueue("innocent")
        await until((workers.folder / "innocent").exists, 30)
        yield client


def warnings(workers: WorkerProcesses) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in workers.output(workers.processes[0]).splitlines()]
    return [line for line in lines if "event loop has been blocked" in line["message"]]


@pytest.mark.parametrize("name", ["sleeper", "computes"])
async def test_the_handler_that_blocks_is_named(workers: WorkerProcesses, jobs: Client, name: str) -> None:
    enqueued = await jobs.enqueue(name, TOO_LONG)
    await enqueued.result(timeout=20)
    await until(lambda: warnings(workers), 10)
    (warning,) = warnings(workers)
    assert f"by handler '{name}' (job {enqueued.id}, {workers.folder / 'app.py'}:" in warning["message"]
    assert "innocent" not in warning["message"]
    assert (warning["level"], warning["job_id"], warning["job_name"]) == ("warning", enqueued.id, name)
    if name == "sleeper":
        assert f"app.py:{LINE})" in warning["message"]
    seconds = float(warning["message"].partition("blocked for ")[2].partition(" s ")[0])
    assert 1 <= seconds < 2.5, "it is warned of while it lasts"


async def test_a_task_that_a_handler_started_is_named_with_the_handlers_that_ran(
    workers: WorkerProcesses, jobs: Client
) -> None:
    await (await jobs.enqueue("delegates", TOO_LONG)).result(timeout=20)
    await until(lambda: warnings(workers), 10)
    (warning,) = warnings(workers)
    assert "by the task 'helper 7' (" in warning["message"]
    assert "while these async handlers ran: delegates, innocent, so it cannot extend leases" in warning["message"]
    assert "job_id" not in warning


async def test_what_does_not_block_the_loop_is_not_warned_of(workers: WorkerProcesses, jobs: Client) -> None:
    for name, seconds in (("plain", 1.5), ("busy", 1.5), ("sleeper", 0.2)):
        await (await jobs.enqueue(name, {"seconds": seconds})).result(timeout=20)
    (worker,) = workers.processes
    worker.send_signal(signal.SIGSTOP)
    time.sleep(1.5)  # noqa: ASYNC251 - for this time the process is to be suspended
    worker.send_signal(signal.SIGCONT)
    await (await jobs.enqueue("sleeper", TOO_LONG)).result(timeout=20)
    await until(lambda: warnings(workers), 10)
    assert len(warnings(workers)) == 1, "only the last one"
    assert "handler 'sleeper'" in warnings(workers)[0]["message"]
