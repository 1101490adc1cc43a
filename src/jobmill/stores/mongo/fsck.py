"""The verb fsck: whether the fields of the documents agree with each other.

Log lines are not checked: several collections of jobs in one database share jobmill_logs.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from jobmill.core.due import NEVER_MS
from jobmill.core.findings import IDS_SHOWN, Finding
from jobmill.stores.mongo.codec import LIVE, NO_CLAIM, OURS, Document, date, id_of, update_of
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.fsck_flows import check_flows
from jobmill.stores.mongo.fsck_lanes import check_lanes, lane_checks

_HELD, _NEVER = {"jobmill.held": {"$exists": True}}, date(NEVER_MS)
_REPAIR = "repair them: `jobmill fsck --repair`"


class DocumentCheck(Struct, frozen=True):
    """What is wrong with the jobs that match, and the update that repairs them; or what to do, without one."""

    name: str
    text: str
    query: Document
    repair: Any = None
    remedy: str = _REPAIR


def _checks(now_ms: int) -> list[DocumentCheck]:
    leaseless = {"status": "processing", "claimedBy": {"$regex": f"^{OURS}"}}
    leaseless["jobmill.leaseUntil"] = {"$not": {"$type": "date"}}
    claimed = [{field: {"$exists": True}} for field in NO_CLAIM]
    due_when_held = {"status": "pending", **_HELD, "jobmill.due": {"$ne": _NEVER}}
    return [
        DocumentCheck(
            "running_without_lease",
            "jobs run without the end of a lease, so that no worker takes them over",
            leaseless,
            {"$set": {"jobmill.leaseUntil": date(now_ms)}},
        ),
        DocumentCheck(
            "claim_on_waiting",
            "waiting jobs have fields of a claim",
            {"status": "pending", "$or": claimed},
            update_of(NO_CLAIM),
        ),
        DocumentCheck(
            "held_but_due",
            "held jobs have no due time in the year 9999, so that they are not counted as held",
            due_when_held,
            [{"$set": {"jobmill.due": _NEVER, "jobmill.dueOf": "$nextRunAt"}}],
        ),
        DocumentCheck(
            "never_due",
            "jobs are never due, but nothing holds them",
            {"status": "pending", "jobmill.due": _NEVER, "jobmill.held": None},
            {"$unset": {"jobmill.due": "", "jobmill.dueOf": ""}},
        ),
        DocumentCheck(
            "due_time_unreadable",
            "waiting jobs have a nextRunAt that is no date, so that they never run",
            {"status": "pending", "nextRunAt": {"$not": {"$type": "date"}}},
            remedy="give them a due time: `jobmill jobs reschedule`",
        ),
        *(DocumentCheck(one.name, one.text, one.query, one.repair) for one in lane_checks(now_ms)),
    ]


async def fsck(ctx: MongoContext, *, repair: bool = False) -> list[Finding]:
    """See the port. The query that finds damage is also the guard of its repair."""
    findings = [await _run(ctx, check, repair) for check in _checks(ctx.now())]
    findings += await check_lanes(ctx, repair)
    ctx.claims.cursor.rewind()  # a repaired job may be before its position
    return [*findings, await _unique_keys(ctx), *await check_flows(ctx, repair)]


async def _run(ctx: MongoContext, check: DocumentCheck, repair: bool) -> Finding:
    jobs, shown = ctx.here.jobs, {"jobmill.id": 1}
    ids = [id_of(one) for one in await jobs.find(check.query, shown).sort("_id", 1).limit(IDS_SHOWN).to_list()]
    count = len(ids) if len(ids) < IDS_SHOWN else await jobs.count_documents(check.query)
    repaired = 0
    if repair and check.repair and ids:
        repaired = (await jobs.update_many(check.query, check.repair)).modified_count
    return _finding(check, count, ids, repaired)


def _finding(check: DocumentCheck, count: int, ids: list[str], repaired: int = 0) -> Finding:
    is_bad = count > repaired
    return Finding(
        check=check.name,
        level="error" if is_bad else "ok",
        text=f"{count or 'no'} {check.text}",
        evidence={"ids": ids} if ids else {},
        remedy=check.remedy if is_bad else None,
        count=count,
        can_repair=check.repair is not None,
        repaired=repaired,
    )


async def _unique_keys(ctx: MongoContext) -> Finding:
    """Live jobs that have the unique key of another one: the index that refuses them was missing for a time."""
    live = {"uniqueKey": {"$exists": True}, "status": {"$in": LIVE}}
    group = {"_id": {"name": "$name", "key": "$uniqueKey"}, "ids": {"$push": {"$ifNull": ["$jobmill.id", "$_id"]}}}
    several: list[Document] = [{"$match": live}, {"$group": group}, {"$match": {"ids.1": {"$exists": True}}}]
    found = await (await ctx.here.jobs.aggregate(several)).to_list()
    ids = sorted(str(id) for one in found for id in one["ids"])
    remedy = "cancel all but one of them (`jobmill jobs cancel`), then run `jobmill migrate`"
    check = DocumentCheck("unique_key_twice", "live jobs have the unique key of another live job", {}, remedy=remedy)
    return _finding(check, len(ids), ids[:IDS_SHOWN])
