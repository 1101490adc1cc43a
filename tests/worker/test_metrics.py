"""`/metrics` of real workers, as Prometheus' own parser and promtool read it."""

from __future__ import annotations

import asyncio
import platform
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import jobmill
from jobmill import Client
from jobmill.core.values import NewJob, Receipt
from jobmill.metrics.histogram import Histogram
from jobmill.metrics.text import family, histograms
from jobmill.worker import counts
from jobmill.worker.counts import Counts
from jobmill.worker.metrics import _of_jobs
from tests.docs.pages import ROOT, code_of, spans, table
from tests.helpers import until
from tests.kit.places import free_port
from tests.kit.promtool import promtool
from tests.kit.scrape import Metrics, ask, scrape, suspend
from tests.kit.workers import WorkerProcesses

APP = r"""
import asyncio, os, pathlib, time
import jobmill

jobs = jobmill.connect()
here = pathlib.Path(os.environ["NOTES_DIR"])

@jobs.handler(queue="mail")
async def good() -> None:
    await asyncio.sleep(0.02)

@jobs.handler(max_attempts=2, backoff="1ms")
async def bad() -> None:
    raise RuntimeError("no paper for tenant-9")

@jobs.handler
async def naps(context: jobmill.Context) -> None:
    if context.fence == 1:
        raise jobmill.Snooze("1ms")

@jobs.handler(name='q"uo\\te')
def fans() -> None:
    jobs.sync.enqueue("good", queue="mail", id="twice")
    jobs.sync.enqueue("good", queue="mail", id="twice")
    for n in range(3):
        jobs.sync.enqueue(f"elsewhere-{n}", tenant="tenant-9")

@jobs.handler
async def endless() -> None:
    (here / "runs").touch()
    await asyncio.Event().wait()

@jobs.handler(max_crashes=9)
async def dies(context: jobmill.Context) -> None:
    if context.fence == 1:
        os.kill(os.getpid(), 9)
"""


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[WorkerProcesses]:
    made = WorkerProcesses(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}")
    (tmp_path / "app.py").write_text(APP)
    yield made
    made.end()


@pytest.fixture
async def jobs(workers: WorkerProcesses) -> AsyncIterator[Client]:
    async with jobmill.connect(workers.url) as client:
        yield client


def start(workers: WorkerProcesses, *args: str) -> int:
    """A worker; its port."""
    port = free_port()
    workers.start("worker", f"{workers.folder / 'app.py'}:jobs", "--health", str(port), *args)
    return port


