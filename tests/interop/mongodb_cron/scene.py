"""One collection, with processes of mongodb-cron and of ours on it."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection

from tests.helpers import until
from tests.kit.node import NodeProcess, Packages, TalkingProcess

ROOT = Path(__file__).parents[3]
COLLECTION = "crontab"
Document = dict[str, Any]

#: Our words for a field's path, and mongodb-cron's.
PATHS = {
    "sleep_until": "sleepUntilFieldPath",
    "interval": "intervalFieldPath",
    "repeat_until": "repeatUntilFieldPath",
    "auto_remove": "autoRemoveFieldPath",
}


class Scene:
    """`theirs()` and `ours()` are processes that work the collection, `documents`."""

    def __init__(self, url: str, packages: Packages, documents: AsyncCollection[Document]) -> None:
        self._url = url
        self._packages = packages
        self.documents = documents
        #: Of both: what they are told at the start.
        self.paths: Mapping[str, str] = {}
        self.condition: Document | None = None
        self.lock_ms = 60_000
        self.idle_ms = 10

    @contextlib.asynccontextmanager
    async def theirs(self, workers: int = 1) -> AsyncIterator[TalkingProcess]:
        """So many schedulers of mongodb-cron in a process."""
        config: Document = {"lockDuration": self.lock_ms, "idleDelay": self.idle_ms}
        config |= {PATHS[field]: path for field, path in self.paths.items()}
        if self.condition:
            config["condition"] = self.condition
        async with NodeProcess(self._packages, "mongodb_cron.mjs", self._url, COLLECTION) as process:
            await process.ask("start", workers=workers, config=config)
            yield process

    @contextlib.asynccontextmanager
    async def ours(self, workers: int = 1) -> AsyncIterator[TalkingProcess]:
        """A crontab of this concurrency in a process."""
        config = {
            "lock_duration": f"{self.lock_ms}ms",
            "idle_delay": f"{self.idle_ms}ms",
            "concurrency": workers,
        }
        store = {**self.paths, "condition": self.condition}
        command = [sys.executable, "-m", "tests.interop.mongodb_cron.peer", self._url, COLLECTION]
        async with TalkingProcess("our crontab", command, ROOT) as process:
            await process.ask("start", config=config, store=store)
            yield process

    async def ended(self, timeout: float = 60) -> None:
        """Until no document is due, or will be."""
        path = self.paths.get("sleep_until", "sleepUntil")

        async def is_over() -> bool:
            return await self.documents.find_one({path: {"$ne": None}}) is None

        await until(is_over, timeout)


def runs(*processes: TalkingProcess) -> Counter[Any]:
    """How often each document ran there."""
    return Counter(event["job"] for process in processes for event in process.events if event["event"] == "run")


def slots(*processes: TalkingProcess) -> dict[Any, list[tuple[int, int]]]:
    """The slots that each document ran at there, in order, and when that ended."""
    found: dict[Any, list[tuple[int, int]]] = {}
    for process in processes:
        for event in process.events:
            if event["event"] == "end":
                found.setdefault(event["job"], []).append((event["slot"], event["at"]))
    return {job: sorted(all) for job, all in found.items()}


def errors(*processes: TalkingProcess) -> list[str]:
    """What on_error was told."""
    return [event["text"] for process in processes for event in process.events if event["event"] == "error"]


@contextlib.asynccontextmanager
async def scene_at(url: str, packages: Packages) -> AsyncIterator[Scene]:
    """The processes end with their own blocks."""
    async with AsyncMongoClient[Document](url, tz_aware=True) as client:
        yield Scene(url, packages, client.get_default_database()[COLLECTION])
