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

from jobmill.core.changes import Cancel, Patch, Subject, decide, kept, resolved
from jobmill.core.events import Event, enqueued_events
from jobmill.core.flows import edge_to, live_dependency, verdict
from jobmill.core.unique_policy import Replace
from jobmill.core.values import NewJob, Receipt
from jobmill.errors import InvalidValue, StoreUnavailable
from jobmill.stores.mongo.codec import (
    CODEC,
    FINAL,
    WITHOUT_PAYLOAD,
    Document,
    after_commit,
    date,
    id_of,
    is_known,
    update_of,
)
from jobmill.stores.mongo.connection import EDGES, EVENTS, TAKEN_KEYS, BoundCollection, in_session, translated_errors
from jobmill.stores.mongo.context import MongoContext, with_ids
from jobmill.stores.mongo.edges import dependency_of, new_edge
from jobmill.stores.mongo.enqueue import WantedEdges, check_found, check_recurring
from jobmill.stores.mongo.feed import publish
from jobmill.stores.mongo.ids import new_object_id
from jobmill.stores.mongo.insert import EncodedJob, conflict, replace_payload
from jobmill.stores.mongo.lane_settings import note_lanes
from jobmill.stores.mongo.patches import Decided, patch_fields, subject_of
from jobmill.stores.mongo.queues import limits_of
from jobmill.stores.mongo.taken_keys import free, take, taken_by
from jobmill.stores.mongo.unique_policy import WITHOUT_KEY, Obstacle, Owned, encoded_by_policy, look

EXPECTED = "a client session of pymongo, in a transaction"


async def enqueue_within(ctx: MongoContext, session: Any, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    """See the port. The caller commits; a conflict with another transaction is pymongo's error."""
    _check(ctx, session)
    database = session.client.get_database(ctx.url.database, codec_options=CODEC)
    now_ms, url = ctx.now(), ctx.url
    collection, taken_keys = (BoundCollection(database[name], session) for name in (url.collection, TAKEN_KEYS))
    transaction = _Transaction(ctx, collection, database[EDGES], taken_keys, session)
    awaited, pin = {after.id for new in new_jobs for after in new.after}, new_object_id()
    outside = check_recurring(new_jobs, awaited)
    old = await transaction.ended(outside) if outside else {}
    pins = {"hasDependents": pin, "outbox": True}
    if any(new.lane for new in new_jobs):
        with translated_errors(ctx.url):
            await note_lanes(ctx, new_jobs)
    jobs = [
        encoded_by_policy(new, now_ms, url, _turn(new, now_ms) | (pins if new.id in awaited else {}))
        for new in new_jobs
    ]
    receipts: list[Receipt] = []
    events: list[Event] = []
    for one in jobs:
        receipt, cancelled = await transaction.insert(one, now_ms)
        receipts.append(receipt)
        events += [*cancelled, *enqueued_events([one.new], [receipt], now_ms)]
    events += await transaction.connect(jobs, receipts, old, pin, now_ms) if awaited else []
    ctx.claims.cursor.rewind()
    if events:
        # Numbers of events are taken outside the transaction, which would otherwise block all other writers.
        with translated_errors(ctx.url):
            limits = await limits_of(ctx, {event.queue for event in events})
        await publish(ctx, events, limits, partial(_insert, database[EVENTS], session))
    return receipts


async def _insert(collection: Any, session: Any, entries: list[Document]) -> None:
    await in_session(session, lambda: collection.insert_many(entries, session=session))


class _Transaction(Struct, frozen=True):
    """Where jobs are written that a caller's transaction commits, together with their edges and keys."""

    ctx: MongoContext
    jobs: BoundCollection
    edges: Any
    taken_keys: BoundCollection
    session: Any

    async def insert(self, one: EncodedJob, now_ms: int) -> tuple[Receipt, Sequence[Event]]:
        """Insert a job if nothing stands in its way; its receipt, and the events of a job that it took the place of."""
        events: Sequence[Event] = ()
        obstacle: Obstacle
        if one.new.policy is None:
            obstacle = await conflict(self.ctx, self.jobs, one, now_ms)
        else:
            (found,) = await look(self.jobs, self.taken_keys, self.ctx.url, [one], now_ms)
            obstacle, events = await self._apply(one, found, now_ms) if isinstance(found, Owned) else (found, ())
        if isinstance(obstacle, Receipt):
            return obstacle, events
        if obstacle is not None:
            raise StoreUnavailable(f"another call is enqueueing the job {one.new.id} at this moment; try again")
        if (for_ms := one.for_ms) is not None:
            await take(self.taken_keys, self.ctx.url, one.name_and_key, one.new.id, now_ms + for_ms)
        await self.jobs.insert(one.packed)
        return Receipt(one.new.id, "created"), events

    async def _apply(self, one: EncodedJob, owned: Owned, now_ms: int) -> tuple[Receipt | None, Sequence[Event]]:
        """Do to a live job what the policy of a new one says. No receipt: the new job has its key, and is inserted."""
        document, job = owned.document, owned.job
        if isinstance(owned.taken, Replace):
            update = owned.replacing(self.ctx, one.new, now_ms)
            await replace_payload(self.jobs, owned.unchanged, update, one.new)
            return Receipt(job.id, "updated"), ()
        if owned.taken == "pass":
            await self.jobs.update(owned.unchanged, WITHOUT_KEY)
            return None, ()
        patch = decide(Cancel(), subject_of(document, job), now_ms)
        if not isinstance(patch, Patch):
            raise StoreUnavailable(f"the job {job.id} cannot be cancelled: {patch}; try again")
        # Its edges are set by a worker, which finds it in the outbox. The janitor removes it if it is not kept.
        fields = patch_fields(self.ctx, Decided(document, job, kept(patch)), now_ms)
        await self.jobs.update(owned.unchanged, update_of(fields))
        await free(self.taken_keys, self.ctx.url, taken_by([document]))
        return None, kept(patch).events

    async def ended(self, ids: Mapping[str, str]) -> dict[str, Document]:
        """Jobs of others that new jobs wait for. They must have ended: their workers cannot settle locked documents."""
        found = {id_of(one): one for one in await self.jobs.find(with_ids(ids), WITHOUT_PAYLOAD) if is_known(one)}
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
            await self.jobs.delete({"_id": {"$in": list(new.created.values())}})  # the caller may still commit
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
        update = update_of(patch_fields(self.ctx, Decided(document, job, patch), now_ms))
        await self.jobs.update({"_id": one.id}, after_commit(update))
        return patch.events


def _turn(new: NewJob, now_ms: int) -> Document:
    """Where a new job stands in its lane, as `codec.after_commit` says."""
    if new.lane is None or new.after:
        return {}
    return {"turn": {"lane": new.lane, "after": date(max(new.due.resolve(now_ms), now_ms))}}


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
