"""What running jobs say of themselves: that they are alive, how far they are, and their log lines."""

from __future__ import annotations

from collections.abc import Sequence

from bson import ObjectId
from pymongo import UpdateMany, UpdateOne

from jobmill.core.events import Event, progress_event
from jobmill.core.job import LOG_LINES_KEPT
from jobmill.core.values import Lease, LogLine, Report
from jobmill.stores.mongo.codec import id_of
from jobmill.stores.mongo.exchange import Exchanges
from jobmill.stores.mongo.connection import BY_ID, Document, told_apart
from jobmill.stores.mongo.settle import Held, guard
from jobmill.stores.mongo.values import claim_id, date, new_object_id

#: A line is cut to so many bytes, so that the last thousand fit into a document.
LONGEST_LINE = 15_000

_PLACES = {"_id": 1, "name": 1, "status": 1, "failCount": 1, "claimId": 1, "jobmill.id": 1, "jobmill.queue": 1}


class Reports(Exchanges):
    """extend, report and logs."""

    async def extend(self, leases: Sequence[Lease], for_ms: int) -> list[str]:
        """See the port. lockedAt moves as well: a Monque that starts looks at nothing else."""
        if not leases:
            return []
        with told_apart(self._place):
            await self._learn_time()
            now_ms = self.now()
            held = [one for one in await self._located(leases) if one is not None]
            mark = new_object_id()
            beat = {
                "lockedAt": date(now_ms),
                "lastHeartbeat": date(now_ms),
                "updatedAt": date(now_ms),
                "jobmill.leaseUntil": date(now_ms + for_ms),
                "jobmill.mark": mark,
            }
            by_claim: dict[tuple[str, str], list[ObjectId]] = {}
            for one in held:
                by_claim.setdefault((one.lease.token, one.locator.claimed_by), []).append(one.locator.id)
            writes = [
                UpdateMany({"_id": {"$in": ids}, **guard(token, claimed_by, now_ms)}, {"$set": beat}, hint=BY_ID)
                for (token, claimed_by), ids in by_claim.items()
            ]
            matched = (await self._here.beats.bulk_write(writes, ordered=False)).matched_count if writes else 0
            if matched == len(leases):
                return []
            done = await self._marked([one.locator.id for one in held], mark)
            kept = {(one.lease.id, one.lease.token) for one in held if one.locator.id in done}
            tokens = await self._tokens(held)
        return [
            lease.id
            for lease in leases
            if (lease.id, lease.token) not in kept or tokens.get(lease.id) != claim_id(lease.token)
        ]

    async def _tokens(self, held: Sequence[Held]) -> dict[str, str]:
        """Whose token each of these jobs has: two leases of one job may be asked for in one call."""
        ids = [one.locator.id for one in held]
        found = self._here.jobs.find({"_id": {"$in": ids}}, _PLACES)
        return {id_of(document): str(document.get("claimId")) async for document in found}

    async def report(self, reports: Sequence[Report]) -> list[str]:
        """See the port."""
        if not reports:
            return []
        now_ms = self.now()
        with told_apart(self._place):
            held = await self._located([report.lease for report in reports])
            there = await self._held([one for one in held if one is not None], now_ms)
            lost: list[str] = []
            writes: list[UpdateOne] = []
            logs: list[UpdateOne] = []
            told: list[Event] = []
            for report, one in zip(reports, held, strict=True):
                document = None if one is None else there.get((one.lease.id, one.lease.token))
                if one is None or document is None:
                    lost.append(report.lease.id)
                    continue
                if report.progress is not None:
                    progress = {"value": report.progress.value, "message": report.progress.message}
                    said = {"jobmill.progress": progress, "updatedAt": date(now_ms)}
                    writes.append(UpdateOne(one.guard(now_ms), {"$set": said}, hint=BY_ID))
                    told.append(progress_event(self._job(document), report.progress, now_ms))
                if report.lines:
                    logs.append(_logged(one.locator.id, report.lines, now_ms))
            if writes:
                await self._here.beats.bulk_write(writes)
            if logs:
                await self._here.logs.bulk_write(logs)
            if told:
                await self._tell(told, await self._known({event.queue for event in told}))
        return lost

    async def _held(self, held: Sequence[Held], now_ms: int) -> dict[tuple[str, str], Document]:
        """The documents of the leases that hold, by their ids and tokens."""
        if not held:
            return {}
        tokens = {one.locator.id: {} for one in held}  # type: dict[ObjectId, dict[str, tuple[str, str]]]
        for one in held:
            tokens[one.locator.id][claim_id(one.lease.token)] = (one.lease.id, one.lease.token)
        query = {"$or": [one.guard(now_ms) for one in held]}
        found: dict[tuple[str, str], Document] = {}
        async for document in self._here.jobs.find(query, _PLACES):
            found[tokens[document["_id"]][document["claimId"]]] = document
        return found

    async def logs(self, id: str, limit: int = 1_000) -> list[LogLine]:
        """See the port."""
        with told_apart(self._place):
            found = await self._by_ids([id], {"_id": 1, "status": 1, "jobmill.id": 1})
            if id not in found or limit <= 0:
                return []
            wanted = {"lines": {"$slice": -limit}}
            document = await self._here.logs.find_one({"_id": found[id]["_id"]}, wanted)
        return [LogLine(int(line["at"]), line["text"]) for line in document["lines"]] if document else []


def _cut(text: str) -> str:
    return text.encode(errors="replace")[:LONGEST_LINE].decode(errors="ignore")


def _logged(id: ObjectId, lines: Sequence[str], now_ms: int) -> UpdateOne:
    said = [{"at": date(now_ms), "text": _cut(text)} for text in lines[-LOG_LINES_KEPT:]]
    return UpdateOne({"_id": id}, {"$push": {"lines": {"$each": said, "$slice": -LOG_LINES_KEPT}}}, upsert=True)
