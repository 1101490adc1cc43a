"""Finished runs of recurring jobs that wait again, for the statistics (the collection jobmill_runs).

_id           .at: when the run finished; .run: an ObjectId. So the oldest runs are found without another index.
jobs          the collection of its job
queue, name, state, durationMs
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bson import MaxKey

from jobmill.core.job import RUNS_KEPT_MS
from jobmill.core.values import Count, Settled
from jobmill.stores.mongo.codec import LIVE, date
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.ids import new_object_id

if TYPE_CHECKING:
    from jobmill.core.values import Settlement

#: The durations of a queue and name are those of this many runs, the last ones.
MAX_RUNS = 10_000


async def note_runs(
    ctx: MongoContext, settlements: Sequence[Settlement], settled: Sequence[Settled], now_ms: int
) -> None:
    """Note the runs that settlements ended. A job that is final counts itself."""
    done = [one for one, answer in zip(settlements, settled, strict=True) if one.runs and answer == "done"]
    # The last run of a recurrence is not the last one where the recurrence was updated meanwhile.
    final = [one.lease.id for one in done if one.state != "waiting"]
    live = {id for id, job in (await ctx.by_ids(final)).items() if job["status"] in LIVE} if final else set()
    runs = [
        {
            "_id": {"at": date(now_ms), "run": new_object_id()},
            "jobs": ctx.url.collection,
            "queue": one.lease.queue,
            "name": one.lease.name,
            "state": one.run_state,
            "durationMs": now_ms - one.runs.started_ms,
        }
        for one in done
        if one.runs is not None and (one.state == "waiting" or one.lease.id in live)
    ]
    if runs:
        await ctx.here.runs.insert_many(runs)


async def purge_runs(ctx: MongoContext, now_ms: int) -> None:
    """Delete the runs that are too old for the statistics."""
    last = {"at": date(now_ms - RUNS_KEPT_MS), "run": MaxKey()}
    await ctx.here.runs.delete_many({"_id": {"$lte": last}})


async def counted_runs(
    ctx: MongoContext, queue: str | None, name: str | None
) -> tuple[list[Count], dict[tuple[str, str], list[float]]]:
    """The numbers of runs, and the durations of the last succeeded ones by queue and name."""
    given = {"queue": queue, "name": name}
    match = {"jobs": ctx.url.collection} | {field: value for field, value in given.items() if value is not None}
    group = {
        "_id": {"queue": "$queue", "name": "$name", "state": "$state"},
        "count": {"$sum": 1},
        "last": {"$firstN": {"input": "$durationMs", "n": MAX_RUNS}},
    }
    cursor = await ctx.here.runs.aggregate([{"$match": match}, {"$sort": {"_id": -1}}, {"$group": group}])
    counts: list[Count] = []
    durations: dict[tuple[str, str], list[float]] = {}
    for one in await cursor.to_list():
        counts.append(Count(**one["_id"], count=one["count"]))
        if one["_id"]["state"] == "succeeded":
            durations[one["_id"]["queue"], one["_id"]["name"]] = one["last"]
    return counts, durations
