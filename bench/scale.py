"""How much is measured, and in what time: the full run, and the quick one."""

from __future__ import annotations

from msgspec import Struct


class Scale(Struct, frozen=True, kw_only=True):
    """All sizes of a run. Every run ends after its jobs or its seconds, whichever comes first."""

    quick: bool
    rounds: int
    #: Nothing begins after so long: a full run ends within 40 minutes, a quick one within 3.
    total_s: float
    #: The longest that one run may take.
    run_s: float
    enqueue_jobs: int
    bulk_jobs: int
    pickups: int
    #: Of whom no target names.
    peer_pickups: int
    depths: tuple[int, ...]
    #: How many jobs are taken from each depth.
    depth_jobs: int
    busy_s: float
    beside_jobs: int
    #: On a server, where a run is not cut short.
    server_jobs: int
    #: So many others wait in the deepest queue, and as many are delayed.
    deep: int
    #: Of which the last quarter counts.
    snapshot_jobs: int
    #: On Redis: for many slots so many that the fastest runs for 2 s, for one slot, and of a peer that is slow at both.
    redis_jobs: int
    redis_single_jobs: int
    redis_slow_jobs: int
    #: So many are running meanwhile.
    active: int
    #: Of measures that have no targets.
    side_rounds: int
    #: Run by a worker whose memory is looked at; the slowest peer needs 5 s for them.
    memory_jobs: int
    #: How long jobs come at half of the rate at which they could be run.
    load_s: float
    #: So many are kept meanwhile.
    finished: int
    #: Each in a process of its own.
    isolated_jobs: int
    #: On MongoDB, where we are judged: of ours, and of the peers, who are slow.
    mongo_jobs: int
    mongo_slow_jobs: int
    #: Documents of a crontab.
    documents: int


FULL = Scale(
    quick=False,
    rounds=5,
    total_s=39 * 60,
    run_s=20,
    enqueue_jobs=2_000,
    bulk_jobs=50_000,
    pickups=200,
    peer_pickups=100,
    depths=(1_000, 10_000, 100_000, 1_000_000),
    depth_jobs=5_000,
    busy_s=3,
    beside_jobs=100_000,
    server_jobs=20_000,
    deep=1_000_000,
    snapshot_jobs=80_000,
    redis_jobs=50_000,
    redis_single_jobs=10_000,
    redis_slow_jobs=8_000,
    active=10_000,
    side_rounds=2,
    memory_jobs=1_000,
    load_s=3,
    finished=1_000_000,
    isolated_jobs=20,
    mongo_jobs=20_000,
    mongo_slow_jobs=20_000,
    documents=2_000,
)

QUICK = Scale(
    quick=True,
    rounds=2,
    total_s=165,
    run_s=1.0,
    enqueue_jobs=500,
    bulk_jobs=20_000,
    pickups=40,
    peer_pickups=40,
    depths=(1_000, 100_000),
    depth_jobs=5_000,
    busy_s=1.5,
    beside_jobs=40_000,
    server_jobs=5_000,
    deep=100_000,
    snapshot_jobs=20_000,
    redis_jobs=10_000,
    redis_single_jobs=1_500,
    redis_slow_jobs=700,
    active=10_000,
    side_rounds=1,
    memory_jobs=500,
    load_s=1,
    finished=20_000,
    isolated_jobs=5,
    mongo_jobs=4_000,
    mongo_slow_jobs=500,
    documents=500,
)

#: How long each measure takes on two cores, in seconds: of the time of a run each gets its part.
SECONDS: dict[str, float] = {
    "drain": 100,
    "enqueue": 25,
    "pickup": 40,
    "depth": 120,
    "beside": 25,
    "postgres drain": 225,
    "postgres enqueue": 50,
    "postgres pickup": 50,
    "postgres depth": 80,
    "postgres snapshot": 30,
    "redis drain": 275,
    "redis enqueue": 50,
    "redis pickup": 50,
    "redis bytes": 20,
    "redis active": 25,
    "scaling": 45,
    "roundtrip": 100,
    "recovery": 115,
    "memory": 50,
    "handlers": 40,
    "history": 70,
    "written": 85,
    "limit": 60,
    "load": 105,
    "mongo drain": 270,
    "mongo enqueue": 40,
    "mongo pickup": 35,
    "mongo depth": 95,
    "crontab drain": 40,
    "crontab idle": 20,
}
#: The same of a quick run. It takes no others, unless they are named.
QUICK_SECONDS: dict[str, float] = {
    "drain": 16,
    "enqueue": 8,
    "pickup": 8,
    "postgres drain": 28,
    "postgres enqueue": 10,
    "postgres pickup": 6,
    "redis drain": 28,
    "redis enqueue": 10,
    "redis pickup": 6,
    "mongo drain": 16,
    "mongo enqueue": 8,
    "mongo pickup": 8,
    "crontab drain": 12,
}


def seconds(scale: Scale, measure: str) -> float:
    """How long a measure takes at this scale, or at most."""
    return QUICK_SECONDS.get(measure, SECONDS[measure]) if scale.quick else SECONDS[measure]
