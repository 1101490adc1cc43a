"""Who is measured on which store, as the parent sees them."""

from __future__ import annotations

import importlib
from typing import Any, TypeVar

from msgspec import Struct, structs

from bench.child import Child, begin
from bench.peers import node
from bench.queues import About, Queue

R = TypeVar("R")


class Contender(Struct, frozen=True, kw_only=True):
    """A job queue, measured in fresh processes by the scenarios of `bench/scenarios.py` or of a script on Node.js."""

    about: About
    #: `module:class` of a contender in Python, or the name of a script.
    adapter: str
    has_bulk: bool = True
    max_slots: int | None = None
    rate: tuple[float, float] = (1_000, 1_000)
    #: What the URL says beside the database, and what the script is given.
    url_options: dict[str, str] = {}
    options: dict[str, Any] = {}
    #: A target names it: it has a turn in every round.
    is_rival: bool = False

    @property
    def name(self) -> str:
        """As it stands in the tables."""
        return self.about.name

    @property
    def program(self) -> str:
        """All variants of one program fill their databases alike."""
        return self.name.partition(",")[0] if self.is_on_node else self.adapter

    @property
    def is_on_node(self) -> bool:
        """Whether it is a script."""
        return self.adapter.endswith(".mjs")

    def missing(self) -> str | None:
        """Why it cannot be measured; None when it can."""
        return node.missing() if self.is_on_node else _queue(self.adapter).missing()

    def takes(self, slots: int) -> int:
        """At most this number of slots."""
        return slots if self.max_slots is None else min(slots, self.max_slots)

    def begin(self, scenario: str, answer: type[R], **arguments: Any) -> Child[R]:
        """Start a scenario in a fresh process."""
        if self.is_on_node:
            return node.start(self.adapter, scenario, answer, options=self.options, **arguments)
        return begin(f"bench.scenarios:{scenario}", answer, adapter=self.adapter, **arguments)

    def run(self, scenario: str, answer: type[R], **arguments: Any) -> R:
        """Run a scenario to its end."""
        with self.begin(scenario, answer, **arguments) as child:
            return child.result()


def _queue(adapter: str) -> type[Queue]:
    module, _, name = adapter.partition(":")
    queue: type[Queue] = getattr(importlib.import_module(module), name)
    return queue


def _python(adapter: str, **more: Any) -> Contender:
    adapter = f"bench.peers.{adapter}"
    queue = _queue(adapter)
    return Contender(
        about=queue.about, adapter=adapter, has_bulk=queue.has_bulk, max_slots=queue.max_slots, rate=queue.rate, **more
    )


GRAPHILE = Contender(
    about=About(
        name="graphile",
        settings="graphile-worker whose concurrentJobs is the number of slots, other defaults; `local queue of 500` "
        "with completeJobBatchDelay and failJobBatchDelay of 0 is the configuration of its own figures; no named "
        "queues, no logging; finished jobs are deleted",
        guarantee="repeated: another worker takes up jobs that have been locked for 4 hours",
        tried="told by its source; nobody waited for it",
        docs="https://worker.graphile.org/docs/performance",
    ),
    adapter="graphile.mjs",
    rate=(1_400, 2_800),
)
GRAPHILE_TUNED = structs.replace(
    GRAPHILE,
    about=structs.replace(GRAPHILE.about, name="graphile, local queue of 500"),
    options={"localQueue": 500},
    rate=(40_000, 40_000),
    is_rival=True,
)
PG_BOSS = Contender(
    about=About(
        name="pg-boss",
        settings="pg-boss with a worker whose batchSize is the number of slots, burstWhenBatchFull and "
        "burstWhenReadyExceeds=1 (at 1 slot a full batch does not count, so that the statistics of `supervise` keep it "
        "fetching), queues with notify and useListenNotify; a batch is completed as one, before the next is fetched; "
        "other defaults: finished jobs are kept for 7 days",
        guarantee="repeated: every minute jobs that have run for longer than 15 minutes are retried, up to 2 times",
        tried="told by its source; nobody waited for it",
        docs="https://pgboss.io/api/workers",
    ),
    adapter="pgboss.mjs",
    rate=(580, 20_000),
)
BULLMQ = Contender(
    about=About(
        name="bullmq, Node.js",
        settings="a Worker whose concurrency is the number of slots, other defaults, with ioredis; enqueues by add and "
        "addBulk on one connection; every job is kept; no metrics",
        guarantee="kept: another worker takes them up within 60 s after the end of their lock of 30 s",
        tried="it was run again after 59 s",
        docs="https://docs.bullmq.io/guide/workers/concurrency",
    ),
    adapter="bullmq.mjs",
    rate=(3_200, 14_000),
    is_rival=True,
)
AGENDA = Contender(
    about=About(
        name="agenda, Node.js",
        settings="maxConcurrency and the job's concurrency are the number of slots, no limit of locks (its default), "
        "processEvery 100 ms; pickup: its channel of change streams; idle memory and recovery: neither; enqueues by "
        "now, and has no call for many; every job is kept",
        guarantee="repeated: another process takes up jobs that have been locked for 10 minutes",
        tried="told by its source; nobody waited for it",
        docs="https://github.com/agenda/agenda#readme",
    ),
    adapter="agenda.mjs",
    has_bulk=False,
    rate=(250, 220),
    is_rival=True,
)
MONGODB_CRON = Contender(
    about=About(
        name="mongodb-cron, Node.js",
        settings="as many schedulers in one process as there are slots, on one MongoClient; the sparse index of its "
        "docs; idleDelay 100, other defaults",
        guarantee="kept: another scheduler takes them when their lock has ended",
    ),
    adapter="mongodb_cron.mjs",
    is_rival=True,
)

#: Handlers in processes of their own, on Redis, with their numbers of slots.
ISOLATED = (
    (_python("isolated:Forked"), (10,)),
    (_python("isolated:Pooled"), (10,)),
    (_python("isolated:RqForking"), (1, 10)),
    (_python("isolated:CeleryPrefork"), (10,)),
)

#: By store: Jobmill first, then the peers.
CONTENDERS: dict[str, tuple[Contender, ...]] = {
    "memory": (_python("jobmill:InMemory"),),
    "sqlite": (_python("jobmill:OnSqlite"), _python("huey:OnSqlite", is_rival=True)),
    "postgres": (
        _python("jobmill:OnPostgres"),
        _python("pgqueuer:PgQueuer", is_rival=True),
        _python("pgqueuer:Unlimited"),
        _python("procrastinate:Procrastinate", is_rival=True),
        *map(_python, ("saq:OnPostgres", "chancy:Chancy", "oban:Oban")),
        GRAPHILE,
        GRAPHILE_TUNED,
        PG_BOSS,
    ),
    "redis": (
        _python("jobmill:OnRedis"),
        BULLMQ,
        _python("bullmq:BullMQ", is_rival=True),
        *map(_python, ("huey:OnRedis", "rq:Rq", "saq:OnRedis", "taskiq:Taskiq")),
        *map(_python, ("dramatiq:Dramatiq", "celery:Celery", "arq:Arq")),
    ),
    "mongo": (
        _python("jobmill:OnMongo", url_options={"indexes": "lean"}),
        _python("jobmill:OnMongoWithMonquesIndexes", url_options={"indexes": "monque"}),
        _python("monque:FindAndModify", is_rival=True),
        AGENDA,
    ),
    "crontab": (MONGODB_CRON,),
}
