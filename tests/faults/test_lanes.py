"""Lanes under fire: a lane never has more runs than its limit allows at that moment, and nothing gets stuck.

Processes claim and settle, and are killed, while jobs arrive and are changed. Each process records when its runs begin
and end; `lane_records` has the rule that all records must follow.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec import Struct

import jobmill
from jobmill.core.changes import Cancel, Reprioritize
from jobmill.core.queue_settings import LaneChange, Pause, RateLimit
from jobmill.core.values import EVERYTHING, Claimed
from jobmill.store import EnqueuesWithin, Store
from jobmill.testing.contract.lanes import laned, rule
from jobmill.testing.contract.support import QUEUE, all_pages, claim, put, retry, settle, succeed
from tests.faults.lane_claimer import NO_HEAL
from tests.faults.lane_claimers import claiming
from tests.faults.lane_records import CLOCKS_S
from tests.faults.lane_torment import Torment, transaction
from tests.faults.operations import FaultyServer
from tests.faults.parameters import on_each_store, on_stores
from tests.helpers import until
from tests.interop.scene import node_place

if TYPE_CHECKING:
    from tests.kit.node import Packages

pytestmark = pytest.mark.slow

LIMIT = 2
LANES = ("a", "b", "c")
ALL_ENDED_WITHIN_S = 120.0
#: How long a job that was admitted by the old limit may still begin after a limit was lowered; see `lane_records`. In
#: SQLite and Redis, one step does all. On the others it is as long as a call may take on a busy machine.
LAG_S = {"sqlite": 0.0, "redis": 0.0, "postgres": 1.0, "mongo": 1.0}


class Size(Struct, frozen=True, kw_only=True):
    """How much happens in a run."""

    lanes: int
    #: How many of them get other limits; and whether all get other ones.
    changed_lanes: int
    changes_rule: bool = False
    first: int
    arriving: int
    seconds: float
    kills: int


SHORT = Size(lanes=10, changed_lanes=3, first=200, arriving=300, seconds=2.5, kills=2)
RULED = Size(lanes=10, changed_lanes=0, changes_rule=True, first=200, arriving=300, seconds=2.5, kills=2)
LONG = Size(lanes=40, changed_lanes=4, first=16_000, arriving=8_000, seconds=24, kills=8)


async def all_have_ended(store: Store, within_s: float = ALL_ENDED_WITHIN_S) -> None:
    """Wait until no job is live."""

    async def they_have() -> bool:
        (depth,) = await store.depths([QUEUE], limit=1)
        return (depth.due, depth.later, depth.held, depth.running) == (0, 0, 0, 0)

    async def they_have_twice() -> bool:
        # MongoDB counts the kinds one after the other: a job that is retried meanwhile can be missing everywhere.
        return await they_have() and await they_have()

    await until(they_have_twice, within_s)


async def no_lane_is_left(store: Store) -> bool:
    """Whether no lane has a live job or settings."""
    return await store.lanes(QUEUE) == []


async def check_store(store: Store) -> None:
    """No slot is left, and the data is consistent."""
    assert await store.lanes(QUEUE) == []
    assert [one for one in await store.fsck() if one.level != "ok"] == []


async def states(store: Store) -> dict[str, str]:
    """The states of all jobs."""
    return {job.id: job.state for page in await all_pages(store, EVERYTHING, 1_000) for job in page.jobs}


async def run_under_fire(server: FaultyServer, folder: Path, size: Size, beside: Sequence[str] = ()) -> None:
    """Enqueue, claim, kill and change; then all must be as the records say. `beside`: a program that claims as well."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # shown when it fails
    async with jobmill.connect(server.direct_url) as jobs:
        store = jobs.store
        torment = Torment(store, server.direct_url, size.lanes, seed)
        await rule(store, LIMIT)
        for _ in range(0, size.first, 1_000):
            await torment.enqueue(min(size.first, 1_000))
        async with claiming(server.direct_url, folder) as claimers:
            if beside:
                claimers.run(beside)
            acts = torment.rage(size.arriving, size.seconds, size.changed_lanes, changes_rule=size.changes_rule)
            raging = asyncio.create_task(acts)
            for _ in range(size.kills):
                await asyncio.wait([raging], timeout=size.seconds / (size.kills + 1))
                await claimers.kill_one()
            await raging
            await torment.reset_limits(LIMIT, changes_rule=size.changes_rule)
            await all_have_ended(store)
            if beside:  # claimers find by and by what it has ended
                await until(lambda: no_lane_is_left(store), 30)
            await claimers.stop()
        await check_store(store)
        ended = await states(store)
    history = claimers.history(torment.asked)
    assert sorted(ended) == sorted(torment.ids)
    assert history.wrong_ends(ended) == []
    assert history.wrong_losses() == []
    overruns, full = history.overruns(LIMIT, torment.limits, LAG_S[server.store_name])
    assert overruns == []
    runs, changes = sum(map(len, history.runs.values())), sum(map(len, torment.limits.values()))
    print(f"{len(ended)} jobs, {runs} runs, {full} filled a lane; {changes} other limits or pauses")
    print(Counter(one.what for one in torment.asked), f"{len(torment.rolled_back)} rolled back")
    assert full > len(ended) / 10, "the lanes were hardly ever full"


