"""The measures, in the order in which they run: each records figures, and judges them by its targets."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from bench.figures import Results, Verdict
from bench.lab import Lab
from bench.measures import (
    beside,
    crontab_drain,
    crontab_idle,
    depth,
    drain,
    enqueue,
    handlers,
    history,
    limit,
    load,
    memory,
    mongo_depth,
    mongo_drain,
    mongo_enqueue,
    mongo_pickup,
    pickup,
    postgres_depth,
    postgres_drain,
    postgres_enqueue,
    postgres_pickup,
    postgres_snapshot,
    recovery,
    redis_active,
    redis_bytes,
    redis_drain,
    redis_enqueue,
    redis_pickup,
    roundtrip,
    scaling,
    written,
)


class Measure(Struct, frozen=True):
    """What is done on which stores, and what is said about it."""

    kind: str
    stores: tuple[str, ...]
    about: str
    run: Callable[[Lab], None]
    verdicts: Callable[[Results], list[Verdict]]


FILES = ("sqlite", "memory")
POSTGRES = ("postgres",)
REDIS = ("redis",)
MONGO = ("mongo",)
SERVERS = (*POSTGRES, *REDIS, *MONGO)
CRONTAB = ("crontab",)
#: All that keep jobs for other processes too.
SHARED = ("sqlite", *SERVERS)

MEASURES = {
    "drain": Measure(
        "drain", FILES, "one worker process runs no-op jobs that wait in a file", drain.run, drain.verdicts
    ),
    "enqueue": Measure("enqueue", FILES, "one by one, from concurrent callers, in bulk", enqueue.run, enqueue.verdicts),
    "pickup": Measure(
        "pickup", FILES, "from an enqueue to the start of its job in an idle worker", pickup.run, pickup.verdicts
    ),
    "depth": Measure("depth", FILES, "cost per job while many others wait, or are delayed", depth.run, depth.verdicts),
    "beside": Measure("beside", FILES, "a worker beside one CPU-bound sync handler", beside.run, beside.verdicts),
    postgres_drain.NAME: Measure(
        "drain",
        POSTGRES,
        "one worker process runs no-op jobs that wait; from the first run until the last is settled in the database",
        postgres_drain.run,
        postgres_drain.verdicts,
    ),
    postgres_enqueue.NAME: Measure(
        "enqueue",
        POSTGRES,
        "one by one, from concurrent callers, in bulk",
        postgres_enqueue.run,
        postgres_enqueue.verdicts,
    ),
    postgres_pickup.NAME: Measure(
        "pickup",
        POSTGRES,
        "from an enqueue in another process to the start of its job in an idle worker",
        postgres_pickup.run,
        postgres_pickup.verdicts,
    ),
    postgres_depth.NAME: Measure(
        "depth",
        POSTGRES,
        "the rate while many others wait, and as many are delayed by a day",
        postgres_depth.run,
        postgres_depth.verdicts,
    ),
    postgres_snapshot.NAME: Measure(
        "snapshot",
        POSTGRES,
        "the rate while another transaction holds a snapshot, so that nothing can be cleaned up",
        postgres_snapshot.run,
        postgres_snapshot.verdicts,
    ),
    redis_drain.NAME: Measure(
        "drain",
        REDIS,
        "one worker process runs no-op jobs that wait; from the first run until the last is settled on the server",
        redis_drain.run,
        redis_drain.verdicts,
    ),
    redis_enqueue.NAME: Measure(
        "enqueue",
        REDIS,
        "one by one, from concurrent callers, in bulk",
        redis_enqueue.run,
        redis_enqueue.verdicts,
    ),
    redis_pickup.NAME: Measure(
        "pickup",
        REDIS,
        "from an enqueue in another process to the start of its job in an idle worker",
        redis_pickup.run,
        redis_pickup.verdicts,
    ),
    redis_bytes.NAME: Measure(
        "bytes",
        REDIS,
        "memory of the server for each job that waits",
        redis_bytes.run,
        redis_bytes.verdicts,
    ),
    redis_active.NAME: Measure(
        "active",
        REDIS,
        "single calls while 10,000 jobs are running",
        redis_active.run,
        redis_active.verdicts,
    ),
    mongo_drain.NAME: Measure(
        "drain",
        MONGO,
        "one worker process runs no-op jobs that wait; from the first run until the last is settled on the server",
        mongo_drain.run,
        mongo_drain.verdicts,
    ),
    mongo_enqueue.NAME: Measure(
        "enqueue",
        MONGO,
        "one by one, from concurrent callers, in bulk",
        mongo_enqueue.run,
        mongo_enqueue.verdicts,
    ),
    mongo_pickup.NAME: Measure(
        "pickup",
        MONGO,
        "from an enqueue in another process to the start of its job in an idle worker",
        mongo_pickup.run,
        mongo_pickup.verdicts,
    ),
    mongo_depth.NAME: Measure(
        "depth",
        MONGO,
        "the rate while many others wait, and as many are delayed by a day",
        mongo_depth.run,
        mongo_depth.verdicts,
    ),
    crontab_drain.NAME: Measure(
        "drain",
        CRONTAB,
        "due no-op documents of a MongoDB collection are run; from the first run until no document has a date",
        crontab_drain.run,
        crontab_drain.verdicts,
    ),
    crontab_idle.NAME: Measure(
        "idle",
        CRONTAB,
        "a poll that finds nothing while 100,000 documents sleep, by the server's own clock",
        crontab_idle.run,
        crontab_idle.verdicts,
    ),
    scaling.NAME: Measure(
        "scaling", SHARED, "several worker processes run the no-op jobs of one queue", scaling.run, scaling.verdicts
    ),
    roundtrip.NAME: Measure(
        "roundtrip",
        SERVERS,
        "through a proxy that adds 2 ms to every round trip, and some time of its own; peers in full runs only, most "
        "of them once",
        roundtrip.run,
        roundtrip.verdicts,
    ),
    recovery.NAME: Measure(
        "recovery",
        SHARED,
        "a worker is killed with kill -9, another one stands by; all at the same time",
        recovery.run,
        recovery.verdicts,
    ),
    memory.NAME: Measure(
        "memory",
        SHARED,
        "resident memory of a worker process at 50 slots, the harness in it included",
        memory.run,
        memory.verdicts,
    ),
    handlers.NAME: Measure(
        "handlers",
        SHARED,
        "one worker process runs no-op handlers on its loop, in threads, and in processes of their own",
        handlers.run,
        handlers.verdicts,
    ),
    history.NAME: Measure(
        "history",
        SHARED,
        "one worker process runs no-op jobs while finished ones are kept",
        history.run,
        history.verdicts,
    ),
    written.NAME: Measure(
        "written",
        SHARED,
        "bytes written for each job: by the processes to the file and its log (SQLite), to the write-ahead log "
        "(PostgreSQL), to an append-only file (Redis, for this alone), to the journal (MongoDB)",
        written.run,
        written.verdicts,
    ),
    limit.NAME: Measure(
        "limit",
        SERVERS,
        "a worker beside a bare loop of the store's own statements on the same driver; on Redis beside redis-benchmark "
        "too",
        limit.run,
        limit.verdicts,
    ),
    load.NAME: Measure(
        "load",
        SHARED,
        "until a job that another process enqueues starts: at half of the drain rate, from when it came due; in full "
        "runs also after a minute in which nothing came",
        load.run,
        load.verdicts,
    ),
}
KINDS = tuple(dict.fromkeys(measure.kind for measure in MEASURES.values()))


def chosen(kinds: tuple[str, ...], stores: tuple[str, ...]) -> list[str]:
    """The names of the measures of these kinds that are for one of these stores."""
    return [name for name, one in MEASURES.items() if one.kind in kinds and set(one.stores) & set(stores)]