@pytest.mark.slow
@pytest.mark.stores("sqlite")
async def test_a_worker_counts_what_it_did(workers: WorkerProcesses, jobs: Client) -> None:
    port = start(workers, "--concurrency", "7", "--lease", "2s")
    await until(lambda: ask(port, "/readyz") is not None, 30)
    before = scrape(port)
    assert before("jobmill_runs_total", queue="default", name="bad", outcome="errored") == 0, "seen before it grows"
    for name in ("bad", "naps", 'q"uo\\te'):
        await jobs.enqueue(name)
    held = await jobs.enqueue("endless")
    await until((workers.folder / "runs").exists, 20)
    await until(lambda: scrape(port)("jobmill_running") == 1, 20)
    await jobs.cancel(held.id)
    await until(lambda: scrape(port).sum("jobmill_runs_total", outcome="cancelled") == 1, 20)
    await until(lambda: scrape(port).sum("jobmill_jobs_finished_total") == 4, 20)

    metrics = scrape(port)
    ran = {
        (name, outcome): metrics("jobmill_runs_total", queue=queue, name=name, outcome=outcome)
        for queue, name, outcome in [
            ("mail", "good", "succeeded"),
            ("default", "bad", "errored"),
            ("default", "bad", "succeeded"),
            ("default", "naps", "snoozed"),
            ("default", "naps", "succeeded"),
            ("default", "endless", "cancelled"),
        ]
    }
    assert list(ran.values()) == [1, 2, 0, 1, 1, 1], ran
    assert metrics.sum("jobmill_runs_total") == 7
    assert metrics("jobmill_jobs_finished_total", queue="default", name="bad", state="failed") == 1
    assert metrics("jobmill_jobs_finished_total", queue="default", name="naps", state="succeeded") == 1
    assert metrics("jobmill_run_seconds_count", queue="default", name="bad") == 2
    assert 0.015 <= (metrics("jobmill_run_seconds_sum", queue="mail", name="good") or 0) < 5
    assert metrics("jobmill_run_seconds_bucket", queue="mail", name="good", le="0.01") == 0
    assert metrics("jobmill_run_seconds_bucket", queue="mail", name="good", le="+Inf") == 1
    assert metrics("jobmill_wait_seconds_count", queue="default", name="naps") == 2
    assert metrics("jobmill_enqueued_total", queue="mail", name="good", status="created") == 1
    assert metrics("jobmill_enqueued_total", queue="mail", name="good", status="exists") == 1
    assert metrics("jobmill_enqueued_total", queue="default", name="other", status="created") == 3
    assert metrics("jobmill_concurrency") == 7
    assert metrics("jobmill_running") == 0
    assert metrics("jobmill_store_up") == 1
    assert metrics("jobmill_leases_lost_total") == 0
    assert metrics("jobmill_settlements_refused_total") == metrics("jobmill_outbox_flushed_total") == 0
    assert abs(metrics("jobmill_store_clock_skew_seconds") or 0) < 1
    assert (metrics("jobmill_exchange_seconds_count") or 0) >= 4
    assert metrics("jobmill_exchange_jobs_count") == metrics("jobmill_exchange_seconds_count")
    # Each of 7 runs is claimed and settled, but for the cancelled one.
    assert metrics("jobmill_exchange_jobs_sum") == 13
    assert metrics.labels("loop") == {"announcer", "exchanger 1", "heartbeat", "outbox", "reporter"}
    build = {"version": jobmill.__version__, "store": "sqlite", "python": platform.python_version()}
    assert metrics("jobmill_build_info", **build) == 1
    # No id, no tenant, no text of an error; no name that this worker does not know.
    for secret in ("tenant-9", "paper", "elsewhere", "twice", held.id):
        assert secret not in metrics.text
    assert metrics.labels("name") == {"good", "bad", "naps", 'q"uo\\te', "endless", "dies", "other"}
    assert promtool("check", "metrics", stdin=metrics.text) == (0, "")


@pytest.mark.slow
@pytest.mark.stores("sqlite")
async def test_a_crash_is_counted_by_the_worker_that_takes_the_job_over(workers: WorkerProcesses, jobs: Client) -> None:
    start(workers, "--lease", "500ms")
    enqueued = await jobs.enqueue("dies")
    assert workers.processes[0].wait(30) == -signal.SIGKILL
    port = start(workers, "--lease", "500ms")
    await enqueued.result(timeout=30)
    await until(lambda: scrape(port).sum("jobmill_jobs_finished_total") == 1, 20)
    metrics = scrape(port)
    runs = {
        outcome: metrics("jobmill_runs_total", queue="default", name="dies", outcome=outcome)
        for outcome in ("succeeded", *counts.OUTCOMES)
    }
    assert {outcome: count for outcome, count in runs.items() if count} == {"crashed": 1, "succeeded": 1}
    assert metrics("jobmill_wait_seconds_count", queue="default", name="dies") == 0, "it had waited before the crash"


@pytest.mark.slow
@pytest.mark.stores("sqlite")
async def test_a_suspended_worker_counts_lost_leases(workers: WorkerProcesses, jobs: Client) -> None:
    port = start(workers, "--lease", "2s")
    await jobs.enqueue("endless")
    await until((workers.folder / "runs").exists, 20)
    (first,) = workers.processes
    suspend(first, workers.url)
    (workers.folder / "runs").unlink()
    start(workers, "--lease", "2s")
    await until((workers.folder / "runs").exists, 30)
    first.send_signal(signal.SIGCONT)
    await until(lambda: scrape(port)("jobmill_leases_lost_total") == 1, 20)
    assert scrape(port)("jobmill_runs_total", queue="default", name="endless", outcome="lost") == 1
    assert scrape(port)("jobmill_run_seconds_count", queue="default", name="endless") == 1


