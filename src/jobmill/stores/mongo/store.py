"""The port on MongoDB: Monque's documents, changed by commands of our own, so that Node processes can share them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

from jobmill.stores.common.verb import verb
from jobmill.stores.mongo import (
    announce,
    audit,
    change,
    diagnose,
    enqueue,
    exchange,
    extend,
    feed,
    flows,
    fsck,
    hints,
    lane_walk,
    outbox,
    purge,
    queues,
    read,
    report,
    schema,
    search,
    steps,
    wake,
    within,
)
from jobmill.stores.mongo.connection import translated_errors
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.ids import new_object_id

T = TypeVar("T")
P = ParamSpec("P")


def _translated(
    function: Callable[Concatenate[MongoContext, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[MongoContext, P], Coroutine[Any, Any, T]]:
    """A function that raises errors of pymongo as Jobmill's own."""

    async def translated(context: MongoContext, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with translated_errors(context.url):
            return await function(context, *args, **kwargs)

    return translated


class MongoStore:
    """Jobs in a collection that Monque can share."""

    name: ClassVar[str] = "mongo"
    exchanges_in_flight: ClassVar[int] = 2

    def __init__(self, url: str, clock: Callable[[], int] | None = None) -> None:
        self.context = MongoContext(url, clock)
        self._is_checked = False

    @property
    def address(self) -> str:
        """The URL without its password, and the collection."""
        return self.context.url.address

    async def open(self) -> None:
        """Connect, check version and indexes, measure the clock."""
        ctx = self.context
        with translated_errors(ctx.url):
            response = await ctx.measure_clock()
            if not self._is_checked:
                await schema.check_version(ctx)
                await schema.check_indexes(ctx)
                self._is_checked = True
        if "setName" not in response and response.get("msg") != "isdbgrid":
            wake.note_standalone(ctx)

    async def close(self) -> None:
        """Close all connections, also those of other loops."""
        await asyncio.gather(self.context.streams.close(), self.context.end_polls.close())
        await self.context.connections.close()

    migrate = verb(_translated(schema.migrate))

    def now(self) -> int:
        """See the port."""
        return self.context.now()

    def new_id(self) -> str:
        """An ObjectId."""
        return str(new_object_id())

    enqueue_within = verb(within.enqueue_within)

    def check_unlocked(self) -> None:
        """Nothing blocks: MongoDB reports conflicts instead."""

    enqueue_shared = enqueue = verb(_translated(enqueue.enqueue))
    exchange = verb(_translated(exchange.exchange))
    extend = verb(_translated(extend.extend))
    report = verb(_translated(report.report))
    wait_for_work = verb(wake.wait_for_work)
    wait_for_cancel = verb(hints.wait_for_cancel)
    wait_for_end = verb(hints.wait_for_end)
    change = verb(_translated(change.change))
    purge = verb(_translated(purge.purge))

    flush_outbox = verb(_translated(outbox.flush_outbox))
    dependencies = verb(_translated(flows.dependencies))
    dependents = verb(_translated(flows.dependents))
    flow_counts = verb(_translated(flows.flow_counts))
    edges = verb(_translated(flows.edges))
    flows = verb(_translated(flows.flows))
    record_step = verb(_translated(steps.record_step))
    recorded = verb(_translated(steps.recorded))
    signal = verb(_translated(steps.signal))

    get = verb(_translated(read.get))
    lease_ends = verb(_translated(read.lease_ends))
    find = verb(_translated(search.find))
    count = verb(_translated(read.count))
    count_up_to = verb(_translated(search.count_up_to))
    depths = verb(_translated(read.depths))
    stats = verb(_translated(read.stats))
    logs = verb(_translated(read.logs))

    configure = verb(_translated(lane_walk.configure))
    configure_lane = verb(_translated(lane_walk.configure_lane))
    lanes = verb(_translated(lane_walk.lanes))
    settings = verb(_translated(queues.settings))
    publish = verb(_translated(feed.publish))
    events = verb(_translated(feed.events))

    workers = verb(_translated(announce.workers))
    order_stop = verb(_translated(announce.order_stop))
    tallies = verb(_translated(announce.tallies))
    announce = verb(_translated(announce.announce))
    audit_log = verb(_translated(audit.audit_log))
    audit = verb(_translated(audit.audit))

    diagnose = verb(_translated(diagnose.diagnose))
    fsck = verb(_translated(fsck.fsck))
