"""`max_jobs` and `max_memory`: real workers that reach a limit, finish what runs and are replaced."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import jobmill
from jobmill import Client, Worker
from jobmill.errors import InvalidValue
from jobmill.worker.recycle import resident_bytes, to_bytes
from tests.helpers import until
from tests.kit.places import free_port
from tests.kit.scrape import ask
from tests.kit.workers import WorkerProcesses


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[WorkerProcesses]:
    made = WorkerProcesses(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}")
    yield made
    made.end()


@pytest.fixture
async def jobs(workers: WorkerProcesses) -> AsyncIterator[Client]:
    async with jobmill.connect(workers.url) as client:
        yield client


@pytest.mark.slow
@pytest.mark.stores("sqlite")
async def test_a_worker_ends_after_its_number_of_jobs(workers: WorkerProcesses, jobs: Client) -> None:
    await jobs.enqueue_many([jobs.draft("short", {"n": n}) for n in range(10)])
    worker = workers.worker("--max-jobs", "7", "--concurrency", "4")
    assert worker.wait(30) == 4
    assert len(workers.notes()) == 7
    assert "it has claimed 7 jobs (max_jobs); it finishes its running jobs" in workers.output(worker)
    counts = {count.state: count.count for count in await jobs.count()}
    assert counts == {"succeeded": 7, "waiting": 3}


@pytest.mark.slow
@pytest.mark.stores("sqlite")
async def test_several_processes_are_replaced_at_once(workers: WorkerProcesses, jobs: Client) -> None:
    await jobs.enqueue_many([jobs.draft("short", {"n": n}) for n in range(20)])
    worker = workers.worker("--max-jobs", "4", "--processes", "2")
    await until(lambda: len(workers.notes()) == 20, 60)
    per_process = Counter(note.pid for note in workers.notes())
    assert max(per_process.values()) == 4
    assert len(per_process) >= 5
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    said = workers.output(worker)
    assert said.count(": replacing it after ") >= 3
    assert "crashed" not in said
    assert "restarting in" not in said


@pytest.mark.slow
@pytest.mark.stores("sqlite")
async def test_a_worker_that_uses_too_much_memory_finishes_what_runs(workers: WorkerProcesses, jobs: Client) -> None:
    gate, port = workers.folder / "gate", free_port()
    long = await jobs.enqueue("until_file", {"path": str(gate)})
    # A long lease: on a busy machine a handler that fills so much memory keeps the interpreter busy for a second.
    worker = workers.worker("--lease", "15s", "--max-memory", "250MB", "--shutdown-timeout", "0", "--health", str(port))
    await until(lambda: workers.notes(), 30)
    await (await jobs.enqueue("grow", {"megabytes": 250})).result(timeout=20)
    await until(lambda: "MB of memory (max_memory: 250 MB); it finishes" in workers.output(worker), 20)
    waiting = await jobs.enqueue("short", {"n": 1})
    answer = await asyncio.to_thread(ask, port, "/readyz")
    assert answer is not None
    assert (answer.status, answer.json) == (503, {"ok": False, "stopping": True})
    assert worker.poll() is None, "the shutdown timeout is not for this"
    gate.touch()
    assert worker.wait(20) == 4
    assert (await long.job()).state == "succeeded"
    assert (await waiting.job()).state == "waiting"


@pytest.mark.slow
@pytest.mark.stores("sqlite")
async def test_a_signal_ends_a_worker_that_waits_for_its_last_jobs(workers: WorkerProcesses, jobs: Client) -> None:
    endless = await jobs.enqueue("endless", {})
    worker = workers.worker("--max-jobs", "1", "--shutdown-timeout", "0")
    await until(lambda: "(max_jobs)" in workers.output(worker), 30)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0, "it was asked to stop, and not to be started again"
    assert (await endless.job()).state == "waiting"


async def test_a_worker_in_a_program_ends_by_itself() -> None:
    client = jobmill.connect("memory://")
    ran: list[int] = []

    @client.handler
    async def run(n: int) -> None:
        ran.append(n)

    async with client:
        await client.enqueue_many([run.draft(n) for n in range(5)])
        worker = Worker(client, max_jobs=2)
        async with asyncio.timeout(10):
            await worker.run()
        assert (sorted(ran), worker.recycled, worker.running) == ([0, 1], True, 0)
        async with asyncio.timeout(10), worker:  # it may be started again, and counts from 0
            assert not worker.recycled
            await until(lambda: len(ran) == 4)
            await until(lambda: worker.recycled)
        assert sorted(ran) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("size", "count"),
    [
        (2_000_000, 2_000_000),
        ("2000000", 2_000_000),
        ("512MB", 512_000_000),
        ("512m", 512_000_000),
        ("512 Mi", 512 * 1024**2),
        ("1.5GiB", 1_610_612_736),
        ("2000k", 2_000_000),
    ],
)
def test_sizes(size: int | str, count: int) -> None:
    assert to_bytes(size, "max_memory") == count


@pytest.mark.parametrize("size", ["", "MB", "-1MB", "1e9", "512 pages", "999999", 5, True, "1TB"])
def test_refused_sizes(size: int | str) -> None:
    with pytest.raises(InvalidValue, match='max_memory: expected a size of at least 1,000,000 bytes, such as "512MB"'):
        Worker(jobmill.connect("memory://"), max_memory=size)


def test_refused_numbers_of_jobs() -> None:
    with pytest.raises(InvalidValue, match="max_jobs: expected a whole number of at least 1, got 0"):
        Worker(jobmill.connect("memory://"), max_jobs=0)


def test_the_memory_of_this_process_is_measured() -> None:
    before = resident_bytes()
    kept = b"x" * 50_000_000
    assert resident_bytes() - before > 40_000_000
    del kept
