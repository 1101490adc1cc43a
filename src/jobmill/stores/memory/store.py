"""The reference store: the whole port in plain Python, in one process, gone when the process ends.

Read it to learn what a verb promises. Each verb is a function of a context, in a file of its own. A lock lets one verb
run at a time, so that threads with their own event loops may share the store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

from jobmill.core.findings import Finding, StoreFacts, reachable
from jobmill.stores.common.bell import Bell
from jobmill.stores.common.ids import new_id
from jobmill.stores.memory import (
    announce,
    audit,
    change,
    enqueue,
    exchange,
    extend,
    feed,
    flows,
    lanes,
    purge,
    queues,
    read,
    report,
    search,
    steps,
)
from jobmill.stores.memory.context import MemoryContext

T = TypeVar("T")
P = ParamSpec("P")


def _verb(
    function: Callable[Concatenate[MemoryContext, P], T],
) -> Callable[Concatenate[MemoryStore, P], Coroutine[Any, Any, T]]:
    """A method that runs a function alone, at one instant, and wakes sleeping workers where it may have made work."""

    async def method(store: MemoryStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        context = store._context
        with store._lock:
            context.now_ms, context.wakes = store.now(), False
            answer = function(context, *args, **kwargs)
            if context.jobs.changed_lanes:
                lanes.fill(context)
            if context.wakes:
                store._bell.ring()
        return answer

    return method


class MemoryStore:
    """Jobs in dictionaries."""

    name: ClassVar[str] = "memory"
    exchanges_in_flight: ClassVar[int] = 1

    def __init__(self, *, clock: Callable[[], int] | None = None) -> None:
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._lock = threading.Lock()
        self._bell = Bell()
        self._context = MemoryContext()

    @property
    def address(self) -> str:
        """This process."""
        return "this process"

    async def open(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """There is nothing to close: the jobs live as long as this object."""

    async def migrate(self) -> list[str]:
        """There is nothing to migrate."""
        return []

    def now(self) -> int:
        """The clock that was passed in, or this machine's."""
        return self._clock()

    def new_id(self) -> str:
        """A uuid7."""
        return new_id()

    async def diagnose(self) -> list[Finding]:
        """There is no database that could be set up wrongly."""
        return [reachable(StoreFacts(product="the memory of this process", response_ms=0))]

    async def fsck(self, *, repair: bool = False) -> list[Finding]:
        """Nothing else writes to these dictionaries."""
        return []

    async def wait_for_work(self, queues: Sequence[str], until_ms: int) -> None:
        await self._bell.wait(queues, (until_ms - self._clock()) / 1000)

    async def wait_for_cancel(self, ids: Collection[str], until_ms: int) -> None:
        await self._context.cancels.wait(ids, (until_ms - self._clock()) / 1000)

    async def wait_for_end(self, id: str, queue: str, until_ms: int) -> None:
        await self._context.ends.wait((id,), (until_ms - self._clock()) / 1000)

    enqueue = _verb(enqueue.enqueue)
    exchange = _verb(exchange.exchange)
    extend = _verb(extend.extend)
    report = _verb(report.report)
    change = _verb(change.change)
    purge = _verb(purge.purge)

    flush_outbox = _verb(flows.flush_outbox)
    dependencies = _verb(flows.dependencies)
    dependents = _verb(flows.dependents)
    flow_counts = _verb(flows.flow_counts)
    edges = _verb(flows.edges)
    flows = _verb(flows.flows)
    record_step = _verb(steps.record_step)
    recorded = _verb(steps.recorded)
    signal = _verb(steps.signal)

    get = _verb(read.get)
    lease_ends = _verb(read.lease_ends)
    find = _verb(search.find)
    count = _verb(read.count)
    count_up_to = _verb(search.count_up_to)
    depths = _verb(read.depths)
    stats = _verb(read.stats)
    logs = _verb(read.logs)

    configure = _verb(queues.configure)
    settings = _verb(queues.settings)
    configure_lane = _verb(queues.configure_lane)
    lanes = _verb(lanes.lanes)
    publish = _verb(feed.publish)
    events = _verb(feed.events)

    workers = _verb(announce.workers)
    order_stop = _verb(announce.order_stop)
    tallies = _verb(announce.tallies)
    announce = _verb(announce.announce)
    audit_log = _verb(audit.audit_log)
    audit = _verb(audit.audit)
