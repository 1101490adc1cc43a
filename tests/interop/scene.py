"""One queue, a Node application and a Python application on it, each in processes of their own."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest

import jobmill
from jobmill import Client
from tests.helpers import until
from tests.kit.measure import best_of
from tests.kit.node import NodeProcess, Packages
from tests.kit.workers import WorkerProcesses

QUEUE = "mail"

#: Run a test, or a file, also with BullMQ 5 and in its layout.
versions = pytest.mark.parametrize(
    "bullmq",
    [pytest.param("bullmq", id=pytest.HIDDEN_PARAM), pytest.param("bullmq5", marks=pytest.mark.extended)],
    indirect=True,
    scope="session",
)


class Note(NamedTuple):
    """What a Python handler noted: the id as BullMQ knows it, and the time in ms."""

    word: str
    id: str
    fence: int
    at_ms: float


class Scene:
    """`node` speaks for the Node application, `jobs` is our client, `worker()` starts a Python worker."""

    def __init__(self, url: str, packages: Packages, path: Path, node: NodeProcess, jobs: Client) -> None:
        self.url = url
        self.packages = packages
        self.node = node
        self.jobs = jobs
        self.processes = WorkerProcesses(path, url)

    def worker(self, *args: str) -> subprocess.Popen[bytes]:
        """A Python worker of the queue."""
        queues = [] if "--queue" in args else ["--queue", QUEUE]
        return self.processes.start("worker", "tests.interop.app:jobs", *queues, *args)

    async def ready_worker(self, *args: str) -> subprocess.Popen[bytes]:
        """A Python worker that Node already sees."""
        before = len(await self.node.ask("workers", queue=QUEUE))
        worker = self.worker(*args)

        async def is_seen() -> bool:
            assert worker.poll() is None, self.processes.output(worker)
            return len(await self.node.ask("workers", queue=QUEUE)) > before

        await until(is_seen, 30)
        return worker

    def notes(self) -> list[Note]:
        """What Python handlers noted so far."""
        notes = self.processes.folder / "notes"
        whole, _, _ = (notes.read_text() if notes.exists() else "").rpartition("\n")
        found = []
        for word, id, fence, at_ms in map(str.split, whole.splitlines()):
            found.append(Note(word, id.removeprefix(f"{QUEUE}:"), int(fence), float(at_ms)))
        return found

    async def add(self, name: str = "send", data: object = None, **opts: Any) -> str:
        """A job that Node adds."""
        added = await self.node.ask("add", queue=QUEUE, name=name, data=data or {}, opts=opts)
        return str(added["id"])

    async def get(self, id: str, queue: str = QUEUE) -> dict[str, Any]:
        """A job as Node sees it."""
        job = await self.node.ask("get", queue=queue, job=id)
        assert job is not None, f"Node finds no job {id}"
        return dict(job)

    async def ended(self, id: str, queue: str = QUEUE, state: str = "completed", timeout: float = 20) -> dict[str, Any]:
        """A job as Node sees it once it is in this state."""

        async def has_ended() -> bool:
            return bool((await self.get(id, queue))["state"] == state)

        await until(has_ended, timeout)
        return await self.get(id, queue)

    async def counts(self, queue: str = QUEUE) -> dict[str, int]:
        """How many jobs are where, without zeros, as Node sees it."""
        counts = await self.node.ask("counts", queue=queue)
        return {state: count for state, count in counts.items() if count}

    @contextlib.asynccontextmanager
    async def another_node(self, library: str = "bullmq") -> AsyncIterator[NodeProcess]:
        """A second Node application."""
        async with NodeProcess(self.packages, "peer.mjs", *node_place(self.url), library) as node:
            yield node


def node_place(url: str) -> tuple[str, str]:
    """The URL for Node, and the prefix."""
    parts = urlsplit(url)
    (prefix,) = parse_qs(parts.query).get("prefix", ["bull"])
    return parts._replace(query="").geturl(), prefix


def in_layout(url: str, library: str) -> str:
    """The URL for Python beside this BullMQ."""
    return f"{url}&layout=5" if library == "bullmq5" else url


@contextlib.asynccontextmanager
async def scene_at(url: str, packages: Packages, path: Path, library: str = "bullmq") -> AsyncIterator[Scene]:
    """Everything that runs ends with the block."""
    async with NodeProcess(packages, "peer.mjs", *node_place(url), library) as node, jobmill.connect(url) as jobs:
        made = Scene(url, packages, path, node, jobs)
        try:
            yield made
        finally:
            made.processes.end()


def longer_than(*waits: tuple[float, float]) -> float:
    """Of waits and what was asked for: how many times as long the longest was. None may be shorter."""
    assert all(wait >= asked for wait, asked in waits), waits
    return max(wait / asked for wait, asked in waits)


async def is_quick(measure: Callable[[], Awaitable[list[float]]], most_ms: float = 20) -> None:
    """In the median of the best try."""

    async def median() -> float:
        return statistics.median(await measure())

    assert await best_of(median, below=most_ms) < most_ms