@on_each_store
async def test_no_lane_exceeds_its_limit(server: FaultyServer, tmp_path: Path) -> None:
    await run_under_fire(server, tmp_path, SHORT)


@on_stores("redis", extended=("sqlite", "postgres", "mongo"))
async def test_no_lane_exceeds_a_rule_that_changes(server: FaultyServer, tmp_path: Path) -> None:
    await run_under_fire(server, tmp_path, RULED)


RATE, RATED_LANES = RateLimit(3, 400), 3


@on_stores("redis", extended=("sqlite", "postgres", "mongo"))
async def test_no_lane_exceeds_its_rate(server: FaultyServer, tmp_path: Path) -> None:
    """With kills, retries, cancels, delays and urgent jobs. Between two windows there may be twice the number."""
    async with jobmill.connect(server.direct_url) as jobs:
        store = jobs.store
        torment = Torment(store, server.direct_url, RATED_LANES, random.randrange(2**32))
        await rule(store, LIMIT, rate=RATE)
        await torment.enqueue(40)
        async with claiming(server.direct_url, tmp_path) as claimers:
            raging = asyncio.create_task(torment.rage(60, 2.5, 0))
            for _ in range(2):
                await asyncio.wait([raging], timeout=0.8)
                await claimers.kill_one()
            await raging

            def has_held() -> bool:
                begun = claimers.history(torment.asked).admissions()
                return len(begun) == RATED_LANES and all(len(each) > 3 * RATE.count for each in begun.values())

            await until(has_held, 60)
            await rule(store, LIMIT)
            ruled = time.monotonic()
            await all_have_ended(store)
            await claimers.stop()
        await check_store(store)
    per_s = RATE.per_ms / 1e3
    for lane, admitted in claimers.history(torment.asked).admissions().items():
        limited = [at for at in admitted if at < ruled - CLOCKS_S]
        for start in limited:
            within = sum(start <= at < start + per_s - CLOCKS_S for at in limited)
            assert within <= 2 * RATE.count, f"{within} jobs of {lane} got slots within a window"
        windows = math.ceil((limited[-1] - limited[0]) / (per_s - CLOCKS_S)) + 1
        assert len(limited) <= windows * RATE.count + LIMIT


@pytest.mark.extended
@on_each_store
async def test_no_lane_exceeds_its_limit_with_many_jobs(server: FaultyServer, tmp_path: Path) -> None:
    await run_under_fire(server, tmp_path, LONG)


@pytest.mark.extended
@on_stores("redis")
async def test_no_lane_exceeds_its_limit_beside_node(
    server: FaultyServer, tmp_path: Path, node_packages: Packages
) -> None:
    url, prefix = node_place(server.direct_url)
    beside = node_packages.command("lanes.mjs", url, prefix, QUEUE, str(tmp_path))
    await run_under_fire(server, tmp_path, LONG, beside)


# ---------------------------------------------------------------------------------------------------- nothing stuck


async def rounds_without_healing(server: FaultyServer, folder: Path, rounds: int) -> None:
    """A few jobs arrive while the last ones of their lanes are settled; then nothing else happens until all have ended.

    Nobody heals: a slot that is free while a job waits for it stays free, and the job never ends.
    """
    (folder / NO_HEAL).touch()
    async with several(server, 3) as stores, contextlib.AsyncExitStack() as opened:
        torments = [
            Torment(store, server.direct_url, 4, random.randrange(2**32), f"{n}-", latest_ms=30)
            for n, store in enumerate(stores)
        ]
        await rule(stores[0], 1)
        claimers = await opened.enter_async_context(claiming(server.direct_url, folder))
        for _ in range(rounds):
            await asyncio.gather(*(torment.arrive(4, 0.02) for torment in torments))
            await all_have_ended(stores[0], 20)
        await claimers.stop()
        await check_store(stores[0])
        ended = await states(stores[0])
    assert sorted(ended) == sorted(id for torment in torments for id in torment.ids)
    assert claimers.history([]).overruns(1, {})[0] == []


@on_stores("sqlite", "postgres", extended=("redis", "mongo"))
async def test_no_arrival_is_forgotten(server: FaultyServer, tmp_path: Path) -> None:
    await rounds_without_healing(server, tmp_path, 10)


@pytest.mark.extended
@on_each_store
async def test_no_arrival_is_forgotten_in_many_rounds(server: FaultyServer, tmp_path: Path) -> None:
    await rounds_without_healing(server, tmp_path, 300)


# ---------------------------------------------------------------------------------------------------- at once


