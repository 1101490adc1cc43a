"""How much is measured: the full run, and the quick one."""

from __future__ import annotations

from msgspec import Struct


class Scale(Struct, frozen=True, kw_only=True):
    """All sizes of a run. Every run ends after its jobs or its seconds, whichever comes first."""

    quick: bool
    rounds: int
    #: A measure begins no further round after so long: a full run ends within 40 minutes, a quick one within 3.
    budget_s: float
    #: The longest that one run may take.
    run_s: float
    drain_jobs: int
    enqueue_jobs: int
    bulk_jobs: int
    pickups: int
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
    #: Run by a worker whose memory is looked at; the slowest peer needs 20 s for them.
    memory_jobs: int
    #: How long jobs come at half of the rate at which they could be run.
    load_s: float
    #: So many are kept meanwhile.
    finished: int
    #: Each in a process of its own.
    isolated_jobs: int
    #: On MongoDB: a budget of its own, and jobs for many slots, for one, and of the peers, who are slow.
    mongo_budget_s: float
    mongo_jobs: int
    mongo_single_jobs: int
    mongo_slow_jobs: int
    #: Documents of a crontab.
    documents: int


FULL = Scale(
    quick=False,
    rounds=5,
    budget_s=480,
    run_s=20,
    drain_jobs=20_000,
    enqueue_jobs=2_000,
    bulk_jobs=50_000,
    pickups=200,
    depths=(1_000, 10_000, 100_000, 1_000_000),
    depth_jobs=5_000,
    busy_s=3,
    beside_jobs=100_000,
    server_jobs=20_000,
    deep=1_000_000,
    snapshot_jobs=80_000,
    redis_jobs=80_000,
    redis_single_jobs=20_000,
    redis_slow_jobs=8_000,
    active=10_000,
    side_rounds=3,
    memory_jobs=5_000,
    load_s=3,
    finished=1_000_000,
    isolated_jobs=40,
    mongo_budget_s=480,
    mongo_jobs=20_000,
    mongo_single_jobs=1_000,
    mongo_slow_jobs=4_000,
    documents=3_000,
)

QUICK = Scale(
    quick=True,
    rounds=2,
    budget_s=20,
    run_s=1.5,
    drain_jobs=20_000,
    enqueue_jobs=500,
    bulk_jobs=20_000,
    pickups=60,
    depths=(1_000, 100_000),
    depth_jobs=5_000,
    busy_s=1.5,
    beside_jobs=40_000,
    server_jobs=5_000,
    deep=100_000,
    snapshot_jobs=20_000,
    redis_jobs=20_000,
    redis_single_jobs=5_000,
    redis_slow_jobs=2_000,
    active=10_000,
    side_rounds=1,
    memory_jobs=0,
    load_s=1,
    finished=20_000,
    isolated_jobs=5,
    mongo_budget_s=5,
    mongo_jobs=10_000,
    mongo_single_jobs=200,
    mongo_slow_jobs=1_000,
    documents=1_000,
)
