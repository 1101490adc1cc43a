"""Indexes: those that Monque makes itself, under the names that it expects, and those that this store needs.

A Node process fails at its start where an index on its keys has another name or filter. So ours are on other keys.
"""

from __future__ import annotations

from typing import Any

import pymongo
from pymongo import IndexModel
from pymongo.errors import OperationFailure

from jobmill.errors import SchemaTooOld, StoreError
from jobmill.stores.mongo import connection
from jobmill.stores.mongo.codec import FINAL, LIVE
from jobmill.stores.mongo.connection import Collection
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.url import Indexes

MIN_VERSION = (6, 0)
#: Codes of an index that exists with another name, or with other options.
_CONFLICTS = {85, 86}

#: Without these the store would be wrong, not just slow: unique keys, and the ids that callers choose.
UNIQUE_KEY = "name_1_uniqueKey_1"
OWN_ID = "jobmill_id"
NEEDED = (UNIQUE_KEY, OWN_ID)

CLAIM = "jobmill_claim"
DUE = "jobmill_waiting"
LEASE = "jobmill_lease"
RECURRING = "jobmill_recurring"
KEPT = "jobmill_kept"
LAST = "jobmill_last"
FINISHED = "jobmill_final"
FAR = "jobmill_far"
FLOW = "jobmill_flow"
OUTBOX = "jobmill_outbox"
SLOTS = "jobmill_slots"
TURNS = "jobmill_turns"
AUDIT = "jobmill_audit"
#: Indexes of older versions that others replace.
_REPLACED = ("jobmill_due", "jobmill_armed", "jobmill_declared", "jobmill_purge", "jobmill_ended")

#: An index of Monque.
NAME_STATUS = "name_1_status_1"

_MONQUE: list[list[tuple[str, int]]] = [
    [("status", 1), ("nextRunAt", 1)],
    [("name", 1), ("status", 1)],
    [("createdAt", -1), ("_id", -1)],
    [("updatedAt", -1), ("_id", -1)],
    [("nextRunAt", -1), ("_id", -1)],
    [("claimedBy", 1), ("status", 1)],
    [("lastHeartbeat", 1), ("status", 1)],
    [("name", 1), ("status", 1), ("nextRunAt", 1), ("claimedBy", 1)],
    [("status", 1), ("lockedAt", 1), ("lastHeartbeat", 1)],
    [("name", 1), ("status", 1), ("priority", -1), ("nextRunAt", 1), ("_id", 1)],
    [("name", 1), ("createdAt", -1), ("_id", -1)],
    [("status", 1), ("createdAt", -1), ("_id", -1)],
]

_QUEUE = ("jobmill.queue", 1)
#: Keys and partial filters: a waiting job is in some of these, a running job in another one, a final job in neither.
#: Each index costs time with every write, also of jobs that are not in it: the server evaluates its filter.
_OURS: dict[str, tuple[list[tuple[str, int]], dict[str, Any]]] = {
    OWN_ID: ([("jobmill.id", 1)], {"jobmill.id": {"$exists": True}}),
    # In claim order, so that jobs which are not due, or come later, cost nothing.
    CLAIM: ([_QUEUE, ("name", 1), ("priority", -1), ("nextRunAt", 1), ("_id", 1)], {"status": "pending"}),
    # In the order of due times, so that the jobs which are due are one range. With the status as a key, the server
    # counts jobs without reading them: it does not know that the filter of an index implies it. Measured: 5 ms for
    # 10,000 jobs, not 25.
    DUE: ([_QUEUE, ("status", 1), ("nextRunAt", 1), ("name", 1)], {"status": "pending"}),
    # By name: jobs without a handler here cost nothing.
    LEASE: ([_QUEUE, ("name", 1), ("jobmill.leaseUntil", 1)], {"status": "processing"}),
    # Recurring jobs. Those that are armed are ours; Monque may have ended them.
    RECURRING: (
        [("jobmill.armed", 1), ("jobmill.declared", 1), ("status", 1), ("_id", 1)],
        {"$or": [{"jobmill.armed": True}, {"repeatInterval": {"$exists": True}}]},
    ),
    # When final jobs of ours are removed. Nothing says that of jobs that Monque ended: both keys are null.
    KEPT: (
        [("jobmill.purgeAt", 1), ("jobmill.keepLast", 1)],
        {"jobmill.v": 1, "status": {"$in": FINAL}},
    ),
    # Jobs that are held, or due so late that nextRunAt must be moved on.
    FAR: ([_QUEUE, ("status", 1), ("jobmill.due", 1), ("nextRunAt", 1)], {"jobmill.due": {"$exists": True}}),
    # For lists of final jobs, and to count them.
    FINISHED: ([_QUEUE, ("status", 1), ("updatedAt", 1), ("_id", 1)], {"status": {"$in": FINAL}}),
    LAST: ([_QUEUE, ("status", 1), ("updatedAt", -1), ("_id", -1)], {"jobmill.keepLast": {"$exists": True}}),
    FLOW: ([("jobmill.flow", 1), ("status", 1), ("_id", 1)], {"jobmill.flow": {"$exists": True}}),
    # Final jobs that others wait for, and jobs of calls that have not ended. Not live jobs that others wait for: each
    # claim and each settlement of one would write to this index.
    OUTBOX: (
        [("jobmill.staged", 1), ("status", 1)],
        {"$or": [{"jobmill.outbox": True, "status": {"$in": FINAL}}, {"jobmill.staged": {"$exists": True}}]},
    ),
    # Jobs with a slot of their lane. It is unique: the number of a slot is its lock. A job that Monque completes frees
    # its number by itself.
    SLOTS: (
        [_QUEUE, ("jobmill.lane", 1), ("jobmill.laneSlot", 1)],
        {"jobmill.laneSlot": {"$exists": True}, "status": {"$in": LIVE}},
    ),
    # Jobs that their lane holds: those that are ready in the order of their lane, those that are due later by time.
    TURNS: (
        [
            *(_QUEUE, ("jobmill.turn.after", 1), ("jobmill.turn.lane", 1)),
            *(("priority", -1), ("jobmill.joined", 1), ("_id", 1)),
        ],
        {"jobmill.turn.after": {"$exists": True}, "status": "pending"},
    ),
}
_UNIQUE = (OWN_ID, SLOTS)

