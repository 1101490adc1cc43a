"""Lanes on PostgreSQL: the rules in SQL, what a dead process has left, many lanes, and what lanes cost."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from jobmill.core.changes import Cancel
from jobmill.core.due import NEVER_MS
from jobmill.core.lanes import LaneLimits, LanePosition, LaneWindow, moves
from jobmill.core.queue_settings import LaneChange, RateLimit
from jobmill.core.values import Claimed, QueueChange, after
from jobmill.stores.postgres import PostgresStore
from jobmill.testing import ManualClock
from jobmill.testing.contract.lanes import held_by, laned, rule, run
from jobmill.testing.contract.support import (
    QUEUE,
    claim,
    claim_ids,
    claim_one,
    new,
    put,
    put_one,
    retry,
    settle,
    succeed,
    wish,
)
from tests.kit.pgbouncer import PgBouncer
from tests.kit.places import port_of
from tests.stores.test_postgres_flows import Open, Sql
from tests.stores.test_postgres_flows import slow as slow  # a fixture
from tests.stores.test_postgres_flows import sql as sql
from tests.stores.test_postgres_lane_races import by_first, slots

pytestmark = pytest.mark.stores("postgres")


# ---------------------------------------------------------------------------------------------------- rules


NOW_MS = 1_000_000


class RandomLane:
    """A lane in any state, in the database and for the core."""

    def __init__(self, name: str, luck: random.Random) -> None:
        self.name = name
        rate = luck.choice([None, None, RateLimit(luck.randint(1, 4), 1_000)])
        self.limits = LaneLimits(
            running=luck.choice([None, 1, 2, 3, 5]), rate=rate, paused=luck.random() < 0.15, strict=luck.random() < 0.3
        )
        self.window = LaneWindow(luck.choice([0, NOW_MS, NOW_MS + 500]), luck.randint(0, 4)) if rate else LaneWindow()
        priorities = luck.choice([(0,), (5,), (0, 1, 5)])
        self.jobs = {
            f"{name}-{n}": (luck.choice(priorities), NOW_MS - luck.randint(0, 3), luck.choice([-1, -1, 0, 0, 1]))
            for n in range(luck.randint(0, 9))
        }

    def positions(self, kind: int, seqs: dict[str, int]) -> list[LanePosition]:
        """The jobs that are ready (-1), admitted (0) or running (1), in the order of the lane."""
        return sorted(
            (priority, joined, seqs[id], id) for id, (priority, joined, one) in self.jobs.items() if one == kind
        )


async def write(sql: Sql, lane: RandomLane) -> None:
    rate, limits = lane.limits.rate, lane.limits
    await sql.execute(
        "INSERT INTO jobmill.lanes (queue, lane, running, rate_count, rate_per_ms, pause, window_ends_ms, window_used,"
        " strict) VALUES ('q', $1, $2, $3, $4, $5, $6, $7, $8)",
        *(lane.name, limits.running, rate and rate.count, rate and rate.per_ms, "{}" if limits.paused else None),
        *(lane.window.ends_ms, lane.window.used, limits.strict),
    )
    for id, (priority, joined, kind) in lane.jobs.items():
        held = f'{{"by":["lane"],"due":{{"at_ms":{joined}}}}}' if kind < 0 else None
        await sql.execute(
            "INSERT INTO jobmill.jobs (id, queue, name, priority, due_ms, created_ms, updated_ms, payload, lane, slot,"
            " joined_ms, held, lease_until_ms) VALUES ($1, 'q', 'n', $2, $3, 1, 1, '{}', $4, $5, $6, $7, $8)",
            *(id, priority, NEVER_MS if kind < 0 else 5, lane.name, min(kind, 0), joined, held, 9 if kind > 0 else 0),
        )


async def test_the_rules_are_those_of_the_core(direct: PostgresStore, sql: Sql) -> None:
    luck = random.Random(19)
    lanes = [RandomLane(f"lane {number}", luck) for number in range(600)]
    for lane in lanes:
        await write(sql, lane)
    # Lanes in review are counted, whatever else there is to do.
    await sql.execute("UPDATE jobmill.lanes SET review_ms = 1")
    seqs = await by_first(sql, "SELECT id, seq FROM jobmill.jobs")
    names = [lane.name for lane in lanes]
    await sql.execute("SELECT jobmill.fill_lanes($1, $2, $3)", NOW_MS, ["q"] * len(names), names)
    rows = {row["id"]: row for row in await sql.fetch("SELECT * FROM jobmill.jobs")}
    states = {row["lane"]: row for row in await sql.fetch("SELECT * FROM jobmill.lanes")}
    seen = 0
    for lane in lanes:
        ready, admitted, running = (lane.positions(kind, seqs) for kind in (-1, 0, 1))
        last = admitted[::-1].__getitem__
        decided = moves(
            *(lane.limits, ready, len(admitted), len(running)),
            *(lambda count, last=last: last(slice(count)), lane.window, NOW_MS),
        )
        seen += bool(decided.admit) + bool(decided.push_back) + bool(decided.again_ms)
        expected = {one[3]: 0 for one in (*decided.admit, *admitted, *running)}
        expected |= {one[3]: -1 for one in ready if one not in decided.admit} | {
            one[3]: -1 for one in decided.push_back
        }
        assert {id: rows[id]["slot"] for id in lane.jobs} == expected, (lane.jobs, lane.limits, lane.window)
        assert all(rows[one[3]]["due_ms"] == NOW_MS and rows[one[3]]["held"] is None for one in decided.admit)
        assert all(rows[one[3]]["due_ms"] == NEVER_MS and rows[one[3]]["held"] for one in decided.push_back)
        state = states[lane.name]
        assert (state["window_ends_ms"], state["again_ms"]) == (decided.window.ends_ms, decided.again_ms)
        assert lane.limits.rate is None or state["window_used"] == decided.window.used
    assert seen > 200
    assert (await check_held(sql)) == 0


async def check_held(sql: Sql) -> int:
    """How many jobs stand elsewhere than what holds them says."""
    text = "SELECT count(*) FROM jobmill.jobs WHERE slot = -1 AND (held::json #>> '{due,at_ms}')::bigint <> joined_ms"
    return int(await sql.fetchval(text))


# ---------------------------------------------------------------------------------------------------- heal


async def test_a_process_dies_between_its_commit_and_its_look(direct: PostgresStore, slow: Open, sql: Sql) -> None:
    await rule(direct, 1)
    await put_one(direct, laned("x"))
    assert await settle(slow.store, succeed(await claim_one(direct))) == ["done"]
    await put_one(direct, laned("y"))
    await slow.commit()
    await slow.kill(sql)
    assert await claim(direct) == []
    assert await direct.flush_outbox() == 0
    assert await claim_ids(direct) == ["y"]


async def test_a_process_dies_while_it_changes_a_job(direct: PostgresStore, slow: Open, sql: Sql) -> None:
    await rule(direct, 1)
    await put(direct, laned("x"), laned("y"))
    assert (await slow.store.change(["x"], Cancel())).ids == ["x"]
    await slow.kill(sql)
    assert await held_by(direct, "x", "y") == [(), ("lane",)]
    assert await claim_ids(direct) == ["x"]


async def test_a_process_dies_after_it_has_changed_a_job(direct: PostgresStore, sql: Sql) -> None:
    """Its transaction has left a mark, which the next exchange finds."""
    await rule(direct, 1)
    await put(direct, laned("x"), laned("y"))
    await sql.execute("SELECT jobmill.remove($1, ARRAY['x'])", direct.now())
    assert await slots(sql) == {"y": -1}
    assert await claim_ids(direct) == ["y"]


async def test_heal_goes_through_all_lanes(direct: PostgresStore, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobmill.stores.postgres.lanes.HEALED", 6)
    monkeypatch.setattr("jobmill.stores.postgres.lanes.HEALED_AT_ONCE", 2)
    for queue in ("p", "q"):
        await rule(direct, 1, queue)
        await put(direct, *[laned(f"{queue}{n}{k}", f"lane {n}", queue=queue) for n in range(4) for k in "ab"])
    await sql.execute("DELETE FROM jobmill.jobs WHERE slot = 0")
    await direct.flush_outbox()
    assert list((await slots(sql)).values()).count(0) == 6
    await direct.flush_outbox()
    assert set((await slots(sql)).values()) == {0}


async def test_a_store_that_is_closed_looks_a_last_time(direct: PostgresStore, migrated_url: str, slow: Open) -> None:
    await rule(direct, 1)
    await put_one(direct, laned("x"))
    claimed = await claim_one(direct)
    other = PostgresStore(migrated_url)
    await other.open()
    await put_one(slow.store, laned("y"))
    assert await settle(other, succeed(claimed)) == ["done"]
    await slow.commit()
    assert await claim(direct) == []
    await other.close()
    assert await claim_ids(direct) == ["y"]


async def test_a_queue_that_was_not_noted_is_found(direct: PostgresStore, sql: Sql) -> None:
    """Otherwise nobody would look for jobs that become due."""
    await put(direct, laned("late", due=after(1)), laned("other", "b"))
    await sql.execute("DELETE FROM jobmill.queues")
    await direct.flush_outbox()
    assert await sql.fetchval("SELECT has_lanes FROM jobmill.queues") is True
    ran: set[str] = set()
    async with asyncio.timeout(10):
        while "late" not in ran:
            ran.update(await claim_ids(direct))


# ---------------------------------------------------------------------------------------------------- many lanes


async def test_a_rule_for_more_lanes_than_one_call_fills(direct: PostgresStore, sql: Sql) -> None:
    await rule(direct, 2)
    await put(direct, *[laned(lane=f"lane {number:04}") for number in range(1_400) for _ in range(2)])
    await rule(direct, 1)
    counts = await by_first(sql, "SELECT lane, count(*) FROM jobmill.jobs WHERE slot = 0 GROUP BY lane")
    assert {counts[f"lane {number:04}"] for number in range(1_000)} == {1}
    assert {counts[f"lane {number:04}"] for number in range(1_350, 1_400)} == {2}
    assert len(await claim(direct, 1)) == 1
    counts = await by_first(sql, "SELECT lane, count(*) FROM jobmill.jobs WHERE slot = 0 GROUP BY lane")
    assert set(counts.values()) == {1}
    await direct.flush_outbox()
    assert await sql.fetchval("SELECT lane_review FROM jobmill.queues") is None


async def test_rows_of_lanes_that_say_nothing_any_more_are_deleted(direct: PostgresStore, sql: Sql) -> None:
    await direct.configure_lane(QUEUE, "a", LaneChange(running=1))
    await direct.configure_lane(QUEUE, "b", LaneChange(running=1))
    await direct.configure_lane(QUEUE, "a", LaneChange(running=None))
    await direct.flush_outbox()
    assert [row[0] for row in await sql.fetch("SELECT lane FROM jobmill.lanes")] == ["b"]


# ---------------------------------------------------------------------------------------------------- others


async def test_lanes_through_a_pooler(migrated_url: str) -> None:
    """Locks are those of a transaction: a pooler may change the connection after it."""
    with PgBouncer(port_of(migrated_url), pool_size=2) as bouncer:
        store = PostgresStore(bouncer.url(migrated_url))
        await store.open()
        await rule(store, 2)
        ran: list[str | None] = []

        async def work(own: PostgresStore) -> None:
            done: list[Any] = []
            for _ in range(200):
                exchanged = await own.exchange(done, wish(3))
                claimed = [one for one in exchanged.claimed if isinstance(one, Claimed)]
                ran.extend(one.job.id for one in claimed)
                done = [succeed(one) for one in claimed]
                if len(ran) >= 60 and not done:
                    return

        await put(store, *[laned(lane="abc"[number % 3]) for number in range(60)])
        await asyncio.gather(work(store), work(store))
        assert len(ran) == len(set(ran)) == 60
        await store.close()


async def test_an_older_job_gets_a_slot_in_the_millisecond_of_a_claim(migrated_url: str) -> None:
    """It stands before the job where that claim ended, and is due at the same time."""
    store = PostgresStore(migrated_url, clock=ManualClock())
    await store.open()
    await rule(store, 1)
    await put(store, laned("first"), laned("next"), laned("b", "b"), laned("c", "c"))
    first = await claim_ids(store, 1), await claim_ids(store, 1)
    assert first == (["first"], ["b"])
    assert (await store.change(["first"], Cancel())).ids == ["first"]
    assert await claim_ids(store, 1) == ["next"]
    await store.close()


async def test_jobs_of_lanes_beside_plain_sql(direct: PostgresStore, sql: Sql) -> None:
    """The function for plain SQL knows no lanes, and does not mind them."""
    await rule(direct, 1)
    await put(direct, laned("x"), laned("y"))
    id = str(await sql.fetchval("SELECT jobmill.enqueue('send', '{}'::text, 'mail')"))
    assert sorted(await claim_ids(direct)) == sorted([id, "x"])


async def test_a_job_that_is_changed_by_hand_stands_in_its_lane(direct: PostgresStore, sql: Sql) -> None:
    """As a client of an older version does it, which does not know the columns of lanes."""
    await rule(direct, 1)
    await put(direct, laned("x"), laned("late", due=after(60_000)))
    held = '{"by":["lane"],"due":{"at_ms":1}}'
    await sql.execute("UPDATE jobmill.jobs SET held = $1, updated_ms = $2 WHERE id = 'late'", held, direct.now())
    assert await slots(sql) == {"late": -1, "x": 0}
    await run(direct, "x")
    await run(direct, "late")


async def test_jobs_enqueued_while_a_feed_is_on(direct: PostgresStore) -> None:
    await rule(direct, 1)
    await direct.configure(QUEUE, QueueChange(feed=True))
    await put(direct, laned("x"), laned("y"), new("free"))
    claimed = {one.job.id: one for one in await claim(direct)}
    assert sorted(claimed) == ["free", "x"]
    assert await settle(direct, retry(claimed["x"], 60_000)) == ["done"]
    await run(direct, "y")


async def test_one_call_fills_many_lanes(direct: PostgresStore) -> None:
    """More than one statement fills, so they are filled in steps, each lane once."""
    await rule(direct, 1)
    await put(direct, *[laned(lane=f"lane {number}") for number in range(700) for _ in range(2)])
    claimed = await claim(direct, 2_000)
    assert len({one.job.lane for one in claimed}) == len(claimed) == 700
    assert await settle(direct, *map(succeed, claimed)) == ["done"] * 700
    assert len(await claim(direct, 2_000)) == 700
