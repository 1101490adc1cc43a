"""Enqueueing in the caller's own transaction: in a client session of pymongo, async or sync.

In a transaction a unique index must not refuse anything, because that would end it: conflicts are searched for first.
Errors of pymongo are not translated, so that the caller, and pymongo's `with_transaction`, can handle them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import bson
from bson import ObjectId
from msgspec import Struct
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.synchronous.client_session import ClientSession

from jobmill.core.changes import Subject, resolved
from jobmill.core.events import Event, enqueued_events
from jobmill.core.flows import edge_to, live_dependency, verdict
from jobmill.core.values import NewJob, Receipt
from jobmill.errors import InvalidValue, StoreUnavailable
from jobmill.stores.mongo.codec import CODEC, FINAL, WITHOUT_PAYLOAD, Document, id_of, is_known, update_of
from jobmill.stores.mongo.connection import EDGES, EVENTS, translated_errors
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.edges import dependency_of, new_edge
from jobmill.stores.mongo.enqueue import WantedEdges, check_found, check_recurring
from jobmill.stores.mongo.feed import publish
from jobmill.stores.mongo.ids import new_object_id, object_id
from jobmill.stores.mongo.insert import EncodedJob, JobsCollection, conflict, encoded, in_session
from jobmill.stores.mongo.patches import Decided, patch_fields
from jobmill.stores.mongo.queues import limits_of
from jobmill.stores.mongo.url import MongoUrl

EXPECTED = "a client session of pymongo, in a transaction"


async def enqueue_within(ctx: MongoContext, session: Any, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    """See the port. The caller commits; a conflict with another transaction is pymongo's error."""
    _check(ctx, session)
    database = session.client.get_database(ctx.url.database, codec_options=CODEC)
    collection = JobsCollection(database[ctx.url.collection], session)
    now_ms, url = ctx.now(), ctx.url
    transaction = _Transaction(ctx, collection, database[EDGES], session)
    awaited, pin = {after.id for new in new_jobs for after in new.after}, new_object_id()
    outside = check_recurring(new_jobs, awaited)
    old = await transaction.ended(outside) if outside else {}
    pins = {"hasDependents": pin, "outbox": True}
    edits = [(lambda one: one["jobmill"].update(pins)) if new.id in awaited else None for new in new_jobs]
    jobs = [encoded(new, now_ms, url, edit) for new, edit in zip(new_jobs, edits, strict=True)]
    receipts = [await _insert_one(collection, one, now_ms, url) for one in jobs]
    released = await transaction.connect(jobs, receipts, old, pin, now_ms) if awaited else []
    ctx.claims.cursor.rewind()
    events = [*enqueued_events(new_jobs, receipts, now_ms), *released]
    if events:
        # Numbers of events are taken outside the transaction, which would otherwise block all other writers.
        with translated_errors(ctx.url):
            limits = await limits_of(ctx, {event.queue for event in events})
        await publish(ctx, events, limits, partial(_insert, database[EVENTS], session))
    return receipts


async def _insert(collection: Any, session: Any, entries: list[Document]) -> None:
    await in_session(session, lambda: collection.insert_many(entries, session=session))


async def _insert_one(collection: JobsCollection, one: EncodedJob, now_ms: int, url: MongoUrl) -> Receipt:
    receipt = await conflict(collection, one, now_ms, url)
    if isinstance(receipt, ObjectId):
        raise StoreUnavailable(f"another call is enqueueing the job {one.new.id} at this moment; try again")
    if receipt is None:
        await collection.insert(one.packed)
    return receipt or Receipt(one.new.id, "created")


class _Transaction(Struct, frozen=True):
    """Where edges are written that a caller's transaction commits, together with their jobs."""

    ctx: MongoContext
    jobs: JobsCollection
    edges: Any
    session: Any

    async def ended(self, ids: Mapping[str, str]) -> dict[str, Document]:
        """Jobs of others that new jobs wait for. They must have ended: their workers cannot settle locked documents."""
        known = [object_id(id) for id in ids if object_id(id) is not None]
        query = {"$or": [{"_id": {"$in": known}}, {"jobmill.id": {"$in": list(ids)}}]}
        found = {id_of(one): one for one in await self.jobs.find(query, WITHOUT_PAYLOAD) if is_known(one)}
        for id, document in check_found(self.ctx, ids, found).items():
            if document["status"] not in FINAL:
                raise live_dependency(ids[id])
        return found

    async def connect(
        self,
        jobs: Sequence[EncodedJob],
        receipts: Sequence[Receipt],
        old: dict[str, Document],
        pin: ObjectId,
        now_ms: int,
    ) -> list[Event]:
        """Insert edges, and release the jobs that need not wait; what to publish."""
        new = WantedEdges.of(jobs, receipts)
        try:
            old = old | (await self.ended(more) if (more := new.old(old)) else {})
        except InvalidValue:
            await self.jobs.delete(list(new.created.values()))  # the caller may still commit
            raise
        edges: dict[ObjectId, list[Document]] = {}
        for job, number, after in new.wanted:
            on = new.created.get(after.id) or old[after.id]["_id"]
            edge = new_edge(self.ctx, job, number, after, on, 0)
            if after.id in old:
                ended = edge_to(number, after, self.ctx.job(old[after.id]))
                edge |= {"state": ended.state, "error": ended.error, "open": False}
            edges.setdefault(job, []).append(edge)
        for on in {one["_id"] for one in old.values()}:
            await self.jobs.update({"_id": on}, {"$set": {"jobmill.hasDependents": pin}})
        if edges:
            await _insert(self.edges, self.session, [edge for some in edges.values() for edge in some])
        by_id = {one.id: one for one in jobs}
        return [event for id, some in edges.items() for event in await self._release(by_id[id], some, now_ms)]

    async def _release(self, one: EncodedJob, edges: Sequence[Document], now_ms: int) -> Sequence[Event]:
        document = bson.decode(one.packed.raw, CODEC)
        job = self.ctx.job(document)
        patch = resolved(Subject.of(job), verdict(map(dependency_of, edges)), now_ms)
        if patch is None:
            return ()
        await self.jobs.update(
            {"_id": one.id}, update_of(patch_fields(self.ctx, Decided(document, job, patch), now_ms))
        )
        return patch.events


def _check(ctx: MongoContext, session: Any) -> None:
    if not isinstance(session, AsyncClientSession | ClientSession):
        raise InvalidValue("within", EXPECTED, session)
    if session.has_ended:
        raise InvalidValue("within", EXPECTED, session, "this one has ended")
    if not session.in_transaction:
        advice = "begin one: async with session.start_transaction(): …"
        if ctx.is_standalone:
            advice = "this server is in no replica set: it has no transactions"
        raise InvalidValue("within", EXPECTED, session, advice)
