"""What programs write that nobody checked: it is run, failed or left to Node, and holds up nothing after it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from jobmill.core.changes import Cancel, Remove, Requeue
from jobmill.core.values import EVERYTHING, Filter
from jobmill.errors import InvalidValue
from jobmill.stores.redis import RedisStore
from jobmill.stores.redis.url import RedisUrl
from jobmill.testing.contract.support import claim_one, new, put_one, settle, succeed
from tests.helpers import until
from tests.kit.redis import Rooms
from tests.stores.redis_planting import Field, ends, given_back, working, works

pytestmark = pytest.mark.stores("redis")

UNREADABLE = "the stored job cannot be read: "

#: Fields of a job, and why it does not run: None if it runs.
FIELDS: dict[str, tuple[dict[str, Any], str | None]] = {
    "opts-array": ({"opts": "[]"}, "opts: Expected `object`, got `array`"),
    "opts-null": ({"opts": "null"}, "opts: Expected `object`, got `null`"),
    "opts-torn": ({"opts": '{"attempts":'}, "opts: Input data was truncated"),
    "opts-deep": ({"opts": "[" * 100_000}, "opts: "),
    "opts-none": ({"opts": None}, None),
    "data-torn": ({"data": '{"a":'}, "Input data was truncated"),
    "data-empty": ({"data": ""}, "Input data was truncated"),
    "data-deep": ({"data": "[" * 100_000 + "]" * 100_000}, "RecursionError"),
    "data-none": ({"data": None}, "its hash is missing, or has no data"),
    "name-none": ({"name": None}, "its hash has no name"),
    "stack-torn": ({"stacktrace": '["a'}, "stacktrace: "),
    "progress-torn": ({"progress": "{"}, "progress: "),
    "progress-own": ({"progress": '{"step":[1]}'}, None),
    "recurrence-torn": ({"rjk": "s", "jmr": "{"}, "jmr: "),
    "recurrence-rule": ({"rjk": "s", "jmr": '{"rule":"x"}'}, "jmr: "),
    "repeat-words": ({"rjk": "s", "opts": '{"repeat":{"every":"x","count":"y","endDate":"z"}}'}, None),
    "repeat-zone": ({"rjk": "s", "opts": '{"repeat":{"every":1000,"tz":5}}'}, "opts.repeat.tz: expected the name of"),
    "repeat-count": ({"rjk": "s", "opts": '{"repeat":{"every":1000,"count":[1]}}'}, None),
    "parent-none": ({"parentKey": "nonsense", "parent": "{"}, None),
    "keep-part": ({"opts": '{"removeOnComplete":900.5}'}, None),
    "keep-endless": ({"opts": '{"removeOnComplete":{"age":1e308,"count":1e300,"limit":1.5}}'}, None),
    "keep-negative": ({"opts": '{"removeOnComplete":{"age":-5,"count":-3,"limit":-1}}'}, None),
    "attempts-word": ({"opts": '{"attempts":"three"}'}, None),
    "attempts-endless": ({"opts": '{"attempts":1e308,"backoff":{"type":7,"delay":"x"}}'}, None),
    "delay-endless": ({"opts": '{"delay":1e308}'}, None),
    "own-said": ({"jm": 1, "jmo": "{"}, "jmo: "),
    "own-times": ({"jm": 1, "jmt": "x y:z"}, None),
    "doomed": ({"defa": "a child failed"}, "a child failed"),
}
NUMBERS = ("timestamp", "atm", "ats", "stc", "priority", "processedOn", "jme", "jmd", "jmu", "jmc")
#: A number that is none, or none that anybody can count with.
NO_NUMBERS = {"word": "abc", "nothing": "", "nan": "nan", "endless": "inf", "huge": "1e400", "long": "9" * 40}


@pytest.fixture
def field(redis_server: Rooms, redis_url: str) -> Iterator[Field]:
    with redis_server.client() as raw:
        yield Field(raw, RedisUrl.read(redis_url).prefix)


@pytest.fixture
async def store(redis_url: str) -> Any:
    store = RedisStore(redis_url)
    await store.open()
    yield store
    await store.close()


def no_loop_raised(caplog: pytest.LogCaptureFixture) -> None:
    """Each job is a matter of its own: no loop of the worker stumbles over one."""
    errors = [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in errors if not hasattr(record, "job_id")] == []
    assert [record.getMessage() for record in errors if record.exc_info] == []


# ---------------------------------------------------------------------------------------------------- fields


async def test_fields_that_nobody_can_read(
    redis_url: str, redis_name: str, field: Field, caplog: pytest.LogCaptureFixture
) -> None:
    async with works(redis_url) as made:
        good = []
        for n, (id, (fields, _)) in enumerate(FIELDS.items()):
            good.append(await made.good(n))
            field.plant(id, **fields)
        good.append(await made.good(-1))
        async with working(made.jobs):
            assert [await one.result(timeout=15) for one in good] == [*range(len(FIELDS)), -1]
            await ends(field, FIELDS, log=caplog)
        failures, left = field.failures(), given_back(caplog)
        assert {id for id, (_, why) in FIELDS.items() if why} == {*failures, *left}
        for id, why in (failures | left).items():
            expected = FIELDS[id][1] or ""
            assert expected in why
            assert why.startswith(UNREADABLE) or id in ("doomed", "repeat-cron", "repeat-endless")
        # Node may read what we cannot, but a job of ours is nobody else's.
        assert set(failures) == {"own-said", "doomed"}
        assert {field.raw.hget(field.key(id), "failedReason") for id in left} == {None}
        # And whoever looks sees them all.
        found = [job async for job in made.jobs.find_all()]
        assert len(found) == len(good) + len(FIELDS)
        assert Counter(job.state for job in found)["failed"] == len(failures)
    no_loop_raised(caplog)


@pytest.mark.parametrize("place", ["wait", "prioritized", "delayed", "active"])
async def test_numbers_that_are_none(
    redis_url: str, redis_name: str, field: Field, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with works(redis_url) as made:
        first = await made.good(1)
        ids = [f"{name}-{what}" for name in NUMBERS for what in NO_NUMBERS]
        for id in ids:
            name, _, what = id.partition("-")
            field.plant(id, place, **{name: NO_NUMBERS[what]})
        async with working(made.jobs):
            assert await first.result(timeout=15) == 1
            await ends(field, ids, log=caplog)
            assert await (await made.good(2)).result(timeout=15) == 2
        left = given_back(caplog)
        assert all(why.startswith(UNREADABLE) for why in left.values())
        assert all("stalled" in why for why in field.failures().values())
        # What is not looked at does no harm.
        assert len(left) >= len(ids) * 0.8
        assert len([job async for job in made.jobs.find_all()]) == len(ids) + 2
    no_loop_raised(caplog)


async def test_hashes_of_seed_style_clients(redis_url: str, redis_name: str, field: Field) -> None:
    seed = {"id": "x", "attemptsMade": 0, "workerId": "", "progress": "0", "finishedOn": "0", "processedOn": "0"}
    async with works(redis_url) as made:

        @made.jobs.handler(name="never")
        async def never() -> None:
            made.runs["never"] += 1
            raise ValueError("no luck")

        field.plant("one", **seed)
        field.plant("two", **seed, name="never", opts='{"attempts":3,"backoff":{"type":"fixed","delay":1}}')
        # Their scores are milliseconds, which is long ago for those of BullMQ.
        field.plant("late", "nowhere", **seed)
        field.put("late", "delayed", time.time() * 1000 + 60_000)
        async with working(made.jobs):
            await ends(field, ["one", "two", "late"])
        assert made.runs == {"default:one": 1, "default:late": 1, "never": 3}
        assert field.raw.hmget(field.key("one"), "atm", "ats", "attemptsMade") == [b"1", b"1", b"0"]
        assert field.raw.hmget(field.key("two"), "atm", "ats", "failedReason") == [b"3", b"3", b"no luck"]
        (job,) = await made.jobs.store.get(["default:one"])
        assert job is not None
        assert (job.state, job.errors, job.claims, job.finished_ms is not None) == ("succeeded", 0, 1, True)


# ---------------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize("place", ["wait", "prioritized", "delayed", "active"])
async def test_ids_without_a_hash(
    redis_url: str, redis_name: str, field: Field, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with works(redis_url) as made:
        first = await made.good(1)
        field.put("missing", place)
        field.raw.set(field.key("string"), "mine")
        field.raw.rpush(field.key("list"), "mine")
        for id in ("string", "list"):
            field.put(id, place)
        last = await made.good(2)
        # Looking does not stumble either.
        assert {job.id for job in (await made.jobs.store.find(EVERYTHING)).jobs} >= {"default:string", "default:list"}
        assert (await made.jobs.store.get(["default:list"]))[0] is not None
        async with working(made.jobs):
            assert await first.result(timeout=15) == 1
            assert await last.result(timeout=15) == 2
            await ends(field, ["missing", "string", "list"])
        failures = field.failures()
        assert failures["missing"] == UNREADABLE + "its hash is missing, or has no data"
        assert failures["string"].startswith(UNREADABLE + "its key held a string instead of a hash")
        # What was there was somebody's.
        assert field.raw.get(f"{field.Q}:jobmill:aside:string") == b"mine"
        assert field.raw.lrange(f"{field.Q}:jobmill:aside:list", 0, -1) == [b"mine"]
    no_loop_raised(caplog)


async def test_changes_of_jobs_whose_key_is_no_hash(store: RedisStore, field: Field) -> None:
    await put_one(store, new(queue="default"))
    for id in ("a", "b", "c"):
        field.raw.set(field.key(id), "mine")
        field.put(id)
    changed = await store.change(["default:a", "default:b"], Cancel())
    assert changed.ids == ["default:a", "default:b"]
    assert (await store.change(["default:a"], Requeue())).ids == ["default:a"]
    assert (await store.change(["default:c"], Remove())).ids == ["default:c"]
    assert (await store.change(Filter(queue="default"), Cancel())).refused == {}
    assert field.places().get(b"c") is None
    assert {job.state for job in (await store.find(EVERYTHING)).jobs} == {"cancelled"}


async def test_locks_that_are_none(redis_url: str, redis_name: str, field: Field) -> None:
    async with works(redis_url) as made:
        for id, place in (("waiting", "wait"), ("running", "active")):
            field.plant(id, place)
            field.raw.rpush(field.key(f"{id}:lock"), "x")
        async with working(made.jobs):
            await ends(field, ["waiting", "running"])
        assert made.runs == {"default:waiting": 1, "default:running": 1}
        assert field.raw.hget(field.key("running"), "stc") == b"1"


async def test_ids_that_are_none(
    redis_url: str, redis_name: str, field: Field, caplog: pytest.LogCaptureFixture
) -> None:
    async with works(redis_url) as made:
        first = await made.good(1)
        # Markers of versions before 5, without a hash; and a job that somebody named so.
        field.put("0:0")
        field.plant("0:1")
        field.plant("")
        field.plant("a:b:c:d")
        field.plant(b"a\xff")
        # The queue's own keys.
        meta = field.raw.hgetall(f"{field.Q}:meta")
        for id in ("wait", "meta", "events"):
            field.put(id)
        for id in ("active", "id"):
            field.put(id, "active")
        last = await made.good(2)
        async with working(made.jobs):
            assert await first.result(timeout=15) == 1
            assert await last.result(timeout=15) == 2
            await ends(field, ["0:1", "", "a:b:c:d"])
            await until(lambda: field.places()[b"a\xff"] == ["failed"], 15)
            await until(lambda: field.raw.llen(f"{field.Q}:active") == 0, 15)
        assert made.runs == {"default:0:1": 1, "default:": 1, "default:a:b:c:d": 1}
        assert field.failures() == {"a\N{REPLACEMENT CHARACTER}": UNREADABLE + "its id is not UTF-8 text"}
        assert field.raw.llen(f"{field.Q}:wait") == 0
        assert field.raw.hgetall(f"{field.Q}:meta") == meta
        assert len([job async for job in made.jobs.find_all()]) == 6
    no_loop_raised(caplog)


async def test_the_queues_own_keys_are_no_jobs(store: RedisStore, field: Field) -> None:
    for id in ("wait", "meta", "mail:failed"):
        with pytest.raises(InvalidValue, match=r"^id: expected an id that is not the name of a key of BullMQ's, got "):
            await store.enqueue([new(), new(id)])
    assert field.raw.exists(f"{field.Q}:id") == 0
    one = await put_one(store, new(queue="default"))
    for own in ("default:wait", "default:meta"):
        assert await store.get([own]) == [None]
        for change in (Remove(), Cancel()):
            assert (await store.change([own], change)).refused == {own: "there is no such job"}
    assert field.places() == {one.encode(): ["wait"]}


# ---------------------------------------------------------------------------------------------------- settling


async def test_a_key_that_is_overwritten_while_the_job_runs(
    redis_url: str, redis_name: str, field: Field, caplog: pytest.LogCaptureFixture
) -> None:
    async with works(redis_url) as made:

        @made.jobs.handler(name="rude")
        async def rude(id: str) -> None:
            field.raw.set(field.key(id), "mine")

        await made.jobs.enqueue("rude", {"id": "ours"}, id="ours")
        field.plant("nodes", name="rude", data='{"id":"nodes"}')
        good = [await made.good(n) for n in range(10)]
        async with working(made.jobs, slots=20):
            assert [await one.result(timeout=15) for one in good] == list(range(10))
            await ends(field, ["ours", "nodes"])
        for why in field.failures().values():
            assert why.startswith("the store refused the settlement: ")
            assert "WRONGTYPE" in why
        assert set(field.failures()) == {"ours", "nodes"}
    no_loop_raised(caplog)


async def test_keys_of_parents_and_deduplication_that_are_not_theirs(
    redis_url: str, redis_name: str, field: Field, caplog: pytest.LogCaptureFixture
) -> None:
    async with works(redis_url) as made:
        field.raw.set(f"{field.Q}:p:dependencies", "mine")
        field.raw.set(f"{field.Q}:repeat:s", "mine")
        field.raw.rpush(f"{field.Q}:de:d", "mine")
        field.plant("child", parentKey=f"{field.Q}:p", parent='{"fpof":true}')
        field.plant("unique", deid="d")
        field.plant("run", rjk="s", opts='{"repeat":{"every":1000}}')
        good = [await made.good(n) for n in range(10)]
        async with working(made.jobs, slots=20):
            assert [await one.result(timeout=15) for one in good] == list(range(10))
            await ends(field, ["child", "unique", "run"])
        assert made.runs == {"default:child": 1, "default:unique": 1, "default:run": 1}
        assert set(field.failures()) == {"child", "unique", "run"}
        assert all("WRONGTYPE" in why for why in field.failures().values())
    no_loop_raised(caplog)


async def test_others_of_a_finished_set_that_cannot_be_read(store: RedisStore, field: Field) -> None:
    """Retention as Node means it looks at jobs that are none of the settlement's business."""
    field.raw.set(field.key("old"), "mine")
    field.put("old", "completed", 1)
    field.plant("one", name="send", opts='{"removeOnComplete":1}')
    claimed = await claim_one(store, queues=("default",))
    assert await settle(store, succeed(claimed)) == ["done"]
    assert field.places() == {b"one": ["completed"]}


# ---------------------------------------------------------------------------------------------------- places


async def test_scores_that_are_none(redis_url: str, redis_name: str, field: Field) -> None:
    async with works(redis_url) as made:
        for id, score in (("before", -5.0), ("ever", float("-inf")), ("never", float("inf"))):
            field.plant(id, "nowhere")
            field.put(id, "delayed", score)
        async with working(made.jobs):
            await ends(field, ["before", "ever"])
            assert await (await made.good(1)).result(timeout=15) == 1
        assert field.places()[b"never"] == ["delayed"]
