"""Enqueueing in the caller's own transaction: in a client session of pymongo, async or sync.

In a transaction a unique index must not refuse anything, because that would end it: conflicts are searched for first.
Errors of pymongo are not translated, so that the caller, and pymongo's `with_transaction`, can handle them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from bson.raw_bson import RawBSONDocument
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.synchronous.client_session import ClientSession

from jobmill.core.values import NewJob, Receipt
from jobmill.errors import InvalidValue
from jobmill.stores.mongo.codec import CODEC, Document
from jobmill.stores.mongo.connection import EVENTS, translated_errors
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.enqueue import conflict, encoded, enqueued_events
from jobmill.stores.mongo.feed import publish
from jobmill.stores.mongo.queues import queue_states
from jobmill.stores.mongo.url import MongoUrl

EXPECTED = "a client session of pymongo, in a transaction"


class SessionCollection:
    """The collection of jobs in an async session."""

    def __init__(self, session: AsyncClientSession, url: MongoUrl) -> None:
        self._session = session
        database = session.client.get_database(url.database, codec_options=CODEC)
        self._jobs, self._events = database[url.collection], database[EVENTS]

    async def find(self, query: Document, projection: Document) -> list[Document]:
        """All that match."""
        return await self._jobs.find(query, projection, session=self._session).to_list()

    async def insert(self, documents: Sequence[RawBSONDocument]) -> set[int]:
        """Insert all; a unique index that refuses one ends the transaction."""
        await self._jobs.insert_many(documents, session=self._session)
        return set()

    async def update(self, query: Document, update: Document) -> bool:
        """Change one; whether one matched."""
        return (await self._jobs.update_one(query, update, session=self._session)).matched_count > 0

    async def insert_events(self, entries: list[Document]) -> None:
        """Add to the feed."""
        await self._events.insert_many(entries, session=self._session)


class SyncSessionCollection:
    """The collection of jobs in a session without an event loop."""

    def __init__(self, session: ClientSession, url: MongoUrl) -> None:
        self._session = session
        database = session.client.get_database(url.database, codec_options=CODEC)
        self._jobs, self._events = database[url.collection], database[EVENTS]

    async def find(self, query: Document, projection: Document) -> list[Document]:
        """All that match."""
        return await asyncio.to_thread(lambda: list(self._jobs.find(query, projection, session=self._session)))

    async def insert(self, documents: Sequence[RawBSONDocument]) -> set[int]:
        """Insert all; a unique index that refuses one ends the transaction."""
        await asyncio.to_thread(lambda: self._jobs.insert_many(documents, session=self._session))
        return set()

    async def update(self, query: Document, update: Document) -> bool:
        """Change one; whether one matched."""
        done = await asyncio.to_thread(lambda: self._jobs.update_one(query, update, session=self._session))
        return done.matched_count > 0

    async def insert_events(self, entries: list[Document]) -> None:
        """Add to the feed."""
        await asyncio.to_thread(lambda: self._events.insert_many(entries, session=self._session))


async def enqueue_within(ctx: MongoContext, session: Any, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    """See the port. The caller commits; a conflict with another transaction is pymongo's error."""
    collection = _collection(ctx, session)
    now_ms, home = ctx.now(), ctx.url.queue
    receipts = []
    for one in [encoded(new, now_ms, home) for new in new_jobs]:
        receipt = await conflict(collection, one, now_ms, home)
        if receipt is None:
            await collection.insert([one.packed])
            receipt = Receipt(one.new.id, "created")
        receipts.append(receipt)
    ctx.claims.cursor.rewind()
    events = enqueued_events(new_jobs, receipts, now_ms)
    if events:
        # Numbers of events are taken outside the transaction, which would otherwise block all other writers.
        with translated_errors(ctx.url):
            states = await queue_states(ctx, {event.queue for event in events})
        await publish(ctx, events, states, collection.insert_events)
    return receipts


def _collection(ctx: MongoContext, session: Any) -> SessionCollection | SyncSessionCollection:
    if not isinstance(session, AsyncClientSession | ClientSession):
        raise InvalidValue("within", EXPECTED, session)
    if session.has_ended:
        raise InvalidValue("within", EXPECTED, session, "this one has ended")
    if not session.in_transaction:
        advice = "begin one: async with session.start_transaction(): …"
        if ctx.is_standalone:
            advice = "this server is in no replica set: it has no transactions"
        raise InvalidValue("within", EXPECTED, session, advice)
    if isinstance(session, ClientSession):
        return SyncSessionCollection(session, ctx.url)
    return SessionCollection(session, ctx.url)
