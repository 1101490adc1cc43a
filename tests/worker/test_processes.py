"""Worker processes, stopped by signals and left by isolated jobs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import jobmill
from jobmill import Client
from tests.helpers import until
from tests.kit.workers import WorkerProcesses

pytestmark = [pytest.mark.slow, pytest.mark.stores("sqlite")]


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[WorkerProcesses]:
    made = WorkerProcesses(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}")
    yield made
    made.end()


@pytest.fixture
async def jobs(workers: WorkerProcesses) -> AsyncIterator[Client]:
    async with jobmill.connect(workers.url) as client:
        yield client


async def test_sigterm_waits_for_what_runs_and_ends_with_zero(workers: WorkerProcesses, jobs: Client) -> None:
    gate = workers.folder / "gate"
    enqueued = await jobs.enqueue("until_file", {"path": str(gate)})
    worker = workers.worker("--concurrency", "2")
    await until(lambda: workers.notes(), 30)
    worker.send_signal(signal.SIGTERM)
    await until(lambda: "stopping" in workers.output(worker), 20)
    waiting = [await jobs.enqueue("short", {"n": n}) for n in range(3)]
    gate.touch()
    assert worker.wait(20) == 0
    assert (await enqueued.job()).state == "succeeded"
    # A claim for the free slot may have been in flight; there was no other one after it.
    assert [(await one.job()).state for one in waiting][1:] == ["waiting", "waiting"]


async def test_a_second_signal_releases_at_once(workers: WorkerProcesses, jobs: Client) -> None:
    enqueued = await jobs.enqueue("endless", {})
    worker = workers.worker("--shutdown-timeout", "60s")
    await until(lambda: workers.notes(), 30)
    worker.send_signal(signal.SIGINT)
    # Before it has handled the first signal, the second would count as the first.
    await until(lambda: "stopping" in workers.output(worker), 20)
    worker.send_signal(signal.SIGINT)
    assert worker.wait(20) == 0
    job = await enqueued.job()
    assert (job.state, job.errors, job.crashes, job.claims) == ("waiting", 0, 0, 1)


async def test_an_isolated_job_dies_alone(workers: WorkerProcesses, jobs: Client) -> None:
    worker = workers.worker()
    for how, said in (("segfault", "SIGSEGV"), ("exit", "code 3")):
        with pytest.raises(jobmill.JobFailed, match=said):
            await (await jobs.enqueue("dies_alone", {"how": how})).result(timeout=30)
    assert await (await jobs.enqueue("short", {"n": 3})).result(timeout=20) == 3
    assert worker.poll() is None


async def test_the_url_is_not_on_the_command_lines_of_several_processes(workers: WorkerProcesses, jobs: Client) -> None:
    """Every user of a machine sees them, with the password. A fork shows the command line of the supervisor."""
    await jobs.enqueue("short", {"n": 1})
    worker = workers.worker("--processes", "2", "--spawn", "--url", workers.url)
    await until(lambda: workers.notes(), 30)
    child = workers.notes()[0].pid
    assert child != worker.pid
    command_line = await asyncio.to_thread(Path(f"/proc/{child}/cmdline").read_text)
    assert "--lease" in command_line
    assert workers.url not in command_line


def test_a_url_that_the_module_does_not_use_is_refused_by_several_processes_too(workers: WorkerProcesses) -> None:
    app = workers.folder / "elsewhere.py"
    app.write_text("import jobmill\njobs = jobmill.connect('memory://')\n@jobs.handler\ndef run() -> None: ...\n")
    worker = workers.start("worker", f"{app}:jobs", "--processes", "2", "--url", workers.url)
    assert worker.wait(30) == 2
    assert "connects to another store" in workers.output(worker)
