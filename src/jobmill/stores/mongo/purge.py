"""The janitor's part: final jobs past their retention go, and recurring ones that another process ended go on."""

from __future__ import annotations

import logging

from bson import ObjectId
from pymongo.errors import DuplicateKeyError

from jobmill.core.events import job_event
from jobmill.core.job import Job
from jobmill.core.recurrence import next_slot
from jobmill.core.values import Purged
from jobmill.errors import InvalidValue
from jobmill.stores.mongo import codec, schema
from jobmill.stores.mongo.change import Changes
from jobmill.stores.mongo.codec import CLEAN, FINAL, STATE, slot_fields
from jobmill.stores.mongo.connection import Document, told_apart
from jobmill.stores.mongo.values import date

_ENDED = ("completed", "failed")
_NO_DATES = ["number", "string", "null", "object", "bool"]

log = logging.getLogger("jobmill")


class Purges(Changes):
    """purge."""

    async def purge(self, limit: int = 1_000) -> Purged:
        """See the port. The last n are counted among the jobs that are kept so."""
        with told_apart(self._place):
            await self._learn_time()  # nobody else asks while nothing runs
            now_ms = self.now()
            await self._report_odd()
            await self._rearm(limit, now_ms)
            past = await self._too_old(limit + 1, now_ms)
            if len(past) <= limit:
                past |= await self._too_many(limit + 1 - len(past))
            gone = dict(list(past.items())[:limit])
            removed = await self._purge(gone, now_ms) if gone else 0
        return Purged(removed, more=len(past) > limit)

    async def _report_odd(self) -> None:
        """A job whose due time is no date, or whose status nobody knows, will never run: somebody should know, once."""
        if not self._names:
            return
        mine = {"jobmill.queue": None, "name": {"$in": list(self._names)}}
        no_dates = {**mine, "status": "pending", "nextRunAt": {"$type": _NO_DATES}}
        for document in await self._found(no_dates, _ODD, schema.DUE, 100):
            self._report_once(document, f"its nextRunAt is no date but {document.get('nextRunAt')!r}")
        if schema.NAME_STATUS in self._hints:  # without it all documents would be read; then only the stream tells
            unknown = {**mine, "status": {"$nin": list(STATE)}}
            for document in await self._found(unknown, _ODD, schema.NAME_STATUS, 100):
                self._report_once(document, _no_such_status(document))

    def _report_new(self, document: Document) -> None:
        """The same of a job that another program just wrote."""
        if not codec.is_known(document):
            self._report_once(document, _no_such_status(document))

    async def _too_old(self, limit: int, now_ms: int) -> dict[ObjectId, Document]:
        # What a Monque ran again after that time is its own to remove.
        old = {"jobmill.purgeAt": {"$lte": date(now_ms)}, "status": {"$in": FINAL}}
        query = {**old, "$expr": {"$lte": ["$updatedAt", "$jobmill.purgeAt"]}}
        found = await self._found(query, _SHOWN, schema.PURGE, limit)
        return {document["_id"]: document for document in found}

    async def _found(self, query: Document, shown: Document, hint: str, limit: int) -> list[Document]:
        jobs = self._here.jobs
        return await self._hinted(hint, lambda hint: jobs.find(query, shown, **hint).limit(limit).to_list())

    async def _too_many(self, limit: int) -> dict[ObjectId, Document]:
        """Of those that are kept as the last n of their queue and state, what is beyond."""
        kept = {"jobmill.keepLast": {"$exists": True}, "status": {"$in": FINAL}}
        group = {
            "_id": {"queue": "$jobmill.queue", "status": "$status"},
            "least": {"$min": "$jobmill.keepLast"},
            "count": {"$sum": 1},
        }
        jobs = self._here.jobs

        async def counted(hint: Document) -> list[Document]:
            return await (await jobs.aggregate([{"$match": kept}, {"$group": group}], **hint)).to_list()

        past: dict[ObjectId, Document] = {}
        for one in await self._hinted(schema.LAST, counted):
            if one["count"] <= one["least"] or len(past) >= limit:
                continue
            mine = {**kept, "jobmill.queue": one["_id"].get("queue"), "status": one["_id"]["status"]}
            found = self._here.jobs.find(mine, _SHOWN).sort([("updatedAt", -1), ("_id", -1)]).skip(one["least"])
            place = one["least"]
            async for document in found:
                place += 1
                if place > document["jobmill"]["keepLast"]:
                    past[document["_id"]] = document
                if len(past) >= limit:
                    break
        return past

    async def _purge(self, past: dict[ObjectId, Document], now_ms: int) -> int:
        ids = list(past)
        await self._here.jobs.delete_many({"_id": {"$in": ids}, "status": {"$in": FINAL}})
        left = {one["_id"] async for one in self._here.jobs.find({"_id": {"$in": ids}}, {"_id": 1})}
        gone = [id for id in ids if id not in left]
        await self._here.logs.delete_many({"_id": {"$in": gone}})
        told = [job_event(self._job(past[id]), "removed", now_ms) for id in gone]
        if told:
            await self._tell(told, await self._known({event.queue for event in told}))
        return len(gone)

    async def _rearm(self, limit: int, now_ms: int) -> None:
        """A recurring job of ours that a Monque ended, because it cannot hold its rule or gave it up, goes on."""
        query = {"jobmill.armed": True, "status": {"$in": _ENDED}}
        for document in await self._found(query, _SHOWN, schema.ARMED, limit):
            update = _next_run(document, codec.job_of(document, self._place.queue), now_ms)
            as_seen = {"_id": document["_id"], "status": document["status"], "updatedAt": document.get("updatedAt")}
            try:
                await self._here.jobs.update_one({**as_seen, "jobmill.armed": True}, update)
            except DuplicateKeyError:
                # Another has its key by now, and goes on in its place.
                await self._here.jobs.update_one(as_seen, {"$unset": {"jobmill.armed": ""}})


_ODD = {"nextRunAt": 1, "status": 1}
_SHOWN = {"data": 0, "jobmill.result": 0, "jobmill.tracebacks": 0}


def _no_such_status(document: Document) -> str:
    return f"its status is none of {', '.join(STATE)} but {document.get('status')!r}"


def _next_run(document: Document, job: Job, now_ms: int) -> Document:
    """What re-arms a job; where its recurrence is over, that it is."""
    try:
        slot_ms = next_slot(job.recurrence, job.slot_ms or job.due_ms, now_ms) if job.recurrence else None
    except InvalidValue:
        slot_ms = None
    if slot_ms is None:
        return {"$unset": {"jobmill.armed": ""}}
    failed = document["status"] == "failed"
    told: Document = {
        "status": "pending",
        "nextRunAt": date(slot_ms),
        "failCount": 0,
        "updatedAt": date(now_ms),
        "jobmill.runs": job.runs + 1,
        "jobmill.failedRuns": job.failed_runs + failed,
        "jobmill.lastFinishedAt": date(job.updated_ms),
    }
    if failed and job.error is not None:
        told["jobmill.lastError"] = job.error
    _, gone = slot_fields(slot_ms, slot_ms)
    return {"$set": told, "$unset": {**gone, **CLEAN, "jobmill.progress": "", "jobmill.crashes": ""}}
