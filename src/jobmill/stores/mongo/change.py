"""The verb change: write what the core decides about jobs without a lease."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bson import ObjectId
from msgspec import Struct, structs
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from jobmill.core.changes import (
    CHANGES_FROM,
    NO_SUCH_JOB,
    Change,
    Changed,
    Patch,
    Remove,
    Subject,
    decide,
    key_taken,
    not_from,
    states_for,
)
from jobmill.core.job import Job
from jobmill.core.values import Filter
from jobmill.stores.mongo.codec import (
    NO_CLAIM,
    STATUS,
    WITHOUT_PAYLOAD,
    Document,
    date,
    due_fields,
    is_ours,
    job_fields,
    keep_fields,
    ours_of,
    rule_fields,
    update_of,
)
from jobmill.stores.mongo.connection import BY_ID, DUPLICATE_KEY, refused_writes
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.feed import publish
from jobmill.stores.mongo.filters import query_of
from jobmill.stores.mongo.ids import new_object_id
from jobmill.stores.mongo.leases import lease_update, marked, remove, remove_marked

#: How often a change is decided anew because another process holds or releases its jobs at the same time.
MAX_ATTEMPTS = 5


class _Decided(Struct, frozen=True):
    """A job, and the patch that was decided for it."""

    document: Document
    job: Job
    patch: Patch

    @property
    def unchanged(self) -> Document:
        """A filter: nobody else has held or released the job since it was read."""
        return {"_id": self.document["_id"], "jobmill.held": ours_of(self.document).get("held")}

    @property
    def key(self) -> tuple[str, Any]:
        return self.job.name, self.document.get("uniqueKey")


async def change(ctx: MongoContext, which: Sequence[str] | Filter, change: Change, limit: int = 1_000) -> Changed:
    """Change jobs by id, or those that match a filter; at most `limit`."""
    done = await _change(ctx, which, change, limit)
    allowed = {not_from(state) for state in CHANGES_FROM[type(change)]}
    for _ in range(MAX_ATTEMPTS):
        late = [id for id, why in done.refused.items() if why in allowed]
        if not late:
            break
        # Another process has held or released them since they were read.
        again = await _change(ctx, late, change, limit)
        refused = {id: why for id, why in done.refused.items() if id not in late}
        done = Changed(ids=[*done.ids, *again.ids], refused=refused | again.refused, more=done.more)
    return done


async def _change(ctx: MongoContext, which: Sequence[str] | Filter, change: Change, limit: int) -> Changed:
    now_ms = ctx.now()
    refused: dict[str, str] = {}
    if isinstance(which, Filter):
        query = query_of(ctx, structs.replace(which, states=states_for(change, which)))
        found = await ctx.here.jobs.find(query, WITHOUT_PAYLOAD).sort("_id", 1).limit(limit + 1).to_list()
        more, found = len(found) > limit, found[:limit]
    else:
        ids = list(dict.fromkeys(which))
        by_id = await ctx.by_ids(ids[:limit], WITHOUT_PAYLOAD)
        refused = {id: NO_SUCH_JOB for id in ids[:limit] if id not in by_id}
        more, found = len(ids) > limit, [by_id[id] for id in ids[:limit] if id in by_id]
    decided: list[_Decided] = []
    for document in found:
        job = ctx.job(document)
        subject = structs.replace(Subject.of(job), has_our_retention=is_ours(document))
        patch = decide(change, subject, now_ms, len(decided))
        if isinstance(patch, Patch):
            decided.append(_Decided(document, job, patch))
        else:
            refused[job.id] = patch
    statuses = [STATUS[state] for state in CHANGES_FROM[type(change)]]
    apply = _remove if isinstance(change, Remove) else _write
    refused |= await apply(ctx, decided, statuses, now_ms) if decided else {}
    ctx.claims.cursor.rewind()
    changed = [one for one in decided if one.job.id not in refused]
    await publish(ctx, [event for one in changed for event in one.patch.events])
    return Changed(ids=[one.job.id for one in changed], refused=refused, more=more)


async def _write(ctx: MongoContext, decided: list[_Decided], statuses: list[str], now_ms: int) -> dict[str, str]:
    """Write patches where the states still allow it; why not, for the others."""
    mark = new_object_id()
    writes = [
        UpdateOne(one.unchanged | {"status": {"$in": statuses}}, _update(ctx, one, mark, now_ms), hint=BY_ID)
        for one in decided
    ]
    refused: dict[str, str] = {}
    matched = -1
    try:
        matched = (await ctx.here.jobs.bulk_write(writes, ordered=False)).matched_count
    except BulkWriteError as error:
        refused = await _refusals(ctx, [(decided[index], why) for index, why in refused_writes(error).items()])
    if matched != len(decided):
        done = await marked(ctx, [one.document["_id"] for one in decided], mark)
        late = [one for one in decided if one.document["_id"] not in done and one.job.id not in refused]
        refused |= await _changed_meanwhile(ctx, late)
    removed = [one.document["_id"] for one in decided if one.patch.removes and one.job.id not in refused]
    if removed:
        await remove_marked(ctx, removed, mark)
    return refused


async def _remove(ctx: MongoContext, decided: list[_Decided], statuses: list[str], now_ms: int) -> dict[str, str]:
    gone = await remove(ctx, [one.document["_id"] for one in decided], statuses)
    return await _changed_meanwhile(ctx, [one for one in decided if one.document["_id"] not in gone])


async def _changed_meanwhile(ctx: MongoContext, decided: list[_Decided]) -> dict[str, str]:
    """Why jobs do not allow a change any more that allowed it a moment ago."""
    found = await ctx.by_ids([one.job.id for one in decided], WITHOUT_PAYLOAD) if decided else {}
    now = {id: not_from(ctx.job(document).state) for id, document in found.items()}
    return {one.job.id: now.get(one.job.id, NO_SUCH_JOB) for one in decided}


async def _refusals(ctx: MongoContext, errors: list[tuple[_Decided, str]]) -> dict[str, str]:
    """Why the server refused to write: mostly because of a unique key."""
    owners = await ctx.live_owners({one.key for one, why in errors if str(DUPLICATE_KEY) in why})
    return {one.job.id: key_taken(owners[one.key]) if one.key in owners else why for one, why in errors}


def _update(ctx: MongoContext, one: _Decided, mark: ObjectId, now_ms: int) -> Document:
    """The update that writes a patch."""
    patch, job = one.patch, one.job
    if patch.seize is not None:
        update = lease_update(patch.seize, now_ms)
        update["$set"]["jobmill.mark"] = mark
        if job.held is not None:
            update["$set"]["nextRunAt"] = date(patch.fields["due_ms"])
            update["$unset"]["jobmill.held"] = ""
        return update
    fields = {"jobmill.mark": mark, **job_fields(patch.fields)}
    if "due_ms" in patch.fields or "occurrence_ms" in patch.fields:
        fields |= dict.fromkeys(("jobmill.due", "jobmill.dueOf"))
        due_ms = patch.fields.get("due_ms", job.due_ms)
        fields |= due_fields(due_ms, now_ms, patch.fields.get("occurrence_ms", job.occurrence_ms))
    if "recurrence" in patch.fields:
        fields |= rule_fields(patch.fields["recurrence"], ctx.url)
    if "state" in patch.fields:
        fields |= NO_CLAIM  # only a job that is processing may have the fields of a claim
        fields["jobmill.armed"] = True if patch.becomes_live and job.recurrence is not None else None
    if patch.becomes_live:
        fields |= dict.fromkeys(("jobmill.purgeAt", "jobmill.keepLast", "jobmill.held"))
    if patch.keep is not None:
        fields |= keep_fields(patch.keep, now_ms)
    return update_of(fields)
