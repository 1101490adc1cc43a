"""One health port for several worker processes, and what it answers while they start, crash, hang and stop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import jobmill
from jobmill import Client
from tests.helpers import until
from tests.kit.places import free_port
from tests.kit.promtool import promtool
from tests.kit.scrape import Answered, ask, scrape
from tests.kit.workers import WorkerProcesses

pytestmark = [pytest.mark.slow, pytest.mark.stores("sqlite"), pytest.mark.usefixtures("mode")]


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[WorkerProcesses]:
    made = WorkerProcesses(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}")
    yield made
    made.end()


@pytest.fixture
async def jobs(workers: WorkerProcesses) -> AsyncIterator[Client]:
    async with jobmill.connect(workers.url) as client:
        yield client


async def asked(port: int, path: str) -> tuple[int, object] | None:
    answer: Answered | None = await asyncio.to_thread(ask, port, path)
    return None if answer is None else (answer.status, answer.json)


OK = (200, {"ok": True})


@pytest.fixture(params=["spawn", "fork"])
def mode(request: pytest.FixtureRequest, workers: WorkerProcesses) -> str:
    """How the processes start: every answer is the same."""
    workers.options = ("--spawn",) if request.param == "spawn" else ()
    return str(request.param)


async def start(workers: WorkerProcesses, processes: int, *args: str) -> tuple[subprocess.Popen[bytes], int, list[int]]:
    """A supervisor whose processes are all ready, its port, and the ids of its processes in their order."""
    port = free_port()
    supervisor = workers.worker("--processes", str(processes), "--health", str(port), *args)

    async def is_ready() -> bool:
        return await asked(port, "/readyz") == OK

    await until(is_ready, 60)
    return supervisor, port, pids(workers, supervisor)


def pids(workers: WorkerProcesses, supervisor: subprocess.Popen[bytes]) -> list[int]:
    """The ids of all processes that it has started, in order."""
    words = workers.output(supervisor).split("started (pid ")[1:]
    return [int(word.partition(")")[0]) for word in words]


async def test_one_port_answers_for_all_processes(workers: WorkerProcesses, jobs: Client) -> None:
    supervisor, port, _ = await start(workers, 3, "--concurrency", "2")
    for n in range(30):
        await jobs.enqueue("short", {"n": n})
    await until(lambda: scrape(port).sum("jobmill_runs_total", outcome="succeeded") == 30, 30)
    assert await asked(port, "/livez") == OK
    metrics = scrape(port)
    assert metrics.labels("process") == {"1", "2", "3"}
    assert metrics.sum("jobmill_concurrency") == 6
    assert metrics.sum("jobmill_process_up") == 3
    assert metrics("jobmill_concurrency", process="2") == 2
    assert metrics.sum("jobmill_run_seconds_count", name="short") == 30
    assert promtool("check", "metrics", stdin=metrics.text) == (0, "")
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(30) == 0
    assert await asked(port, "/livez") is None


async def test_it_is_red_while_a_process_hangs(workers: WorkerProcesses) -> None:
    _, port, (_, second) = await start(workers, 2)
    assert await asked(port, "/livez") == OK
    os.kill(second, signal.SIGSTOP)
    red = (503, {"ok": False, "processes": {"2": "does not answer"}})
    assert await asked(port, "/readyz") == red
    assert await asked(port, "/livez") == red
    metrics = scrape(port)
    assert (metrics("jobmill_process_up", process="1"), metrics("jobmill_process_up", process="2")) == (1, 0)
    assert metrics("jobmill_concurrency", process="2") is None
    os.kill(second, signal.SIGCONT)

    async def is_green() -> bool:
        return (await asked(port, "/readyz"), await asked(port, "/livez")) == (OK, OK)

    await until(is_green, 20)


async def test_a_process_that_restarts_is_not_ready_and_not_stuck(workers: WorkerProcesses) -> None:
    supervisor, port, (first, _) = await start(workers, 2)
    os.kill(first, signal.SIGKILL)
    await until(lambda: "process 1 of 2: crashed" in workers.output(supervisor), 20)
    not_ready = await asked(port, "/readyz")
    assert not_ready in [(503, {"ok": False, "processes": {"1": why}}) for why in ("restarts", "does not answer")], (
        not_ready
    )
    assert await asked(port, "/livez") == OK

    async def is_back() -> bool:
        return await asked(port, "/readyz") == OK

    await until(is_back, 30)
    assert len(pids(workers, supervisor)) == 3


@pytest.mark.parametrize("processes", [1, 2])
async def test_while_it_stops_it_is_alive_and_not_ready(workers: WorkerProcesses, jobs: Client, processes: int) -> None:
    gate = workers.folder / "gate"
    enqueued = await jobs.enqueue("until_file", {"path": str(gate)})
    worker, port, _ = await start(workers, processes)
    await until(lambda: workers.notes(), 30)
    worker.send_signal(signal.SIGTERM)
    await until(lambda: "stopping" in workers.output(worker), 20)
    if processes == 2:  # one process has ended
        await until(lambda: ": ended (pid " in workers.output(worker), 20)
    assert await asked(port, "/readyz") == (503, {"ok": False, "stopping": True})
    assert await asked(port, "/livez") == OK
    gate.touch()
    assert worker.wait(20) == 0
    assert (await enqueued.job()).state == "succeeded"


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_port_in_use_is_refused(workers: WorkerProcesses, processes: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        worker = workers.worker("--processes", processes, "--health", port)
        assert worker.wait(30) == 2
    (line,) = workers.output(worker).splitlines()
    assert f"health: expected a port that can be bound on 127.0.0.1, got {port}; " in line
    assert "in use" in line


async def test_a_short_folder_for_sockets_is_used_where_the_usual_one_is_long(
    workers: WorkerProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = workers.folder / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    _, port, _ = await start(workers, 2)
    assert await asked(port, "/livez") == OK


def test_what_is_neither_a_port_nor_a_path_is_refused(workers: WorkerProcesses) -> None:
    worker = workers.worker("--health", "web")
    assert worker.wait(30) == 2
    assert "health: expected a port, or the path of a unix socket (with a /), got 'web'" in workers.output(worker)
