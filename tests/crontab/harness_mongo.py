"""The contract's view of MongoDB: documents of a collection, with the originals' field names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection

from jobmill.core.durations import to_datetime
from jobmill.crontab import CrontabJob, Ending, MongoCrontab
from jobmill.testing import ManualClock
from tests.crontab.harness import Kept, OurStore

Document = dict[str, Any]
FIELDS = {
    "sleep_until": "sleepUntil",
    "interval": "interval",
    "repeat_until": "repeatUntil",
    "auto_remove": "autoRemove",
}


class MongoHarness:
    """A new collection; each store has its own client."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._clients: list[AsyncMongoClient[Document]] = []
        self.clock = ManualClock()
        self.collection = self.connected()
        self.store: OurStore = MongoCrontab(self.collection, clock=self.clock)

    def connected(self, **options: Any) -> AsyncCollection[Document]:
        """The collection, through another client."""
        self._clients.append(client := AsyncMongoClient[Document](self._url, tz_aware=True, **options))
        return client.get_default_database()["jobs"]

    async def add(self, id: str, document: Kept) -> None:
        fields = {name: value for field, name in FIELDS.items() if (value := getattr(document, field)) is not None}
        await self.collection.insert_one({"_id": id, "sleepUntil": None, **fields, **(document.data or {})})

    async def kept(self, id: str) -> Kept | None:
        found = await self.collection.find_one({"_id": id})
        if found is None:
            return None
        return Kept(**{field: found[name] for field, name in FIELDS.items() if name in found})

    async def another(self) -> OurStore:
        return MongoCrontab(self.connected(), clock=self.clock)

    async def explain(self, command: Document) -> Document:
        """How the server does a command."""
        return await self.collection.database.command({"explain": command, "verbosity": "executionStats"})

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


def stages(plan: Any) -> Sequence[str]:
    """The names of all stages of a plan, whatever their nesting."""
    if isinstance(plan, list):
        return [name for one in plan for name in stages(one)]
    if not isinstance(plan, dict):
        return []
    own = [plan["stage"]] if "stage" in plan else []
    return own + [name for one in plan.values() for name in stages(one)]


def at(mongo: MongoHarness, seconds: float = 0) -> datetime:
    """This number of seconds after the time of the store."""
    return to_datetime(mongo.clock() + round(seconds * 1_000))


async def put(mongo: MongoHarness, *documents: Document) -> None:
    """Write documents as they are."""
    await mongo.collection.insert_many(documents)


async def get(mongo: MongoHarness, id: object) -> Document:
    """One as it is."""
    found = await mongo.collection.find_one({"_id": id})
    assert found is not None
    return found


def endings(jobs: list[CrontabJob], sleep_until: datetime | None = None, remove: bool = False) -> list[Ending]:
    """All of these end alike."""
    found = []
    for job in jobs:
        assert job.locked_until is not None
        found.append(Ending(id=job.id, locked_until=job.locked_until, sleep_until=sleep_until, remove=remove))
    return found
