"""The MongoDB store for the contract."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pymongo
from bson import MinKey

from jobmill.store import Store
from jobmill.stores.mongo import MongoStore
from jobmill.stores.mongo.ids import object_id
from jobmill.stores.mongo.url import MongoUrl
from jobmill.testing import ManualClock


class MongoHarness:
    """A database, which processes share, with transactions."""

    def __init__(self, url: str) -> None:
        self.clock = ManualClock()
        self.url = url
        self.store: Store = MongoStore(url, clock=self.clock)

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def another(self) -> Store:
        store = MongoStore(self.url, clock=self.clock)
        await store.open()
        return store

    async def corrupt(self, id: str) -> None:
        place = MongoUrl.read(self.url)
        known = object_id(id)
        async with pymongo.AsyncMongoClient[dict[str, Any]](place.driver_url) as client:
            jobs = client[place.database][place.collection]
            query: dict[str, Any] = {"jobmill.id": id} if known is None else {"_id": known}
            # A value that no JSON has.
            await jobs.update_one(query, {"$set": {"data": {"garbage": MinKey()}}})

    @property
    def opener(self) -> Callable[[], Store]:
        return functools.partial(MongoStore, self.url)

    async def begin(self) -> Any:
        client = pymongo.AsyncMongoClient[dict[str, Any]](MongoUrl.read(self.url).driver_url)
        session = client.start_session()
        await session.start_transaction()
        return session

    async def commit(self, connection: Any) -> None:
        await connection.commit_transaction()
        await self._give_back(connection)

    async def rollback(self, connection: Any) -> None:
        await connection.abort_transaction()
        await self._give_back(connection)

    async def _give_back(self, session: Any) -> None:
        await session.end_session()
        await session.client.close()
