"""Writing patches: what the core decided about jobs without a lease, each under a guard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bson import ObjectId
from msgspec import Struct, structs
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from jobmill.core.changes import NO_SUCH_JOB, Patch, Subject, key_taken, not_from
from jobmill.core.job import Job
from jobmill.stores.mongo.codec import (
    NO_CLAIM,
    WITHOUT_PAYLOAD,
    Document,
    due_fields,
    int_of,
    is_ours,
    job_fields,
    keep_fields,
    lane_mark_fields,
    ours_of,
    rule_fields,
    update_of,
)
from jobmill.stores.mongo.connection import BY_ID, DUPLICATE_KEY, refused_writes
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.ids import new_object_id
from jobmill.stores.mongo.leases import lease_update, marked
from jobmill.stores.mongo.remove import remove_marked


class Decided(Struct, frozen=True):
    """A job, and the patch that was decided for it."""

    document: Document
    job: Job
    patch: Patch

    @property
    def unchanged(self) -> Document:
        """A filter: nobody else has held or released the job since it was read.

        If it becomes final or live: nobody has added edges to it either.
        """
        ours = ours_of(self.document)
        fields = ("held", "deferredError", *(("hasDependents",) if "state" in self.patch.fields else ()))
        return {"_id": self.document["_id"], **{f"jobmill.{name}": ours.get(name) for name in fields}}

    @property
    def key(self) -> tuple[str, Any]:
        """What the unique index compares."""
        return self.job.name, self.document.get("uniqueKey")


def subject_of(document: Document, job: Job) -> Subject:
    """What decides about a change of a job, without its edges."""
    return structs.replace(Subject.of(job), has_our_retention=is_ours(document))


async def write_patches(
    ctx: MongoContext, decided: Sequence[Decided], statuses: Sequence[str], now_ms: int
) -> dict[str, str]:
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
        refused |= await changed_meanwhile(ctx, late)
    removed = [one.document["_id"] for one in decided if one.patch.removes and one.job.id not in refused]
    if removed:
        await remove_marked(ctx, removed, mark)
    return refused


async def changed_meanwhile(ctx: MongoContext, decided: Sequence[Decided]) -> dict[str, str]:
    """Why jobs do not allow a change any more that allowed it a moment ago."""
    found = await ctx.by_ids([one.job.id for one in decided], WITHOUT_PAYLOAD) if decided else {}
    now = {id: not_from(ctx.job(document).state) for id, document in found.items()}
    return {one.job.id: now.get(one.job.id, NO_SUCH_JOB) for one in decided}


async def _refusals(ctx: MongoContext, errors: list[tuple[Decided, str]]) -> dict[str, str]:
    """Why the server refused to write: mostly because of a unique key."""
    owners = await ctx.live_owners({one.key for one, why in errors if str(DUPLICATE_KEY) in why})
    return {one.job.id: key_taken(owners[one.key]) if one.key in owners else why for one, why in errors}


def _update(ctx: MongoContext, one: Decided, mark: ObjectId, now_ms: int) -> Document:
    if one.patch.seize is None:
        return update_of({"jobmill.mark": mark, **patch_fields(ctx, one, now_ms)})
    update = lease_update(one.patch.seize, now_ms)
    update["$set"]["jobmill.mark"] = mark
    if one.job.held is not None:
        due = due_fields(one.patch.fields["due_ms"], now_ms, one.job.occurrence_ms)
        for operator, fields in update_of({**due, "jobmill.held": None}).items():
            update[operator] |= fields
    if one.job.lane is not None and "laneSlot" not in ours_of(one.document):
        # It gets a slot of its own, whatever the limit is.
        update["$set"]["jobmill.laneSlot"] = one.document["_id"]
        update["$unset"]["jobmill.turn"] = ""
    return update


def patch_fields(ctx: MongoContext, one: Decided, now_ms: int) -> Document:
    """The fields that a patch writes; None removes a field."""
    patch, job = one.patch, one.job
    fields: Document = {}
    if patch.becomes_live:
        fields |= dict.fromkeys(("jobmill.purgeAt", "jobmill.keepLast", "jobmill.held"))
        fields |= _next_round(one.document)
    fields |= job_fields(patch.fields)
    if "due_ms" in patch.fields or "occurrence_ms" in patch.fields:
        due_ms = patch.fields.get("due_ms", job.due_ms)
        fields |= due_fields(due_ms, now_ms, patch.fields.get("occurrence_ms", job.occurrence_ms))
    if "recurrence" in patch.fields:
        fields |= rule_fields(patch.fields["recurrence"], ctx.url)
    if "state" in patch.fields:
        fields |= NO_CLAIM  # only a job that is processing may have the fields of a claim
        fields["jobmill.armed"] = True if patch.becomes_live and job.recurrence is not None else None
    if job.lane is not None and ("held" in patch.fields or "state" in patch.fields):
        fields |= lane_mark_fields(job.lane, patch.fields.get("held"), now_ms)
    if patch.keep is not None:
        fields |= keep_fields(patch.keep, now_ms)
    if patch.clears_steps:
        fields |= dict.fromkeys(("jobmill.steps", "jobmill.signals"))
    return fields


def _next_round(document: Document) -> Document:
    """A job that others wait for, or have waited for, is requeued: its next end sets edges again."""
    ours = ours_of(document)
    if "hasDependents" not in ours:
        return {}
    marks = {"jobmill.hasDependents": new_object_id(), "jobmill.outbox": True}
    return {"jobmill.round": int_of(ours.get("round")) + 1, **marks}
