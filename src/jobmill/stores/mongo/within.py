"""Enqueueing within the caller's own transaction: in a client session of pymongo, async or sync.

In a transaction nothing may be refused by an index, for that would end it: what stands in the way is looked for first.
Errors of pymongo stay what they are, so that the caller, and pymongo's `with_transaction`, know what to do.
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
from jobmill.stores.mongo.enqueue import enqueued, made_of, standing
from jobmill.stores.mongo.connection import EVENTS, Document, told_apart
from jobmill.stores.mongo.url import Place
from jobmill.stores.mongo.values import CODEC
from jobmill.stores.mongo.wake import Wakes

EXPECTED = "a client session of pymongo, in a transaction"


class Lent:
    """The collection of the jobs, in an async session."""

    def __init__(self, session: AsyncClientSession, place: Place) -> None:
        self._session = session
        database = session.client.get_database(place.database, codec_options=CODEC)
        self._jobs, self._events = database[place.collection], database[EVENTS]

    async def find(self, query: Document, projection: Document) -> list[Document]:
        """All that match."""
        return await self._jobs.find(query, projection, session=self._session).to_list()

    async def insert(self, made: Sequence[RawBSONDocument]) -> set[int]:
        """Insert all; what an index refuses ends the transaction."""
        await self._jobs.insert_many(made, session=self._session)
        return set()

    async def update(self, query: Document, update: Document) -> bool:
        """Change one; whether there was one."""
        return (await self._jobs.update_one(query, update, session=self._session)).matched_count > 0

    async def tell(self, entries: list[Document]) -> None:
        """Add to the feed."""
        await self._events.insert_many(entries, session=self._session)


class SyncLent:
    """The collection of the jobs, in a session without a loop."""

    def __init__(self, session: ClientSession, place: Place) -> None:
        self._session = session
        database = session.client.get_database(place.database, codec_options=CODEC)
        self._jobs, self._events = database[place.collection], database[EVENTS]

    async def find(self, query: Document, projection: Document) -> list[Document]:
        """All that match."""
        return await asyncio.to_thread(lambda: list(self._jobs.find(query, projection, session=self._session)))

    async def insert(self, made: Sequence[RawBSONDocument]) -> set[int]:
        """Insert all; what an index refuses ends the transaction."""
        await asyncio.to_thread(lambda: self._jobs.insert_many(made, session=self._session))
        return set()

    async def update(self, query: Document, update: Document) -> bool:
        """Change one; whether there was one."""
        done = await asyncio.to_thread(lambda: self._jobs.update_one(query, update, session=self._session))
        return done.matched_count > 0

    async def tell(self, entries: list[Document]) -> None:
        """Add to the feed."""
        await asyncio.to_thread(lambda: self._events.insert_many(entries, session=self._session))


class Within(Wakes):
    """enqueue_within."""

    async def enqueue_within(self, connection: Any, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        """See the port. The caller commits; what another enqueues at the same time is a conflict that pymongo tells."""
        jobs = self._lend(connection)
        now_ms = self.now()
        home = self._place.queue
        made = [made_of(new, now_ms, home) for new in new_jobs]
        receipts = []
        for one in made:
            receipt = await standing(jobs, one, now_ms, home)
            if receipt is None:
                await jobs.insert([one.packed])
                receipt = Receipt(one.new.id, "created")
            receipts.append(receipt)
        self._put_behind()  # by the time the caller commits
        told = enqueued(new_jobs, receipts, now_ms)
        if told:
            # Numbers are taken outside of the transaction, which would else hold up all who tell.
            with told_apart(self._place):
                known = await self._known({event.queue for event in told})
            await self._tell(told, known, jobs.tell)
        return receipts

    def check_unlocked(self) -> None:
        """Nothing to wait for: MongoDB tells of conflicts instead."""

    def _lend(self, session: Any) -> Lent | SyncLent:
        if not isinstance(session, AsyncClientSession | ClientSession):
            raise InvalidValue("within", EXPECTED, session)
        if session.has_ended:
            raise InvalidValue("within", EXPECTED, session, "this one has ended")
        if not session.in_transaction:
            advice = "begin one: async with session.start_transaction(): …"
            if self._is_standalone:
                advice = "this server is in no replica set: it has no transactions"
            raise InvalidValue("within", EXPECTED, session, advice)
        if isinstance(session, ClientSession):
            return SyncLent(session, self._place)
        return Lent(session, self._place)
