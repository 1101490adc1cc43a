"""The verbs audit and audit_log (the collection jobmill_audit).

_id: the id of the entry; jobs: the collection of the jobs; at; who, what, queue, ids; entry: all of it as JSON
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import structs
from pymongo.errors import BulkWriteError

from jobmill.core.audit import AUDIT_KEPT_MS, AuditEntry, AuditFilter, AuditPage
from jobmill.core.cursors import read_position
from jobmill.stores.mongo.codec import Document, date
from jobmill.stores.mongo.connection import DUPLICATE_KEY, refused_writes
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.filters import bound


async def audit(ctx: MongoContext, entries: Sequence[AuditEntry]) -> None:
    """See the port."""
    documents = [
        {
            "_id": one.id,
            "jobs": ctx.url.collection,
            "at": date(ctx.now()),
            "who": one.who,
            "what": one.what,
            "queue": one.queue,
            "ids": list(one.ids),
            "entry": msgspec.json.encode(one).decode(),
        }
        for one in entries
    ]
    try:
        if documents:
            await ctx.here.audit.insert_many(documents, ordered=False)
    except BulkWriteError as error:
        refused_writes(error, (DUPLICATE_KEY,))


async def audit_log(ctx: MongoContext, filter: AuditFilter, cursor: str | None = None, limit: int = 100) -> AuditPage:
    """See the port. A cursor is the time and the id of the last entry of a page."""
    given = {"jobs": ctx.url.collection, "who": filter.who, "what": filter.what, "queue": filter.queue}
    query: Document = {field: value for field, value in {**given, "ids": filter.job_id}.items() if value is not None}
    bound(query, "at", max(filter.after_ms or 0, ctx.now() - AUDIT_KEPT_MS + 1), filter.before_ms)
    if cursor is not None:
        at_ms, _, id = cursor.partition(" ")
        at = date(read_position(at_ms, "cursor", cursor))
        query["$or"] = [{"at": {"$lt": at}}, {"at": at, "_id": {"$lt": id}}]
    found = await ctx.here.audit.find(query).sort([("at", -1), ("_id", -1)]).limit(limit + 1).to_list()
    entries = [
        structs.replace(msgspec.json.decode(one["entry"], type=AuditEntry), at_ms=int(one["at"]))
        for one in found[:limit]
    ]
    return AuditPage(entries, f"{entries[-1].at_ms} {entries[-1].id}" if len(found) > limit else None)


async def purge_audit(ctx: MongoContext, now_ms: int) -> None:
    """Delete entries past their time."""
    old = {"$lte": date(now_ms - AUDIT_KEPT_MS)}
    await ctx.here.audit.delete_many({"jobs": ctx.url.collection, "at": old})