@pytest.mark.slow
@pytest.mark.stores("redis")
async def test_a_worker_that_waits_for_its_store_says_so(workers: WorkerProcesses) -> None:
    workers.url = f"redis://127.0.0.1:{free_port()}"
    port = start(workers)
    await until(lambda: ask(port, "/livez") is not None, 30)
    metrics = scrape(port)
    assert metrics("jobmill_store_up") == 0
    assert metrics("jobmill_store_clock_skew_seconds") is None


def test_labels_and_help_are_escaped() -> None:
    name = 'a"b\\c\nd'
    text = family("jobmill_x_total", "counter", "One\nline \\ only.", [({"name": name}, 2)])
    assert text == (
        "# HELP jobmill_x_total One\\nline \\\\ only.\n"
        "# TYPE jobmill_x_total counter\n"
        'jobmill_x_total{name="a\\"b\\\\c\\nd"} 2\n'
    )
    assert Metrics(text)("jobmill_x_total", name=name) == 2


def test_histograms_are_cumulative_and_bounds_are_inclusive() -> None:
    histogram = Histogram((0.5, 1, 300))
    for value in (0.5, 0.6, 1, 2, 1000):
        histogram.values.append(value)
    metrics = Metrics(histograms("jobmill_x_seconds", "X.", [({"a": "b"}, histogram)]))
    buckets = [metrics("jobmill_x_seconds_bucket", a="b", le=le) for le in ("0.5", "1", "300", "+Inf")]
    assert buckets == [1, 3, 4, 5]
    assert metrics("jobmill_x_seconds_count", a="b") == 5
    assert metrics("jobmill_x_seconds_sum", a="b") == 1004.1


def test_the_number_of_series_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "MAX_QUEUES", 10)
    client = jobmill.connect("memory://")

    @client.handler
    def send() -> None: ...

    queues = ("default", *(f"own-{n}" for n in range(20)))
    counted = Counts(client.handlers, queues)
    for n in range(100):
        new_job = NewJob(id=str(n), name=("send", f"name-{n}")[n % 2], queue=f"customer-{n}", payload_json=b"{}")
        counted.enqueued([new_job, new_job], [Receipt("x", "created"), Receipt("x", "exists")])
    assert list(counted.series) == ["default", *(f"customer-{n}" for n in range(4)), "other"]
    assert {name: one.enqueued["exists"] for name, one in counted.series["other"].items()} == {"send": 48, "other": 48}
    assert not any(counted.series["default"]["send"].enqueued.values())
    for queue in queues:
        counted.series_of(queue, "send").runs["crashed"] += 1
    assert len(counted.series) == 10
    metrics = Metrics("".join(_of_jobs(counted, queues)))
    assert metrics.sum("jobmill_runs_total", outcome="crashed") == 21, "none is left out"
    assert metrics("jobmill_runs_total", queue="other", name="send", outcome="crashed") == 16
    assert metrics("jobmill_runs_total", queue="customer-1", name="other", outcome="crashed") is None


async def test_the_page_names_the_metrics_with_their_types_and_labels() -> None:
    client = jobmill.connect("memory://")

    @client.handler
    async def send() -> None: ...

    async with client, jobmill.Worker(client, health=0) as worker:
        await send.enqueue()
        assert worker._health is not None
        port = worker._health.port
        text = (await asyncio.to_thread(scrape, port)).text
    exported = {
        (
            family.name + "_total" * (family.type == "counter"),
            family.type,
            tuple(label for label in family.samples[0].labels if label != "le"),
        )
        for family in text_string_to_metric_families(text)
    }
    page = table(ROOT / "docs/metrics.md", "Metrics", "metric")
    assert {(code_of(row["metric"]), row["type"], tuple(spans(row["labels"]))) for row in page} == exported
