"""The verb diagnose: how the servers and the collection are set up."""

from __future__ import annotations

from pymongo.errors import OperationFailure

from jobmill.core.findings import Finding, StoreFacts, reachable
from jobmill.stores.common.response import response_ms
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.schema import NEEDED, index_names, models

#: The code of a command that the user has no right to.
UNAUTHORIZED = 13


async def diagnose(ctx: MongoContext) -> list[Finding]:
    """See the port."""
    response = await ctx.measure_clock()
    return [
        await _facts(ctx),
        _replica_set("setName" in response or response.get("msg") == "isdbgrid"),
        _members(response),
        await _indexes(ctx),
    ]


async def _facts(ctx: MongoContext) -> Finding:
    database = ctx.here.database
    answers_ms = await response_ms(lambda: database.command("ping"))
    version = str((await database.command("buildInfo"))["version"])
    size = await _size_bytes(ctx)
    return reachable(StoreFacts(product="MongoDB", version=version, response_ms=answers_ms, size_bytes=size))


async def _size_bytes(ctx: MongoContext) -> int | None:
    """What the collections and their indexes take; None for a user who may not ask for it."""
    here = ctx.here
    collections = (here.jobs, here.queues, here.events, here.logs, here.runs, here.workers, here.tallies, here.audit)
    try:
        answers = [await here.database.command("collStats", one.name) for one in collections]
    except OperationFailure as error:
        if error.code == UNAUTHORIZED:
            return None
        raise
    return sum(int(one.get("totalSize", 0)) for one in answers)


def _replica_set(is_member: bool) -> Finding:
    if is_member:
        return Finding(check="replica_set", text="the servers have change streams and transactions")
    return Finding(
        check="replica_set",
        level="warning",
        text="the server is in no replica set: workers query for jobs every 0.2 s, and there are no transactions",
        remedy="make it a replica set (one member is enough): --replSet and rs.initiate()",
    )


def _members(response: dict[str, object]) -> Finding:
    """Writes wait for a majority of the members, and an arbiter has no data."""
    hosts, arbiters = (list(response.get(name, ())) for name in ("hosts", "arbiters"))  # type: ignore[call-overload]
    evidence = {"hosts": hosts, "arbiters": arbiters}
    if not arbiters:
        return Finding(check="members", text="no member of the replica set is an arbiter", evidence=evidence)
    return Finding(
        check="members",
        level="warning",
        text="the replica set has an arbiter: while a member with data is away, writes may find no majority",
        evidence=evidence,
        remedy="replace the arbiter with a member that has data",
    )


async def _indexes(ctx: MongoContext) -> Finding:
    wanted = [str(one.document["name"]) for one in models("lean" if ctx.url.indexes == "none" else ctx.url.indexes)]
    missing = sorted(set(wanted) - await index_names(ctx.here.jobs))
    if not missing:
        return Finding(check="indexes", text="all indexes are there")
    needed = [name for name in missing if name in NEEDED]
    what = "ids and unique keys are not unique" if needed else "some queries read all jobs"
    return Finding(
        check="indexes",
        level="error" if needed else "warning",
        text=f"{', '.join(missing)} missing: {what}",
        evidence={"missing": missing},
        remedy="run `jobmill migrate`, or make them yourself if the URL says indexes=none",
    )