@contextlib.asynccontextmanager
async def several(server: FaultyServer, count: int) -> AsyncIterator[list[Store]]:
    """Stores of the same data, each with connections of its own."""
    async with contextlib.AsyncExitStack() as opened:
        yield [(await opened.enter_async_context(jobmill.connect(server.direct_url))).store for _ in range(count)]


@on_each_store
async def test_arrivals_at_once_share_the_slots_of_a_lane(server: FaultyServer) -> None:
    async with several(server, 6) as stores:
        await rule(stores[0], LIMIT)
        lanes = [f"lane-{number}" for number in range(40)]
        for first in range(0, len(lanes), 4):
            some = [laned(lane=lane) for lane in lanes[first : first + 4] for _ in stores]
            random.shuffle(some)
            await asyncio.gather(*(put(store, job) for store, job in zip(itertools.cycle(stores), some, strict=False)))
        found = await stores[0].lanes(QUEUE, lanes)
        assert [(one.name, one.admitted, one.ready) for one in found] == [(lane, LIMIT, 4) for lane in sorted(lanes)]


@on_each_store
async def test_an_arrival_beside_the_last_settlement_gets_its_slot(server: FaultyServer) -> None:
    """Neither may see the other. The process that has settled is the only one that claims, and nobody heals."""
    lanes = [f"lane-{number}" for number in range(6)]
    async with several(server, 1 + len(lanes)) as (settler, *arriving):
        await rule(settler, 1)
        await put(settler, *[laned(f"{lane}-0", lane) for lane in lanes])
        for turn in range(1, 30):
            claimed: list[Claimed] = []

            async def all_are_claimed(claimed: list[Claimed] = claimed) -> bool:
                claimed += await claim(settler)
                return len(claimed) == len(lanes)

            await until(all_are_claimed, 5)
            assert Counter(one.job.lane for one in claimed) == dict.fromkeys(lanes, 1)
            pairs = zip(arriving, lanes, strict=True)
            arrivals = [put(store, laned(f"{lane}-{turn}", lane)) for store, lane in pairs]
            await asyncio.gather(settle(settler, *map(succeed, claimed)), *arrivals)


# ---------------------------------------------------------------------------------------------------- nobody blocks


@on_stores("postgres", "mongo")
async def test_open_transactions_delay_nobody(server: FaultyServer) -> None:
    """Users' transactions have enqueued into busy lanes, and stay open until the end."""
    url = server.direct_url
    await no_waiting_for_locks(server)
    async with jobmill.connect(url) as jobs, transaction(jobs.store, url, commits=True) as first:
        store = jobs.store
        await rule(store, LIMIT)
        await put(store, *[laned(lane=lane) for lane in LANES for _ in range(20)])
        async with transaction(store, url, commits=False) as second, asyncio.timeout(30):
            assert isinstance(store, EnqueuesWithin)
            for number, connection in enumerate((first, second)):
                within = [laned(f"open-{number}-{n}", LANES[n % 3], priority=n % 2) for n in range(300)]
                await store.enqueue_within(connection, within)
            await all_verbs_work(store)
            assert await store.get(["open-0-0", "open-1-0"]) == [None, None]
    async with jobmill.connect(url) as jobs:
        ran = [one.job.id for one in await drained(jobs.store)]
        assert sorted(id for id in ran if id.startswith("open")) == sorted(f"open-0-{n}" for n in range(300))
        await check_store(jobs.store)


async def no_waiting_for_locks(server: FaultyServer) -> None:
    """PostgreSQL raises an error instead. On MongoDB, who meets an open transaction tries again until the timeout."""
    if server.store_name == "postgres":
        from tests.kit.postgres import connected

        async with connected(server.direct_url) as connection:
            name = await connection.fetchval("SELECT current_database()")
            await connection.execute(f"ALTER DATABASE \"{name}\" SET lock_timeout = '500ms'")


async def all_verbs_work(store: Store) -> None:
    """Run jobs of the busy lanes, and change them and their lanes."""
    for turn in range(5):
        claimed = await claim(store)
        assert Counter(one.job.lane for one in claimed) == dict.fromkeys(LANES, LIMIT)
        settled = [retry(one, 0) if turn == number else succeed(one) for number, one in enumerate(claimed)]
        assert await settle(store, *settled) == ["done"] * len(claimed)
        (id, urgent) = await put(store, laned(lane=LANES[0]), laned(lane=LANES[1], priority=0))
        assert (await store.change([id], Reprioritize(1))).ids == [id]
        assert (await store.change([urgent], Cancel())).ids == [urgent]
        for change in (LaneChange(pause=Pause()), LaneChange(pause=None)):
            await store.configure_lane(QUEUE, LANES[turn % 3], change)
        await store.flush_outbox()


async def drained(store: Store) -> list[Claimed]:
    """All jobs, run one batch after the other."""
    ran: list[Claimed] = []
    while claimed := await claim(store):
        ran += claimed
        assert await settle(store, *map(succeed, claimed)) == ["done"] * len(claimed)
    return ran
