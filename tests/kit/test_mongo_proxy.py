"""The proxy before MongoDB: a lost answer is the answer to one command, which has happened."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from pymongo import AsyncMongoClient
from pymongo.errors import ConnectionFailure

from tests.kit.mongo import MongoServer
from tests.kit.proxy import Proxy

pytestmark = pytest.mark.stores("mongo")

Client = AsyncMongoClient[dict[str, object]]


@pytest.fixture
async def proxy(mongo_standalone: MongoServer) -> AsyncIterator[Proxy]:
    async with Proxy(mongo_standalone.port) as proxy:
        yield proxy


@pytest.fixture
async def client(proxy: Proxy, mongo_standalone_url: str) -> AsyncIterator[Client]:
    """A client that repeats nothing by itself, through the proxy."""
    async with Client(proxy.url(mongo_standalone_url), retryWrites=False, retryReads=False) as client:
        yield client


async def test_a_command_whose_answer_is_lost_has_happened(proxy: Proxy, client: Client) -> None:
    things = client.get_default_database().things
    await things.insert_one({"_id": 1})
    proxy.drop_answer(lambda command: command.startswith(b"insert ") and b"wanted" in command)
    await things.insert_one({"_id": 2})
    with pytest.raises(ConnectionFailure):
        await things.insert_one({"_id": 3, "text": "wanted"})
    assert proxy.dropped_answers == 1
    assert await things.count_documents({}) == 3
    await things.insert_one({"_id": 4, "text": "wanted"})  # only once


async def test_a_long_answer_passes_and_a_later_one_is_lost(proxy: Proxy, client: Client) -> None:
    things = client.get_default_database().things
    await things.insert_many([{"_id": n, "text": "x" * 100_000} for n in range(50)])
    proxy.drop_answer(lambda command: command.startswith((b"count ", b"aggregate ")))
    assert len([thing async for thing in things.find()]) == 50
    assert proxy.dropped_answers == 0
    with pytest.raises(ConnectionFailure):
        await things.count_documents({})
    assert proxy.dropped_answers == 1
