"""The verbs that only look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bson import ObjectId
from bson.errors import InvalidId

from jobmill.core.job import STATES, Job
from jobmill.core.stats import by_queue_and_name, stats
from jobmill.core.values import Count, Filter, Page, Stats
from jobmill.errors import InvalidValue
from jobmill.stores.mongo.codec import FINAL, STATE, STATUS
from jobmill.stores.mongo.connection import Document, told_apart
from jobmill.stores.mongo.report import Reports
from jobmill.stores.mongo.values import date

#: How many of the last runs of a queue and name tell how long runs take.
RUNS_SEEN = 10_000


class Looks(Reports):
    """get, find, count and stats."""

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """See the port."""
        with told_apart(self._place):
            found = await self._by_ids(list(dict.fromkeys(ids)))
        return [self._job(found[id]) if id in found else None for id in ids]

    async def find(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        """Newest first. A cursor is "<" or ">" and the _id that the page begins after."""
        query = self._query(filter)
        backwards, id = _read(cursor)
        if id is not None:
            query = {"$and": [query, {"_id": {"$gt" if backwards else "$lt": id}}]}
        with told_apart(self._place):
            found = await self._here.jobs.find(query).sort("_id", 1 if backwards else -1).limit(limit + 1).to_list()
        more = len(found) > limit
        page = found[:limit]
        if backwards:
            page.reverse()
        older, newer = (bool(page), more) if backwards else (more, id is not None and bool(page))
        return Page(
            [self._job(document) for document in page],
            next=f"<{page[-1]['_id']}" if older else None,
            previous=f">{page[0]['_id']}" if newer else None,
        )

    async def count(self, filter: Filter) -> list[Count]:
        """See the port."""
        group = {"_id": {"queue": "$jobmill.queue", "name": "$name", "status": "$status"}, "count": {"$sum": 1}}
        with told_apart(self._place):
            cursor = await self._here.jobs.aggregate([{"$match": self._query(filter)}, {"$group": group}])
            found = await cursor.to_list()
        home = self._place.queue
        counts = [
            Count(
                one["_id"].get("queue") or home, str(one["_id"].get("name")), STATE[one["_id"]["status"]], one["count"]
            )
            for one in found
        ]
        return sorted(counts, key=lambda one: (one.queue, one.name, STATES.index(one.state)))

    async def stats(self, queue: str | None = None, name: str | None = None) -> list[Stats]:
        """See the port."""
        wanted = Filter(queue=queue, name=name)
        table = by_queue_and_name(await self.count(wanted))
        now_ms = self.now()
        lines = []
        with told_apart(self._place):
            for (queue_, name_), counts in table.items():
                mine = {"jobmill.queue": self._queue_is(queue_), "name": name_}
                oldest_ms = await self._oldest(mine, now_ms) if counts.get("waiting") else None
                took = await self._took(mine) if counts.get("succeeded") else []
                lines.append(stats(queue_, name_, counts, oldest_ms, took))
        return lines

    async def _oldest(self, mine: Document, now_ms: int) -> int | None:
        """For how long the oldest due job has waited."""
        due = {**mine, "status": "pending", "nextRunAt": {"$lte": date(now_ms)}}
        first = await self._here.jobs.find(due, {"nextRunAt": 1}).sort("nextRunAt", 1).limit(1).to_list()
        return now_ms - int(first[0]["nextRunAt"]) if first else None

    async def _took(self, mine: Document) -> list[float]:
        """How long the last runs that succeeded took: those that a worker of ours began."""
        done = {**mine, "status": "completed", "jobmill.startedAt": {"$exists": True}}
        found = self._here.jobs.find(done, {"updatedAt": 1, "jobmill.startedAt": 1}).sort("_id", -1).limit(RUNS_SEEN)
        return [float(int(one["updatedAt"]) - int(one["jobmill"]["startedAt"])) async for one in found]

    def _query(self, wanted: Filter, states: Sequence[str] | None = None) -> Document:
        """A filter as MongoDB says it; only of states that there are."""
        allowed = [STATUS[state] for state in wanted.states] if wanted.states is not None else list(STATE)
        query: Document = {}
        if wanted.queue is not None:
            query["jobmill.queue"] = self._queue_is(wanted.queue)
        if wanted.name is not None:
            query["name"] = wanted.name
        if wanted.tenant is not None:
            query["jobmill.tenant"] = wanted.tenant
        if wanted.unique_key is not None:
            here = {"uniqueKey": wanted.unique_key, "jobmill.key": None}
            query["$or"] = [here, {"jobmill.key": wanted.unique_key}]
        _bound(query, "createdAt", wanted.created_after_ms, wanted.created_before_ms)
        _bound(query, "nextRunAt", wanted.due_after_ms, wanted.due_before_ms)
        if _bound(query, "updatedAt", wanted.finished_after_ms, wanted.finished_before_ms):
            allowed = [status for status in allowed if status in FINAL]
        if states is not None:
            allowed = [status for status in allowed if STATE[status] in states]
        query["status"] = {"$in": allowed}
        return query


def _bound(query: Document, field: str, first_ms: int | None, end_ms: int | None) -> bool:
    bounds: dict[str, Any] = {}
    if first_ms is not None:
        bounds["$gte"] = date(first_ms)
    if end_ms is not None:
        bounds["$lt"] = date(end_ms)
    if bounds:
        query[field] = bounds
    return bool(bounds)


def _read(cursor: str | None) -> tuple[bool, ObjectId | None]:
    """Whether a page leads back to newer jobs, and the _id that it is beyond; None from the newest on."""
    if cursor is None:
        return False, None
    try:
        if cursor[:1] not in ("<", ">"):
            raise InvalidId
        return cursor[0] == ">", ObjectId(cursor[1:])
    except InvalidId:
        raise InvalidValue("cursor", "a cursor that a page of this store gave", cursor) from None
