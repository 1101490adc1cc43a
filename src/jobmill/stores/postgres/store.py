"""The port on PostgreSQL: each verb is a statement or a short transaction on one of a few connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from jobmill.stores.common.ids import new_id
from jobmill.stores.common.verb import verb
from jobmill.stores.postgres import (
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
    schema,
    search,
    steps,
    usage,
    wake,
    within,
)
from jobmill.stores.postgres.context import PostgresContext
from jobmill.stores.postgres.url import PostgresUrl


class PostgresStore:
    """Jobs in a schema of a PostgreSQL database. Migrations are explicit: `migrate`, or `jobmill migrate`."""

    name: ClassVar[str] = "postgres"
    exchanges_in_flight: ClassVar[int] = 2

    def __init__(
        self, url: str, *, schema: str | None = None, pool: int | None = None, clock: Callable[[], int] | None = None
    ) -> None:
        self.context = PostgresContext(PostgresUrl.parse(url, schema=schema, pool_size=pool), clock)

    @property
    def address(self) -> str:
        return self.context.url.address

    open = verb(schema.open_schema)
    migrate = verb(schema.migrate)

    async def close(self) -> None:
        await self.context.loops.close()

    def now(self) -> int:
        return self.context.clock.now()

    def new_id(self) -> str:
        return new_id()

    enqueue_shared = verb(enqueue.enqueue_shared)
    enqueue = verb(enqueue.enqueue)
    enqueue_within = verb(within.enqueue_within)
    exchange = verb(exchange.exchange)
    extend = verb(extend.extend)
    report = verb(report.report)
    wait_for_work = verb(wake.wait_for_work)
    wait_for_cancel = verb(hints.wait_for_cancel)
    wait_for_end = verb(hints.wait_for_end)
    change = verb(change.change)
    purge = verb(purge.purge)
    record_usage = verb(usage.record_usage)

    flush_outbox = verb(flows.flush_outbox)
    dependencies = verb(flows.dependencies)
    dependents = verb(flows.dependents)
    record_step = verb(steps.record_step)
    recorded = verb(steps.recorded)
    signal = verb(steps.signal)
    flow_counts = verb(flows.flow_counts)
    edges = verb(flows.edges)
    flows = verb(flows.flows)

    def check_unlocked(self) -> None:
        """A transaction of the caller's locks nothing here but the keys that it has enqueued."""

    get = verb(read.get)
    lease_ends = verb(read.lease_ends)
    find = verb(search.find)
    count = verb(read.count)
    count_up_to = verb(search.count_up_to)
    depths = verb(read.depths)
    stats = verb(read.stats)
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

    # For modules that extend the schema, and for scripts, which are made without asking the server.
    run_as_migration = verb(schema.run_as_migration)

    def migration_script(self, more: str = "") -> str:
        """All migrations, and more SQL in the same transaction, as a script."""
        return schema.script(self.context.statements, more)

    def roles_script(self) -> str:
        """Roles with the rights that they need, as a script."""
        return schema.roles_script(self.context.statements)
