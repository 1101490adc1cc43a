"""The verbs that change jobs without a lease."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bson import ObjectId
from msgspec import Struct
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from jobmill.core.changes import CHANGES_FROM, Cancel, Change, Changed, Remove, Reprioritize, Requeue, Reschedule, Seize
from jobmill.core.events import Event, bare_job, claim_events, job_event
from jobmill.core.job import KEEP_FAILED, Job
from jobmill.core.values import Filter
from jobmill.stores.mongo import codec
from jobmill.stores.mongo.claim import leased
from jobmill.stores.mongo.codec import CLEAN, STATUS, keep_fields, slot_fields
from jobmill.stores.mongo.connection import BY_ID, DUPLICATE_KEY, Document, told_apart
from jobmill.stores.mongo.read import Looks
from jobmill.stores.mongo.settle import why_not
from jobmill.stores.mongo.values import date, new_object_id

_SHOWN = {"data": 0, "jobmill.result": 0, "jobmill.tracebacks": 0}


class One(Struct, frozen=True):
    """A job that is to be changed."""

    document: Document
    job: Job

    @property
    def is_ours(self) -> bool:
        """Whether it is kept by our rules."""
        return codec.is_ours(self.document)


class Changes(Looks):
    """change."""

    async def change(self, which: Sequence[str] | Filter, change: Change, limit: int = 1_000) -> Changed:
        """See the port."""
        now_ms = self.now()
        allowed = CHANGES_FROM[type(change)]
        refused: dict[str, str] = {}
        with told_apart(self._place):
            if isinstance(which, Filter):
                cursor = self._here.jobs.find(self._query(which, allowed), _SHOWN)
                found = await cursor.sort("_id", 1).limit(limit + 1).to_list()
                more = len(found) > limit
                found = found[:limit]
            else:
                ids = list(dict.fromkeys(which))
                more = len(ids) > limit
                by_id = await self._by_ids(ids[:limit], _SHOWN)
                refused = {id: "there is no such job" for id in ids[:limit] if id not in by_id}
                found = [by_id[id] for id in ids[:limit] if id in by_id]
            jobs = [One(document, self._job(document)) for document in found]
            refused |= {one.job.id: _not_from(one.job) for one in jobs if one.job.state not in allowed}
            jobs = [one for one in jobs if one.job.state in allowed]
            done, not_done = await self._change(jobs, change, now_ms)
            self._put_behind()
            refused |= not_done
            await self._tell_changed([one for one in jobs if one.job.id in done], change, now_ms)
        return Changed(changed=[one.job.id for one in jobs if one.job.id in done], refused=refused, more=more)

    async def _change(self, jobs: list[One], change: Change, now_ms: int) -> tuple[set[str], dict[str, str]]:
        """Do it to those that still allow it; the ids of these, and why not the others."""
        if not jobs:
            return set(), {}
        if isinstance(change, Remove):
            return await self._remove(jobs)
        mark = new_object_id()
        statuses = [STATUS[state] for state in CHANGES_FROM[type(change)]]
        writes = [
            UpdateOne(
                {"_id": one.document["_id"], "status": {"$in": statuses}},
                _changed(one, change, n, mark, now_ms),
                hint=BY_ID,
            )
            for n, one in enumerate(jobs)
        ]
        errors: dict[int, str] = {}
        try:
            matched = (await self._here.jobs.bulk_write(writes, ordered=False)).matched_count
        except BulkWriteError as error:
            matched = -1
            errors = why_not(error)
        refused = await self._why([(jobs[n], why) for n, why in errors.items()])
        if matched == len(jobs):
            done = {one.job.id for one in jobs}
        else:
            ids: list[ObjectId] = [one.document["_id"] for one in jobs]
            marked = await self._marked(ids, mark)
            done = {one.job.id for one in jobs if one.document["_id"] in marked}
            refused |= await self._meanwhile([one for one in jobs if one.job.id not in done | refused.keys()])
        if isinstance(change, Cancel):
            cancelled = [one for one in jobs if one.job.id in done and one.is_ours]
            gone = [one.document["_id"] for one in cancelled if _keep(one.job).at_once]
            if gone:
                await self._forget(gone, mark)
        return done, refused

    async def _remove(self, jobs: list[One]) -> tuple[set[str], dict[str, str]]:
        ids = [one.document["_id"] for one in jobs]
        statuses = [STATUS[state] for state in CHANGES_FROM[Remove]]
        await self._here.jobs.delete_many({"_id": {"$in": ids}, "status": {"$in": statuses}})
        left = {one["_id"] async for one in self._here.jobs.find({"_id": {"$in": ids}}, {"_id": 1})}
        gone = [id for id in ids if id not in left]
        await self._here.logs.delete_many({"_id": {"$in": gone}})
        refused = await self._meanwhile([one for one in jobs if one.document["_id"] in left])
        return {one.job.id for one in jobs if one.document["_id"] not in left}, refused

    async def _meanwhile(self, jobs: list[One]) -> dict[str, str]:
        """Why jobs that allowed a change a moment ago do not any more."""
        found = await self._by_ids([one.job.id for one in jobs], _SHOWN) if jobs else {}
        now = {id: _not_from(self._job(document)) for id, document in found.items()}
        return {one.job.id: now.get(one.job.id, "there is no such job") for one in jobs}

    async def _why(self, errors: list[tuple[One, str]]) -> dict[str, str]:
        """Why the server refused to write: mostly because of a unique key."""
        taken = {(one.job.name, one.document.get("uniqueKey")) for one, why in errors if str(DUPLICATE_KEY) in why}
        owners: dict[tuple[str, Any], str] = {}
        if taken:
            names, keys = (list(dict.fromkeys(each)) for each in zip(*taken, strict=True))
            live = {"name": {"$in": names}, "uniqueKey": {"$in": keys}, "status": {"$in": codec.LIVE}}
            async for owner in self._here.jobs.find(live, {"name": 1, "uniqueKey": 1, "jobmill.id": 1}):
                owners[owner["name"], owner["uniqueKey"]] = codec.id_of(owner)
        refused = {}
        for one, why in errors:
            owner_id = owners.get((one.job.name, one.document.get("uniqueKey"))) if str(DUPLICATE_KEY) in why else None
            refused[one.job.id] = f"the live job {owner_id} has its unique key" if owner_id else why
        return refused

    async def _tell_changed(self, jobs: list[One], change: Change, now_ms: int) -> None:
        told = [event for one in jobs for event in _told(one.job, change, now_ms)]
        if told:
            await self._tell(told, await self._known({event.queue for event in told}))


def _not_from(job: Job) -> str:
    return f"the job is {job.state}"


def _keep(job: Job) -> Any:
    return job.options.keep_failed or KEEP_FAILED


def _told(job: Job, change: Change, now_ms: int) -> list[Event]:
    """What is told of a job that was changed."""
    match change:
        case Cancel():
            return [job_event(job, "cancelled", now_ms)]
        case Requeue():
            return [job_event(bare_job(job.id, job.name, job.queue, "waiting", 0), "enqueued", now_ms)]
        case Remove():
            return [job_event(job, "removed", now_ms)]
        case Seize():
            seized = bare_job(job.id, job.name, job.queue, "running", job.errors, change.worker)
            return claim_events(seized, now_ms, lease_lost=False)
    return []


def _changed(one: One, change: Change, n: int, mark: ObjectId, now_ms: int) -> Document:
    """What a change writes; job n of its call."""
    update = _written(one, change, n, now_ms)
    update["$set"] |= {"updatedAt": date(now_ms), "jobmill.mark": mark}
    return update


def _written(one: One, change: Change, n: int, now_ms: int) -> Document:
    match change:
        case Cancel():
            kept, not_kept = keep_fields(_keep(one.job), now_ms) if one.is_ours else ({}, {})
            return {"$set": {"status": "cancelled", **kept}, "$unset": {**CLEAN, **not_kept, "jobmill.armed": ""}}
        case Requeue():
            return _requeued(one.job, change.due.resolve(now_ms) + round(n * change.step_ms))
        case Reschedule():
            due_ms = change.due.resolve(now_ms)
            told, gone = slot_fields(due_ms if one.job.slot_ms is None else one.job.slot_ms, due_ms)
            return {"$set": {"nextRunAt": date(due_ms), **told}} | ({"$unset": gone} if gone else {})
        case Reprioritize():
            return {"$set": {"priority": -change.priority}}
        case Seize():
            return leased(change.worker, change.token, change.lease_ms, now_ms, is_lost=False)
    raise TypeError(f"no change that is written: {change!r}")


def _requeued(job: Job, due_ms: int) -> Document:
    """Waiting again, with fresh budgets, as Monque's own retry leaves it."""
    gone = {"failReason": "", **CLEAN}
    gone |= {f"jobmill.{field}": "" for field in ("crashes", "result", "progress", "purgeAt", "keepLast")}
    told: Document = {"status": "pending", "nextRunAt": date(due_ms), "failCount": 0}
    if job.recurrence is not None:
        told["jobmill.armed"] = True
        slots, no_slots = slot_fields(job.slot_ms or due_ms, due_ms)
        told |= slots
        gone |= no_slots
    return {"$set": told, "$unset": gone}