#: Indexes of other collections.
_OTHERS: dict[str, tuple[str, list[tuple[str, int]]]] = {
    AUDIT: (connection.AUDIT, [("jobs", 1), ("at", -1), ("_id", -1)]),
    # Whether a job has edges in a state: one entry is read for each job.
    "jobmill_edges_of": (connection.EDGES, [("state", 1), ("_id.job", 1)]),
    "jobmill_edges_to": (connection.EDGES, [("on", 1), ("open", 1)]),
    "jobmill_steps_of": (connection.STEPS, [("job", 1)]),
    "jobmill_lanes_again": (connection.LANES, [("_id.queue", 1), ("again", 1)]),
    # For the janitor. Not a TTL index, which removes by the time of the server even where the store has a clock of its
    # own.
    "jobmill_taken_until": (connection.TAKEN_KEYS, [("until", 1)]),
}


async def migrate(ctx: MongoContext) -> list[str]:
    """Make the missing indexes of those that the option `indexes` names; the names of the new ones."""
    await check_version(ctx)
    existing = await index_names(ctx.here.jobs)
    missing = [one for one in models(ctx.url.indexes) if one.document["name"] not in existing]
    created = [str(one.document["name"]) for one in missing]
    for name, (collection, keys) in _OTHERS.items() if ctx.url.indexes != "none" else ():
        other = ctx.here.database[collection]
        if name not in await index_names(other):
            await other.create_index(keys, name=name)
            created.append(name)
    if missing:
        try:
            with pymongo.timeout(None):  # a large collection takes as long as it takes
                await ctx.here.jobs.create_indexes(missing)
        except OperationFailure as error:
            if error.code not in _CONFLICTS:
                raise
            raise StoreError(
                f"{ctx.url.address} already has another index on the same keys: {error}; "
                "drop it, or set indexes=none in the URL and make the indexes yourself"
            ) from error
    for name in existing.intersection(_REPLACED if ctx.url.indexes != "none" else ()):
        await ctx.here.jobs.drop_index(name)
    ctx.indexes = await index_names(ctx.here.jobs)
    return created


async def check_version(ctx: MongoContext) -> None:
    """Refuse servers before MongoDB 6.0: they have no partial indexes over several states."""
    info = await ctx.here.database.command("buildInfo")
    if tuple(info["versionArray"][:2]) < MIN_VERSION:
        raise StoreError(f"{ctx.url.shown} is MongoDB {info['version']}; Jobmill needs MongoDB 6.0 or newer")


async def check_indexes(ctx: MongoContext) -> None:
    """Refuse a collection without the indexes that make jobs unique."""
    ctx.indexes = await index_names(ctx.here.jobs)
    missing = [name for name in NEEDED if name not in ctx.indexes]
    if missing and ctx.url.indexes != "none":
        raise SchemaTooOld(
            f"{ctx.url.address} has no index {' and no '.join(missing)}, without which nothing is unique; "
            "is it the right database? If so run `jobmill migrate`"
        )


async def index_names(collection: Collection) -> set[str]:
    """The names of the indexes of a collection."""
    cursor = await collection.list_indexes()
    return {str(one["name"]) for one in await cursor.to_list()}


def models(which: Indexes) -> list[IndexModel]:
    """The indexes that `migrate` makes. Those of Monque say `background`, as Monque does, though servers ignore it."""
    if which == "none":
        return []
    unique = IndexModel(
        [("name", 1), ("uniqueKey", 1)],
        unique=True,
        background=True,
        partialFilterExpression={"uniqueKey": {"$exists": True}, "status": {"$in": LIVE}},
    )
    theirs = [IndexModel(keys, background=True) for keys in _MONQUE] if which == "monque" else []
    ours = [
        IndexModel(keys, name=name, partialFilterExpression=only, **({"unique": True} if name in _UNIQUE else {}))
        for name, (keys, only) in _OURS.items()
    ]
    return [unique, *theirs, *ours]
