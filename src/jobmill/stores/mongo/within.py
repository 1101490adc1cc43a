"""Enqueueing in the caller's own transaction: in a client session of pymongo, async or sync.

In a transaction a unique index must not refuse anything, because that would end it: conflicts are searched for first.
Errors of pymongo are not translated, so that the caller, and pymongo's `with_transaction`, can handle them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.synchronous.client_session import ClientSession

from jobmill.core.events import enqueued_events
from jobmill.core.values import NewJob, Receipt
from jobmill.errors import InvalidValue
from jobmill.stores.mongo.codec import CODEC, Document
from jobmill.stores.mongo.connection import EVENTS, translated_errors
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.enqueue import JobsCollection, conflict, encoded, in_session
from jobmill.stores.mongo.feed import publish
from jobmill.stores.mongo.queues import limits_of

EXPECTED = "a client session of pymongo, in a transaction"


async def enqueue_within(ctx: MongoContext, session: Any, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    """See the port. The caller commits; a conflict with another transaction is pymongo's error."""
    _check(ctx, session)
    database = session.client.get_database(ctx.url.database, codec_options=CODEC)
    collection = JobsCollection(database[ctx.url.collection], session)
    now_ms, url = ctx.now(), ctx.url
    receipts = []
    for one in [encoded(new, now_ms, url) for new in new_jobs]:
        receipt = await conflict(collection, one, now_ms, url)
        if receipt is None:
            await collection.insert(one.packed)
            receipt = Receipt(one.new.id, "created")
        receipts.append(receipt)
    ctx.claims.cursor.rewind()
    events = enqueued_events(new_jobs, receipts, now_ms)
    if events:
        # Numbers of events are taken outside the transaction, which would otherwise block all other writers.
        with translated_errors(ctx.url):
            limits = await limits_of(ctx, {event.queue for event in events})
        await publish(ctx, events, limits, partial(_insert, database[EVENTS], session))
    return receipts


async def _insert(events: Any, session: Any, entries: list[Document]) -> None:
    await in_session(session, lambda: events.insert_many(entries, session=session))


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
