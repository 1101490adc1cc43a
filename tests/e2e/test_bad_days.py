"""Bad days: workers really killed, stopped and cut off; every job ends in exactly one final state."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator

import pytest

import jobmill
from jobmill import Client
from tests.e2e.conftest import ROOT, Place
from tests.helpers import until

pytestmark = [pytest.mark.slow, pytest.mark.stores("sqlite")]


@pytest.fixture
async def jobs(place: Place) -> AsyncIterator[Client]:
    async with jobmill.connect(place.url) as client:
        yield client


async def states(jobs: Client) -> Counter[str]:
    return Counter({one.state: one.count for one in await jobs.count()})


async def test_another_worker_finishes_what_a_killed_one_left(place: Place, jobs: Client) -> None:
    await jobs.enqueue_many([jobs.draft("short", {"n": n}) for n in range(1_000)])
    victim = place.worker("--concurrency", "50")
    await until(lambda: len(place.notes()) >= 300, 30)
    victim.kill()
    place.worker("--concurrency", "50")

    async def all_ended() -> bool:
        return (await states(jobs))["succeeded"] == 1_000

    await until(all_ended, 60)
    everything = [job async for job in jobs.find_all()]
    runs = Counter((id, fence) for _, id, fence, _ in place.notes())
    # Every run had a claim of its own, and a claim runs at most once.
    assert all(count == 1 for count in runs.values())
    by_id = {job.id: job for job in everything}
    assert all(1 <= fence <= by_id[id].claims for id, fence in runs)
    # What the victim held was counted as a crash, once each, and nothing else was.
    crashed = [job for job in everything if job.crashes]
    assert 1 <= len(crashed) <= 50
    assert all(job.claims == 1 + job.crashes and job.errors == 0 for job in everything)
    assert sorted(job.result for job in everything) == list(range(1_000))


async def test_a_job_that_kills_its_worker_three_times_ends_in_failed(place: Place, jobs: Client) -> None:
    enqueued = await jobs.enqueue("deadly", {})
    good = [await jobs.enqueue("short", {"n": n}) for n in range(5)]
    # The supervisor starts a new process each time.
    supervisor = place.worker("--concurrency", "1", "--processes", "2")
    with pytest.raises(jobmill.JobFailed, match="crashed 3 times"):
        await enqueued.result(timeout=60)
    for one in good:
        await one.result(timeout=30)
    job = await enqueued.job()
    assert (job.state, job.crashes, job.errors) == ("failed", 3, 0)
    assert len([id for _, id, _, _ in place.notes() if id == enqueued.id]) == 3
    assert place.said(supervisor).count("SIGKILL") == 3
    supervisor.terminate()
    assert supervisor.wait(20) == 0


async def test_a_worker_stopped_past_its_lease_cannot_settle(place: Place, jobs: Client) -> None:
    gate = place.path / "gate"
    enqueued = await jobs.enqueue("until_file", {"path": str(gate)})
    sleeper = place.worker()
    await until(lambda: place.notes(), 30)
    os.kill(sleeper.pid, signal.SIGSTOP)
    other = place.worker()
    await until(lambda: len(place.notes()) == 2, 30)
    gate.touch()
    assert await enqueued.result(timeout=20) == other.pid
    os.kill(sleeper.pid, signal.SIGCONT)
    # Its handler ends as well, and whatever it says then is refused.
    await until(lambda: ("end", enqueued.id, 1, sleeper.pid) in place.notes(), 20)
    await until(lambda: "is stopped" in place.said(sleeper) or "too late" in place.said(sleeper), 20)
    job = await enqueued.job()
    assert (job.state, job.result, job.claims, job.crashes) == ("succeeded", other.pid, 2, 1)
    # It is alive and well, and goes on with other jobs.
    other.terminate()
    assert other.wait(20) == 0
    assert await (await jobs.enqueue("short", {"n": 7})).result(timeout=20) == 7


async def test_sigterm_waits_for_what_runs_and_ends_with_zero(place: Place, jobs: Client) -> None:
    gate = place.path / "gate"
    enqueued = await jobs.enqueue("until_file", {"path": str(gate)})
    worker = place.worker("--concurrency", "2")
    await until(lambda: place.notes(), 30)
    worker.send_signal(signal.SIGTERM)
    await until(lambda: "stopping" in place.said(worker), 20)
    waiting = [await jobs.enqueue("short", {"n": n}) for n in range(3)]
    gate.touch()
    assert worker.wait(20) == 0
    assert (await enqueued.job()).state == "succeeded"
    # A claim for the free slot may have been in flight; there was no other one after it.
    assert [(await one.job()).state for one in waiting][1:] == ["waiting", "waiting"]


async def test_a_second_signal_releases_at_once(place: Place, jobs: Client) -> None:
    enqueued = await jobs.enqueue("endless", {})
    worker = place.worker("--shutdown-timeout", "60s")
    await until(lambda: place.notes(), 30)
    worker.send_signal(signal.SIGINT)
    # Until it has heard the first one, the second would be the first.
    await until(lambda: "stopping" in place.said(worker), 20)
    worker.send_signal(signal.SIGINT)
    assert worker.wait(20) == 0
    job = await enqueued.job()
    assert (job.state, job.errors, job.crashes, job.claims) == ("waiting", 0, 0, 1)


async def test_several_workers_on_one_file_run_every_job_once(place: Place, jobs: Client) -> None:
    for _ in range(3):
        place.worker("--concurrency", "20")
    for batch in range(10):
        await jobs.enqueue_many([jobs.draft("short", {"n": n}) for n in range(batch, 1_000, 10)])

    async def all_ended() -> bool:
        return (await states(jobs))["succeeded"] == 1_000

    await until(all_ended, 60)
    assert Counter(fence for _, _, fence, _ in place.notes()) == {1: 1_000}
    assert len({pid for *_, pid in place.notes()}) == 3


async def test_a_worker_outlives_a_store_that_is_locked_for_long(place: Place, jobs: Client) -> None:
    worker = place.worker("--lease", "20s")
    assert await (await jobs.enqueue("short", {"n": 1})).result(timeout=20) == 1
    enqueued = await jobs.enqueue("until_file", {"path": str(place.path / "gate")})
    await until(lambda: len(place.notes()) == 2, 20)
    rude = sqlite3.connect(place.path / "jobs.db", isolation_level=None)
    rude.execute("BEGIN EXCLUSIVE")
    (place.path / "gate").touch()
    await until(lambda: "away" in place.said(worker), 30)
    rude.execute("ROLLBACK")
    rude.close()
    # The handler ran once; its settlement was written when the store was back.
    assert await enqueued.result(timeout=20) == worker.pid
    assert (await enqueued.job()).claims == 1


async def test_an_isolated_job_dies_alone(place: Place, jobs: Client) -> None:
    worker = place.worker()
    for how, said in (("segfault", "SIGSEGV"), ("exit", "code 3")):
        with pytest.raises(jobmill.JobFailed, match=said):
            await (await jobs.enqueue("dies_alone", {"how": how})).result(timeout=30)
    assert await (await jobs.enqueue("short", {"n": 3})).result(timeout=20) == 3
    assert worker.poll() is None


PRODUCER = """
import sys, jobmill
jobs = jobmill.connect()
n = 0
while True:
    jobs.sync.enqueue("short", {"n": n}, id=f"job-{n}")
    print(n, flush=True)
    n += 1
"""


async def test_what_was_acknowledged_survives_a_killed_producer(place: Place, jobs: Client) -> None:
    environment = {**os.environ, "JOBMILL_URL": place.url}
    producer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PRODUCER, cwd=ROOT, env=environment, stdout=subprocess.PIPE
    )
    assert producer.stdout is not None
    acknowledged = [int(await asyncio.wait_for(producer.stdout.readline(), 20)) for _ in range(50)]
    producer.kill()
    acknowledged += [int(line) for line in (await producer.stdout.read()).split()]
    await producer.wait()
    for n in acknowledged:
        assert (await jobs.get(f"job-{n}")).payload == {"n": n}
    # At most the one that was on its way is there besides.
    assert len(acknowledged) <= (await states(jobs))["waiting"] <= len(acknowledged) + 1
