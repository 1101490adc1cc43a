"""`fsck` and `diagnose` on Redis: each damage is planted on a real server, found, and repaired."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from jobmill.bullmq import Queue
from jobmill.core.changes import Cancel, Hold, Remove
from jobmill.core.findings import Finding
from jobmill.core.flows import After
from jobmill.core.values import NewJob, QueueChange, Report
from jobmill.errors import StoreUnavailable
from jobmill.stores.redis import RedisStore
from jobmill.stores.redis.fsck import CHECKS
from jobmill.stores.redis.url import RedisUrl
from jobmill.testing.contract.support import (
    QUEUE,
    claim_ids,
    claim_one,
    fail,
    in_state,
    new,
    put,
    put_one,
    settle,
    started,
    state_of,
    succeed,
)
from tests.helpers import until
from tests.kit.redis import RedisServer, Rooms
from tests.kit.redis_groups import RedisCluster
from tests.stores.redis_planting import Field

pytestmark = pytest.mark.stores("redis")


@pytest.fixture
def field(redis_server: Rooms, redis_url: str) -> Iterator[Field]:
    with redis_server.client() as raw:
        yield Field(raw, RedisUrl.read(redis_url).prefix, QUEUE)


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(redis_url)
    await store.open()
    yield store
    await store.close()


async def damage(store: RedisStore, *, repair: bool = False) -> dict[str, Finding]:
    """The findings about damage, by check."""
    return {one.check: one for one in await store.fsck(repair=repair) if one.count}


async def is_repaired(store: RedisStore, field: Field, check: str, *ids: str) -> None:
    """The damage is found, left alone, repaired, and found no more."""
    before = snapshot(field)
    found = await damage(store)
    assert list(found) == [check]
    finding = found[check]
    assert (finding.level, finding.count, finding.can_repair, finding.repaired) == ("error", len(ids), True, 0)
    assert sorted(finding.evidence["ids"]) == sorted(ids)
    assert finding.remedy is not None
    assert snapshot(field) == before, "without repair, nothing is changed"
    repaired = (await damage(store, repair=True))[check]
    assert (repaired.level, repaired.count, repaired.repaired, repaired.remedy) == ("ok", len(ids), len(ids), None)
    assert await damage(store) == {}


def snapshot(field: Field) -> dict[bytes, Any]:
    """All keys of the queue and their values. A server may dump the fields of a hash in another order after a read."""
    read = {b"hash": field.raw.hgetall, b"set": field.raw.smembers}
    keys = sorted(field.raw.scan_iter(f"{field.Q}:*"))
    return {key: read.get(field.raw.type(key), field.raw.dump)(key) for key in keys}


async def test_every_check_is_found_below() -> None:
    from tests.stores import test_redis_fsck_lanes

    names = {*globals(), *vars(test_redis_fsck_lanes)}
    tested = {name.removeprefix("test_") for name in names if name.startswith("test_")}
    assert set(CHECKS) <= tested


async def test_id_in_two_places(store: RedisStore, field: Field) -> None:
    done = await in_state(store, "succeeded")
    waiting = await put_one(store)
    running = (await started(store, new(name="other"))).job.id
    await put(store, new("twice"), new("later"))
    field.put(done, "wait")
    field.put(waiting, "delayed")
    field.put(running, "completed", 5)
    field.put("twice", "wait")
    await is_repaired(store, field, "id_in_two_places", *[f"{QUEUE}:{id}" for id in (done, waiting, running, "twice")])
    assert {id.decode(): places for id, places in field.places().items()} == {
        done: ["completed"],
        waiting: ["delayed"],
        running: ["active"],
        "twice": ["wait"],
        "later": ["wait"],
    }


@pytest.mark.parametrize("place", ["wait", "paused", "active", "prioritized", "delayed", "completed", "failed"])
async def test_an_id_without_a_hash_is_found_everywhere(store: RedisStore, field: Field, place: str) -> None:
    await put_one(store, new("good"))
    field.put("gone", place)
    await is_repaired(store, field, "id_without_hash", f"{QUEUE}:gone")
    assert field.places() == {b"good": ["wait"]}


async def test_id_without_hash(store: RedisStore, field: Field) -> None:
    await put_one(store, new("good"))
    field.put("gone-1", "wait")
    field.put("gone-2", "active")
    field.raw.set(f"{field.Q}:gone-2:lock", "jm:x:1")
    field.put("0:0", "wait")  # a marker of an old version of BullMQ
    await is_repaired(store, field, "id_without_hash", f"{QUEUE}:gone-1", f"{QUEUE}:gone-2")
    assert await claim_ids(store) == ["good"]


async def test_logs_without_job(store: RedisStore, field: Field) -> None:
    claimed = await started(store)
    await store.report([Report(lease=claimed.lease, lines=("a", "b"))])
    field.raw.rpush(f"{field.Q}:gone:logs", "line")
    await is_repaired(store, field, "logs_without_job", f"{QUEUE}:gone")
    assert len(await store.logs(claimed.job.id)) == 2


def plant_parent(field: Field, id: str, *children: str) -> None:
    field.plant(id, "waiting-children")
    for child in children:
        field.raw.sadd(f"{field.Q}:{id}:dependencies", f"{field.Q}:{child}")


async def test_dependencies_gone(store: RedisStore, field: Field) -> None:
    field.raw.hset(f"{field.Q}:meta", "opts.maxLenEvents", 100)
    field.plant("done", "completed", returnvalue='"yes"')
    field.plant("failed-child", "failed")
    field.plant("open", "delayed")
    plant_parent(field, "p-gone", "gone")
    plant_parent(field, "p-done", "done")
    plant_parent(field, "p-both", "gone", "open")
    plant_parent(field, "p-failed", "failed-child")
    plant_parent(field, "p-open", "open")
    damaged = [f"{QUEUE}:{id}" for id in ("p-gone", "p-done", "p-both")]
    await is_repaired(store, field, "dependencies_gone", *damaged)
    places = field.places()
    assert [places[id] for id in (b"p-gone", b"p-done")] == [["wait"]] * 2
    assert [places[id] for id in (b"p-both", b"p-failed", b"p-open")] == [["waiting-children"]] * 3
    assert field.raw.hgetall(f"{field.Q}:p-done:processed") == {f"{field.Q}:done".encode(): b'"yes"'}


async def test_a_parent_that_a_person_holds_stays_held(store: RedisStore, field: Field) -> None:
    field.raw.hset(f"{field.Q}:meta", "opts.maxLenEvents", 100)
    plant_parent(field, "p", "gone")
    assert (await store.change([f"{QUEUE}:p"], Hold())).ids == [f"{QUEUE}:p"]
    await is_repaired(store, field, "dependencies_gone", f"{QUEUE}:p")
    assert field.places() == {b"p": ["waiting-children"]}


async def test_waiting_children_unheld(store: RedisStore, field: Field) -> None:
    held = await put_one(store)
    await store.change([held], Hold())
    field.plant("stuck", "waiting-children")
    await is_repaired(store, field, "waiting_children_unheld", f"{QUEUE}:stuck")
    assert field.places() == {held.encode(): ["waiting-children"], b"stuck": ["wait"]}


def waits(id: str, *on: str, flow: str | None = None) -> NewJob:
    return structs.replace(new(id), after=tuple(After(one) for one in on), flow=flow)


@pytest.mark.parametrize("how", ["succeeded", "failed", "cancelled", "removed"])
async def test_a_release_that_was_lost(store: RedisStore, field: Field, how: str) -> None:
    """Another program has ended a dependency, and did not know of the job that waits for it."""
    await put(store, new("a"), new("b"), waits("then", "a", "b"))
    claimed = {one.job.id: one for one in [await claim_one(store), await claim_one(store)]}
    assert await settle(store, succeed(claimed["b"])) == ["done"]
    parent = field.raw.hmget(field.key("a"), "parentKey", "parent")
    field.raw.hdel(field.key("a"), "parentKey", "parent")
    if how in ("succeeded", "failed"):
        ends = succeed(claimed["a"], 7) if how == "succeeded" else fail(claimed["a"], "no luck")
        assert await settle(store, ends) == ["done"]
    else:
        await store.change(["a"], Cancel())
    if how == "removed":
        await store.change(["a"], Remove())
    else:
        field.raw.hset(field.key("a"), mapping=dict(zip(("parentKey", "parent"), parent, strict=True)))
    await is_repaired(store, field, "dependencies_gone", f"{QUEUE}:then")
    then = await claim_one(store)
    why = {"failed": "dependency a failed: no luck", "cancelled": "dependency a was cancelled"}
    assert (then.job.id, then.job.deferred_error) == ("then", why.get(how))


async def test_staged_alone(store: RedisStore, field: Field) -> None:
    await put(store, new("a"), waits("then", "a"), new("free"))
    staged = f"{field.Q}:jobmill:staged"
    field.raw.sadd(f"{field.Q}:then:dependencies", staged)
    field.raw.lrem(f"{field.Q}:wait", 0, "free")
    field.put("free", "waiting-children")
    field.raw.sadd(f"{field.Q}:free:dependencies", staged)
    assert await damage(store) == {}, "somebody may still enqueue the flow"
    for id in ("then", "free"):
        field.raw.hset(field.key(id), "timestamp", int(time.time() * 1000) - 61_000)
    await is_repaired(store, field, "staged_alone", f"{QUEUE}:then", f"{QUEUE}:free")
    assert sorted(await claim_ids(store)) == ["a", "free"]
    assert field.places()[b"then"] == ["waiting-children"]


@pytest.mark.parametrize("committed", [False, True])
async def test_flow_unfinished(store: RedisStore, field: Field, committed: bool) -> None:
    """A process has ended while it enqueued a large flow."""
    await put_one(store, new("other"))
    run = store.context.run
    calls = 0

    async def dies(script: Any, queue: str, now_ms: int, **request: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > (5 if committed else 3):
            raise StoreUnavailable("the process has ended")
        return await run(script, queue, now_ms, **request)

    store.context.run = dies  # type: ignore[method-assign]
    ids = [f"part-{n}" for n in range(300)]
    with pytest.raises(StoreUnavailable):
        await put(store, *map(new, ids), waits("last", *ids))
    store.context.run = run  # type: ignore[method-assign]
    assert await claim_ids(store) == ["other"], "no job of the flow runs before all of it is there"
    assert await damage(store) == {}, "the process may still be there"
    index = f"jobmill:{field.Q.partition(':')[0]}:relays:staged"
    ((key, score),) = field.raw.zrange(index, 0, -1, withscores=True)
    assert (score < 0) == committed
    field.raw.zadd(index, {key: score - 61_000 if score > 0 else score + 61_000})
    await is_repaired(store, field, "flow_unfinished", key.decode().rpartition(":")[2])
    assert len(await claim_ids(store, 500)) == (300 if committed else 0)
    assert (await state_of(store, "last") is not None) == committed
    assert field.raw.keys(f"{index}*") == []


@pytest.mark.parametrize("how", ["unlinked", "ended", "gone"])
async def test_relay_astray(store: RedisStore, field: Field, how: str) -> None:
    await put(store, new("a"), waits("left", "a"), waits("right", "a"))
    relay = field.raw.hget(field.key("a"), "parentKey").decode()
    if how == "unlinked":
        field.raw.hdel(field.key("a"), "parentKey", "parent")
    else:
        claimed = await claim_one(store)
        field.raw.hdel(field.key("a"), "parentKey", "parent")
        assert await settle(store, succeed(claimed, 5)) == ["done"]
        field.raw.hset(field.key("a"), "parentKey", relay)
    if how == "gone":
        field.raw.delete(field.key("a"))
        field.raw.zrem(f"{field.Q}:completed", "a")
    lost = await damage(store)
    assert "relay_astray" in lost
    await store.fsck(repair=True)
    assert await damage(store) == {}
    if how == "unlinked":
        assert await settle(store, succeed(await claim_one(store), 5)) == ["done"]
    assert sorted(await claim_ids(store)) == ["left", "right"]
    assert field.raw.exists(relay) == (how != "gone")


async def test_flow_index(store: RedisStore, field: Field) -> None:
    await put(store, structs.replace(new("a"), flow="f"), structs.replace(new("b"), flow="f"), waits("c", flow="g"))
    for id in ("a", "c"):
        field.raw.delete(field.key(id))
        field.raw.lrem(f"{field.Q}:wait", 0, id)
    await is_repaired(store, field, "flow_index", f"{QUEUE}:a", f"{QUEUE}:c")
    assert await store.flows() == ["f"]


async def test_flows_of_all_kinds_are_not_damaged(store: RedisStore, field: Field) -> None:
    await put(store, new("a"), waits("left", "a", flow="f"), waits("right", "a"), waits("last", "left", "right"))
    await put(store, *[waits(f"more-{n}", "last") for n in range(260)])
    assert await settle(store, succeed(await claim_one(store), 5)) == ["done"]
    await store.change(["right"], Hold())
    before = snapshot(field)
    assert await damage(store, repair=True) == {}
    assert snapshot(field) == before


async def test_marker_missing(store: RedisStore, field: Field) -> None:
    id = await put_one(store)
    await put_one(store, new(queue="paused"))
    await store.configure("paused", QueueChange(paused=True))
    field.raw.delete(f"{field.Q}:marker")
    assert await damage(store) == {}, "a worker that has taken the marker may be about to claim"
    field.raw.hset(field.key(id), "timestamp", int(time.time() * 1000) - 11_000)
    await is_repaired(store, field, "marker_missing", QUEUE)
    assert field.raw.zrange(f"{field.Q}:marker", 0, -1) == [b"0"]


async def test_what_changed_since_is_left_alone(store: RedisStore, field: Field) -> None:
    """A job that a worker takes between the pages of ids is in another list then, and not damaged."""
    id = await put_one(store)
    script_call = store.context.run

    async def claims_first(script: Any, queue: str, now_ms: int, **request: Any) -> Any:
        if request.get("check") == "id_in_two_places" and field.places()[id.encode()] == ["wait", "completed"]:
            field.raw.zrem(f"{field.Q}:completed", id)
        return await script_call(script, queue, now_ms, **request)

    field.put(id, "completed")
    store.context.run = claims_first  # type: ignore[method-assign]
    assert await damage(store, repair=True) == {}
    assert await state_of(store, id) == "waiting"


async def test_jobs_of_both_sides_in_every_state_are_not_damaged(store: RedisStore, field: Field) -> None:
    for state in ("waiting", "running", "succeeded", "failed", "cancelled"):
        await in_state(store, state, new(name=state))
    theirs = Queue(store, QUEUE)
    await theirs.add("theirs", {}, priority=3)
    await theirs.add("theirs", {}, delay=60_000)
    await theirs.upsert_scheduler("s", every=60_000, name="theirs")
    assert await settle(store, succeed(await claim_one(store, names=("theirs",)))) == ["done"]
    before = snapshot(field)
    assert await damage(store, repair=True) == {}
    assert snapshot(field) == before


async def test_damage_on_a_cluster(redis_cluster: RedisCluster) -> None:
    store = RedisStore(f"redis+cluster://127.0.0.1:{redis_cluster.nodes[0].port}?prefix=t-fsck")
    try:
        for queue in ("{a}", "{b}", "{c}"):
            await put_one(store, new(f"good-{queue}", queue=queue))
            key = f"{store.context.key(queue)}:wait"
            await store.context.client.call(key, "LPUSH", key, "gone")
        assert (await damage(store))["id_without_hash"].count == 3
        assert (await damage(store, repair=True))["id_without_hash"].repaired == 3
        assert await damage(store) == {}
    finally:
        for queue in ("{a}", "{b}", "{c}"):
            for left in await store.context.client.scan(f"{store.context.key(queue)}:*", "list"):
                await store.context.client.call(left.decode(), "DEL", left)
        await store.close()


# ---------------------------------------------------------------------------------------------------- diagnose


async def found(server: RedisServer) -> dict[str, Finding]:
    store = RedisStore(server.url())
    try:
        return {one.check: one for one in await store.diagnose()}
    finally:
        await store.close()


async def test_a_server_that_is_set_up_well(own_redis: RedisServer) -> None:
    own_redis.ask("CONFIG", "SET", "appendonly", "yes")
    findings = await found(own_redis)
    assert {check: one.level for check, one in findings.items()} == {
        "reachable": "ok",
        "eviction_policy": "ok",
        "memory": "ok",
        "append_only": "ok",
        "persistence": "ok",
        "flow_slots": "ok",
    }


async def test_what_endangers_jobs(own_redis: RedisServer) -> None:
    own_redis.ask("CONFIG", "SET", "appendonly", "no")
    own_redis.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    findings = await found(own_redis)
    assert (findings["append_only"].level, findings["eviction_policy"].level) == ("warning", "warning")
    own_redis.ask("CONFIG", "SET", "maxmemory", 1_000_000_000)
    assert (await found(own_redis))["eviction_policy"].level == "error"
    used = int(own_redis.ask("INFO", "memory")["used_memory"])
    for share, level in ((0.5, "ok"), (0.85, "warning"), (0.97, "error")):
        own_redis.ask("CONFIG", "SET", "maxmemory", int(used / share))
        assert (await found(own_redis))["memory"].level == level, share
    own_redis.ask("CONFIG", "SET", "maxmemory", 0)


async def test_a_server_that_cannot_write(own_redis: RedisServer) -> None:
    store = RedisStore(own_redis.url())
    await put_one(store)
    await store.close()
    with own_redis.client() as raw:
        config: Any = raw.config_get("d*")
    target = Path(config["dir"]) / config["dbfilename"]
    target.unlink(missing_ok=True)
    target.mkdir()  # no file can be renamed to this
    own_redis.ask("BGSAVE")
    await until(lambda: own_redis.ask("INFO", "persistence")["rdb_last_bgsave_status"] == "err")
    assert (await found(own_redis))["persistence"].level == "error"
    target.rmdir()


async def test_flows_on_a_cluster(redis_cluster: RedisCluster) -> None:
    store = RedisStore(f"redis+cluster://127.0.0.1:{redis_cluster.nodes[0].port}?prefix=t-slots")
    try:
        await put(store, new("a", queue="{a}"), new("b", queue="{b}"))
        levels = {one.check: one.level for one in await store.diagnose()}
        assert levels["flow_slots"] == "ok"
        await store.change(["a"], Hold())
        levels = {one.check: one.level for one in await store.diagnose()}
        assert levels["flow_slots"] == "warning"
    finally:
        for queue in ("{a}", "{b}"):
            for kind in ("list", "zset", "hash", "set"):
                for key in await store.context.client.scan(f"{store.context.key(queue)}:*", kind):
                    await store.context.client.call(key.decode(), "DEL", key)
        await store.close()
