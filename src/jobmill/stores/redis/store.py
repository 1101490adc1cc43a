"""The port on Redis: BullMQ's data and scripts of our own, so that Node's processes may share every queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from jobmill.errors import StoreError
from jobmill.stores.common.ids import new_id
from jobmill.stores.common.verb import verb
from jobmill.stores.redis import (
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
    lanes,
    purge,
    queues,
    read,
    report,
    search,
    steps,
    wake,
)
from jobmill.stores.redis.bullmq import BullmqDoor
from jobmill.stores.redis.context import RedisContext

# Scripts use RPOP with a count, LPOS and COPY, which Redis has since 6.2.
MIN_VERSION = (6, 2)


class RedisStore:
    """Jobs in the format of BullMQ. There is nothing to migrate, because the first job creates its queue."""

    name: ClassVar[str] = "redis"
    exchanges_in_flight: ClassVar[int] = 2

    def __init__(self, url: str, *, clock: Callable[[], int] | None = None, linger_ms: int | None = None) -> None:
        self.context = RedisContext(url, clock, linger_ms)
        self._is_checked = False

    @property
    def address(self) -> str:
        """The URL without its password, and the prefix."""
        return self.context.url.address

    def bullmq(self, queue: str) -> BullmqDoor:
        """The operations on a queue that `jobmill.bullmq` needs and that the port does not have."""
        return BullmqDoor(self.context, queue)

    async def open(self) -> None:
        """Connect, check the server, measure the clock."""
        if not self._is_checked:
            await self._check_version()
            # A server that still loads its data answers INFO and TIME, but not this command.
            await self.context.client.call(self.context.registry, "EXISTS", self.context.registry)
            self._is_checked = True
        await self.context.learn_time()

    async def close(self) -> None:
        """Close all connections, also those of other event loops."""
        await self.context.client.close()

    async def migrate(self) -> list[str]:
        """Nothing to migrate."""
        return []

    def now(self) -> int:
        return self.context.clock.now()

    def new_id(self) -> str:
        return new_id()

    enqueue = verb(enqueue.enqueue)
    exchange = verb(exchange.exchange)
    extend = verb(extend.extend)
    report = verb(report.report)
    wait_for_work = verb(wake.wait_for_work)
    wait_for_cancel = verb(hints.wait_for_cancel)
    wait_for_end = verb(hints.wait_for_end)
    change = verb(change.change)
    purge = verb(purge.purge)

    flush_outbox = verb(flows.flush_outbox)
    dependencies = verb(flows.dependencies)
    dependents = verb(flows.dependents)
    flow_counts = verb(flows.flow_counts)
    edges = verb(flows.edges)
    flows = verb(flows.flows)
    record_step = verb(steps.record_step)
    recorded = verb(steps.recorded)
    signal = verb(steps.signal)

    get = verb(read.get)
    lease_ends = verb(read.lease_ends)
    find = verb(search.find)
    count = verb(search.count)
    count_up_to = verb(search.count_up_to)
    depths = verb(read.depths)
    stats = verb(search.stats)
    logs = verb(read.logs)

    configure = verb(queues.configure)
    settings = verb(queues.settings)
    configure_lane = verb(lanes.configure_lane)
    lanes = verb(lanes.lanes)
    publish = verb(feed.publish)
    events = verb(feed.events)

    workers = verb(announce.workers)
    order_stop = verb(announce.order_stop)
    tallies = verb(announce.tallies)
    announce = verb(announce.announce)
    audit_log = verb(audit.audit_log)
    audit = verb(audit.audit)

    diagnose = verb(diagnose.diagnose)
    fsck = verb(fsck.fsck)

    async def _check_version(self) -> None:
        info: bytes = await self.context.client.call(self.context.key(""), "INFO", "server")
        version = next((line[14:] for line in info.decode().splitlines() if line.startswith("redis_version:")), "")
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
        if numbers < MIN_VERSION:
            raise StoreError(f"{self.context.url.text} is Redis {version}; Jobmill needs Redis 6.2 or newer, or Valkey")
