"""One collection, Monque processes and a Python application on it, each in processes of their own."""

from __future__ import annotations

import contextlib
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import bson
import pytest
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection

import jobmill
from jobmill import Client
from tests.helpers import until
from tests.interop.monque.monque import Generation
from tests.interop.monque.process import COLLECTION, MonqueProcess
from tests.kit.workers import WorkerProcesses
from tests.stores_under_test import migrated_mongo

Document = dict[str, Any]

#: Run a test with a Monque of each generation; by default only with the newest, as with servers.
generations = pytest.mark.parametrize("generation", [pytest.param(1, marks=pytest.mark.extended), 2])


class Note(NamedTuple):
    """What a Python handler noted; the time is in ms."""

    word: str
    id: str
    fence: int
    at_ms: float


class Scene:
    """`jobs` is our client, `documents` what is there, `worker()` starts a Python worker, `peer()` a Monque."""

    def __init__(
        self, url: str, path: Path, jobs: Client, documents: AsyncCollection[Document], **options: str
    ) -> None:
        self._url = url
        self.jobs = jobs
        self.documents = documents
        self.processes = WorkerProcesses(path, our_url(url, **options))

    @contextlib.asynccontextmanager
    async def peer(self, generation: Generation = 2, **options: Any) -> AsyncIterator[MonqueProcess]:
        """A Monque process that has initialised, with these options."""
        async with MonqueProcess(self._url, generation) as process:
            await process.ask("initialize", **options)
            yield process

    async def worker(self, *args: str) -> subprocess.Popen[bytes]:
        """A Python worker that works."""
        worker = self.processes.start("worker", "tests.interop.monque.app:jobs", *args)

        def is_there() -> bool:
            assert worker.poll() is None, self.processes.output(worker)
            return "concurrency" in self.processes.output(worker)

        await until(is_there, 30)
        return worker

    def notes(self, word: str = "run") -> list[Note]:
        """What Python handlers noted so far."""
        notes = self.processes.folder / "notes"
        whole, _, _ = (notes.read_text() if notes.exists() else "").rpartition("\n")
        parts = map(str.split, whole.splitlines())
        found = [Note(word, id, int(fence), float(at_ms)) for word, id, fence, at_ms in parts]
        return [one for one in found if one.word == word]

    def runs(self) -> Counter[str]:
        """How often we ran each job."""
        return Counter(note.id for note in self.notes())

    async def status(self) -> dict[str, int]:
        """How many documents have each status."""
        groups = await self.documents.aggregate([{"$group": {"_id": "$status", "count": {"$sum": 1}}}])
        return {one["_id"]: one["count"] async for one in groups}

    async def come_to(self, timeout: float = 30, **status: int) -> None:
        """Until all documents have these."""

        async def is_so() -> bool:
            return await self.status() == status

        try:
            await until(is_so, timeout)
        except AssertionError:
            raise AssertionError(f"expected {status} within {timeout:g} s, got {await self.status()}") from None

    async def get(self, id: str) -> Document:
        """One document."""
        found = await self.documents.find_one({"_id": bson.ObjectId(id)})
        assert found is not None, f"no document {id}"
        return found

    async def complaints(self) -> dict[str, list[str]]:
        """What a Monque process would stumble over, by the document's id."""
        async with MonqueProcess(self._url) as peer:
            return dict(await peer.ask("check"))


def our_url(url: str, **options: str) -> str:
    """For us: a foreign claim without a sign for a second is stale."""
    said = {"lock_timeout": "1s", "indexes": "monque"} | options
    return "&".join([url, *(f"{name}={value}" for name, value in said.items())])


@contextlib.asynccontextmanager
async def scene_at(url: str, path: Path, **options: str) -> AsyncIterator[Scene]:
    """Everything that runs ends with the block; `options` are more options of our URL."""
    await migrated_mongo(our_url(url, **options))
    async with (
        AsyncMongoClient[Document](url, tz_aware=True) as client,
        jobmill.connect(our_url(url, **options)) as jobs,
    ):
        made = Scene(url, path, jobs, client.get_default_database()[COLLECTION], **options)
        try:
            yield made
        finally:
            made.processes.end()
