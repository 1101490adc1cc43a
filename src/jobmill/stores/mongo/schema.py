"""Indexes: those that Monque makes itself, under the names that it expects, and those that this store needs.

Another name or another filter on the keys of one of Monque's makes a Node process fail when it starts, so ours are on
keys that Monque does not use.
"""

from __future__ import annotations

from typing import Any

from pymongo import IndexModel

from jobmill.stores.mongo.url import Indexes

_LIVE = {"$in": ["pending", "processing"]}

#: Without these the store is wrong, not slow: unique keys, and the caller's own ids.
UNIQUE_KEY = "name_1_uniqueKey_1"
OWN_ID = "jobmill_id"
NEEDED = (UNIQUE_KEY, OWN_ID)

CLAIM = "jobmill_claim"
DUE = "jobmill_due"
LEASE = "jobmill_lease"
ARMED = "jobmill_armed"
PURGE = "jobmill_purge"
LAST = "jobmill_last"

#: One of Monque's.
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


def models(which: Indexes) -> list[IndexModel]:
    """What `migrate` makes."""
    if which == "none":
        return []
    unique = IndexModel(
        [("name", 1), ("uniqueKey", 1)],
        unique=True,
        partialFilterExpression={"uniqueKey": {"$exists": True}, "status": _LIVE},
    )
    theirs = [IndexModel(keys) for keys in _MONQUE] if which == "monque" else []
    return [unique, *theirs, *_ours()]


def _ours() -> list[IndexModel]:
    """Partial ones: a job is in one while it waits, in another while it runs, and in none of both when it is final."""
    pending: dict[str, Any] = {"partialFilterExpression": {"status": "pending"}}
    return [
        IndexModel(
            [("jobmill.id", 1)],
            name=OWN_ID,
            unique=True,
            partialFilterExpression={"jobmill.id": {"$exists": True}},
        ),
        # In claim order, so that what is not due, and what waits behind, costs nothing.
        IndexModel(
            [("jobmill.queue", 1), ("name", 1), ("priority", -1), ("nextRunAt", 1), ("_id", 1)], name=CLAIM, **pending
        ),
        IndexModel([("jobmill.queue", 1), ("name", 1), ("nextRunAt", 1)], name=DUE, **pending),
        # By name: what nobody here works is in nobody's way.
        IndexModel(
            [("jobmill.queue", 1), ("name", 1), ("jobmill.leaseUntil", 1)],
            name=LEASE,
            partialFilterExpression={"status": "processing"},
        ),
        IndexModel([("jobmill.armed", 1)], name=ARMED, partialFilterExpression={"jobmill.armed": True}),
        IndexModel(
            [("jobmill.purgeAt", 1)], name=PURGE, partialFilterExpression={"jobmill.purgeAt": {"$exists": True}}
        ),
        IndexModel(
            [("jobmill.queue", 1), ("status", 1), ("updatedAt", -1), ("_id", -1)],
            name=LAST,
            partialFilterExpression={"jobmill.keepLast": {"$exists": True}},
        ),
    ]
