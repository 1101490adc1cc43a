"""A store with workers and `jobmill metrics`, as processes."""

from __future__ import annotations

import datetime
from pathlib import Path

from jobmill import Client
from tests.helpers import until
from tests.kit.places import free_port
from tests.kit.scrape import ask, scrape
from tests.kit.workers import WorkerProcesses

APP = r"""
import asyncio, os, pathlib
import jobmill

jobs = jobmill.connect()
here = pathlib.Path(os.environ["NOTES_DIR"])

@jobs.handler(keep_succeeded="1ms")
async def good() -> None: ...

@jobs.handler(max_attempts=1)
async def bad() -> None:
    raise RuntimeError("no paper")

@jobs.handler(max_crashes=9)
async def dies(context: jobmill.Context) -> None:
    if context.fence == 1:
        os.kill(os.getpid(), 9)

@jobs.handler
async def fans() -> None:
    await jobs.enqueue("good")

@jobs.handler(queue="slow")
async def endless() -> None:
    (here / "runs").touch()
    await asyncio.Event().wait()
"""


class Site:
    """Workers of one store and its exporter."""

    def __init__(self, folder: Path, jobs: Client, workers: WorkerProcesses) -> None:
        self.folder, self.jobs, self.workers = folder, jobs, workers
        self.metrics_port = 0

    async def worker(self, *args: str) -> int:
        """Start a worker; its port."""
        port = free_port()
        self.workers.start("worker", f"{self.folder / 'app.py'}:jobs", "--health", str(port), *args)
        await until(lambda: (answer := ask(port, "/readyz")) is not None and answer.status == 200, 30)
        return port

    async def exported(self) -> str:
        """The metrics of the whole store."""
        if not self.metrics_port:
            self.metrics_port = free_port()
            self.workers.start("metrics", "--port", str(self.metrics_port))
            await until(lambda: ask(self.metrics_port, "/livez") is not None, 30)
        return scrape(self.metrics_port).text

    async def ran(self, port: int, runs: int) -> str:
        """The metrics of a worker that has ended this many runs."""
        await until(lambda: scrape(port).sum("jobmill_runs_total") >= runs, 30)
        return scrape(port).text


def ten_minutes_ago() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=10)
