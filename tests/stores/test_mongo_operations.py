"""What operations read and write on MongoDB: indexes, round trips, and jobs that are held or due much later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import structs
from pymongo import monitoring

from jobmill.core.announcing import WorkerCard
from jobmill.core.changes import Hold, Release, Reschedule
from jobmill.core.due import NEVER_MS
from jobmill.core.job import Attempt
from jobmill.core.recurrence import Recurrence
from jobmill.core.tallies import MINUTE_MS, Tally
from jobmill.core.values import SEARCHED_PER_PAGE, CountUpTo, Filter, Pause, QueueChange, QueueSettings, after, at
from jobmill.stores.mongo import MongoStore
from jobmill.stores.mongo.claim import MAX_AHEAD
from jobmill.stores.mongo.codec import FAR_MS, date
from jobmill.testing.contract.support import claim, claim_ids, find_all, in_state, look, new, next_due, put
from tests.stores.mongo_scene import HOME, Scene, examined, foreign, home, profiled

pytestmark = pytest.mark.stores("mongo")

DAY_S = 24 * 3_600
WAITING = Filter(queue="default", states=("waiting",))


@pytest.fixture
async def scene(mongo_url: str) -> AsyncIterator[Scene]:
    scene = Scene(mongo_url)
    await scene.open()
    yield scene
    await scene.store.close()


async def document(scene: Scene, id: str) -> dict[str, Any]:
    found = await scene.store.context.here.jobs.find_one({"jobmill.id": id})
    assert found is not None
    return found


# ---------------------------------------------------------------------------------------------------- reading


async def test_depths_read_few_jobs_and_stop_at_the_limit(scene: Scene) -> None:
    await put(scene.store, *[new(queue="default", name=f"name-{n % 3}", priority=n % 2) for n in range(600)])
    await put(scene.store, *[new(queue="other", due=after(1_000)) for _ in range(300)])
    for _ in range(3):
        await in_state(scene.store, "succeeded", new(queue="third"))
    async with profiled(scene.store, "$cmd.aggregate") as done:
        await scene.store.depths(limit=100)
    # In indexes: 100 due and 200 later jobs, and a few entries for each queue and state.
    assert sum(one.get("docsExamined", 0) for one in done) == 0
    assert 300 < examined(done) < 550


@pytest.mark.parametrize("queue", ["default", "other"])
@pytest.mark.parametrize("names", [3, 25])
async def test_many_jobs_of_a_state_are_counted_from_keys_alone(scene: Scene, queue: str, names: int) -> None:
    jobs = scene.store.context.here.jobs
    await put(scene.store, *[new(queue=queue, name=f"name-{n % names}") for n in range(2_200)])
    for _ in range(11):
        assert len(await claim(scene.store, 100, queues=(queue,), names=[f"name-{n}" for n in range(names)])) == 100
    await jobs.update_many({"status": "processing"}, {"$set": {"status": "completed"}})
    some = [new(queue=queue, name=f"name-{n % names}", due=after(1_000)) for n in range(2_300)]
    await scene.store.change((await put(scene.store, *some))[:1_150], Hold(), 2_000)
    async with profiled(scene.store) as done:
        (depth,) = await scene.store.depths()
    assert (depth.due, depth.later, depth.held, depth.succeeded, depth.exact) == (1_100, 1_150, 1_150, 1_100, True)
    counts = [one for one in done if "count" in one.get("command", {})]
    assert sum(one["keysExamined"] for one in counts) >= 1_100 + 2_300 + 1_150 + 1_100
    assert all(one.get("docsExamined", 0) == 0 for one in counts)
    assert {word for one in counts for word in one["planSummary"].split() if word.isupper()} == {"COUNT_SCAN"}
    assert len(counts) == 4, "one for each state with many jobs"
    (depth,) = await scene.store.depths(limit=1_050)
    assert (depth.due, depth.later, depth.held, depth.succeeded, depth.exact) == (*[1_050] * 4, False)
    # The second call counts large numbers at once, and only once; and large numbers become small.
    async with profiled(scene.store) as done:
        (depth,) = await scene.store.depths()
    assert (depth.due, depth.later, depth.held, depth.succeeded, depth.exact) == (1_100, 1_150, 1_150, 1_100, True)
    assert len([one for one in done if "count" in one.get("command", {})]) == 4
    await jobs.delete_many({"status": "completed"})
    await put(scene.store, new(queue=queue))
    (depth,) = await scene.store.depths()
    assert (depth.due, depth.succeeded, depth.exact) == (1_101, 0, True)


async def test_the_oldest_due_job_of_many(scene: Scene) -> None:
    ids = [f"job-{number}" for number in range(400)]
    await put(scene.store, *[home(id, name=f"name-{n % 7}", priority=n % 3) for n, id in enumerate(ids)])
    oldest_ms = scene.clock() - 5_000
    await put(scene.store, home("oldest", name="name-5", due=at(oldest_ms), priority=9))
    (depth,) = await scene.store.depths()
    assert (depth.due, depth.oldest_due_ms, depth.exact) == (401, oldest_ms, True)


@pytest.mark.parametrize("state", ["waiting", "succeeded"])
async def test_a_page_reads_little_more_than_its_jobs(scene: Scene, state: Any) -> None:
    if state == "waiting":
        await put(scene.store, *[home(f"job-{n}", name=f"name-{n % 3}", priority=n % 2) for n in range(500)])
    else:
        await scene.put(*(f"job-{n}" for n in range(300)))
        await scene.store.context.here.jobs.update_many({}, {"$set": {"status": "completed"}})
    wanted = Filter(queue="default", states=(state,))
    first = await scene.store.find(wanted, None, 10)
    async with profiled(scene.store) as done:
        await scene.store.find(wanted, None, 10)
        await scene.store.find(wanted, first.next, 10)
    # The jobs of two pages, one more for each, and one for each name.
    assert sum(one.get("docsExamined", 0) for one in done) <= 28
    assert examined(done) < 100


@pytest.mark.parametrize(
    ("wanted", "most"),
    [
        (Filter(states=("failed",)), 30),
        (Filter(states=("cancelled",)), 30),
        (Filter(states=("waiting", "running"), declared=True), 30),
        (Filter(states=("running",)), 30),
        (Filter(states=("waiting", "running"), recurring=True), 30),
        (Filter(states=("waiting",), recurring=True, held=False, due_before_ms=2**42), 30),
        (Filter(states=("waiting", "running"), unique_key="key"), 30),
        (Filter(queue="other"), 60),
        (Filter(queue="default", states=("waiting",)), 30),
    ],
)
async def test_an_index_finds_few_jobs_among_many(scene: Scene, wanted: Filter, most: int) -> None:
    """The few are older than the many, which a search from the newest job on would read first."""
    jobs = scene.store.context.here.jobs
    for state in ("failed", "cancelled", "running"):
        await in_state(scene.store, state, home(state))
    await put(scene.store, new("other", queue="other"), home("unique", key="key"))
    await scene.put("recurring", recurrence=Recurrence(key="rule", cron="@daily", declared=True), key="rule")
    theirs = await scene.insert(repeatInterval="0 * * * *", status="processing", nextRunAt=date(scene.clock()))
    await jobs.insert_many([foreign(scene.clock(), status="completed") for _ in range(500)])
    await jobs.insert_many([foreign(scene.clock()) for _ in range(500)])
    await scene.store.find(wanted, None, 10)
    async with profiled(scene.store) as done:
        page = await scene.store.find(wanted, None, 10)
        counted = await scene.store.count_up_to(wanted, 10)
    assert min(counted.count, 10) == len(page.jobs) > 0
    assert sum(one.get("docsExamined", 0) for one in done) <= most
    if wanted.recurring:
        assert {job.id for job in page.jobs} <= {"recurring", str(theirs)}


async def test_a_filter_that_no_state_matches(scene: Scene) -> None:
    await scene.put("job")
    wanted = Filter(states=("waiting",), finished_after_ms=0)
    assert await scene.store.count_up_to(wanted, 10) == CountUpTo(0, exact=True)
    for queue in (None, "default"):
        assert (await scene.store.find(structs.replace(wanted, queue=queue), None, 10)).jobs == []


async def test_a_search_examines_a_limited_number_of_jobs(scene: Scene) -> None:
    jobs = scene.store.context.here.jobs
    for status in ("completed", "pending"):
        await jobs.insert_many([foreign(scene.clock(), status=status) for _ in range(SEARCHED_PER_PAGE + 1_000)])
    for wanted in (
        Filter(tenant="nobody"),
        Filter(payload={"to": "nobody"}),
        Filter(queue="default", states=("succeeded",), name="other"),
        Filter(queue="default", states=("waiting",), tenant="nobody"),
    ):
        async with profiled(scene.store) as done:
            page = await scene.store.find(wanted, None, 10)
        # Once each: a few jobs, the jobs that are searched, and where the search has ended.
        assert (page.jobs, page.next is not None) == ([], True)
        assert max(one.get("docsExamined", 0) for one in done) == SEARCHED_PER_PAGE
        assert sum(one.get("docsExamined", 0) for one in done) <= 2 * SEARCHED_PER_PAGE + 300
        async with profiled(scene.store) as done:
            assert not (await scene.store.count_up_to(wanted, 10)).exact
        assert sum(one.get("docsExamined", 0) for one in done) <= 2 * SEARCHED_PER_PAGE


async def test_when_the_next_job_is_due_among_very_many_of_other_names(scene: Scene) -> None:
    jobs, now_ms = scene.store.context.here.jobs, scene.clock()
    others = [foreign(now_ms, name="other", nextRunAt=date(now_ms + 1_000 + n)) for n in range(3_000)]
    await jobs.insert_many(others)
    await put(scene.store, home("mine", due=after(10_000)))
    async with profiled(scene.store) as done:
        due_ms = await next_due(scene.store, queues=HOME)
    # No job of this name is due before then. The next claim reads on from there.
    assert due_ms == now_ms + 1_000 + MAX_AHEAD - 1
    assert examined(done) < 3 * MAX_AHEAD
    scene.clock.advance(4)
    assert await next_due(scene.store, queues=HOME) == now_ms + 10_000


async def test_jobs_of_monque_without_a_priority_stand_where_they_are_claimed(scene: Scene) -> None:
    await put(scene.store, home("low", priority=5), home("first", priority=-3))
    unranked = []
    for _ in range(4):
        # Jobs of one millisecond would stand in the order of their ids, which are random.
        scene.clock.advance(0.001)
        unranked.append(str(await scene.insert(priority=None)))
        scene.clock.advance(0.001)
        await put(scene.store, home(f"after {unranked[-1]}"))
    expected = ["first", *(id for one in unranked for id in (one, f"after {one}")), "low"]
    assert await find_all(scene.store, WAITING, 3) == expected
    last = await scene.store.find(WAITING, None, 100)
    back, page = list[str](), await scene.store.find(WAITING, (await scene.store.find(WAITING, None, 7)).next, 7)
    while page.previous is not None:
        page = await scene.store.find(WAITING, page.previous, 3)
        back = [job.id for job in page.jobs] + back
    assert (back, len(last.jobs)) == (expected[:7], len(expected))
    assert await claim_ids(scene.store, queues=HOME, n=20) == expected


class Commands(monitoring.CommandListener):
    """The names of commands that were sent."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.names.append(event.command_name)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


@pytest.fixture
def commands() -> Commands:
    """What stores that are opened from now on in this process send."""
    listener = Commands()
    monitoring.register(listener)
    return listener


async def test_statistics_of_many_queues_are_few_commands(scene: Scene, commands: Commands) -> None:
    queues = [f"queue-{number}" for number in range(60)]
    await put(scene.store, *[new(queue=queue) for queue in queues for _ in range(2)])
    for queue in queues[:30]:
        (one,) = await claim(scene.store, queues=(queue,), n=1)
        assert one.lease.queue == queue
    jobs = scene.store.context.here.jobs
    await jobs.update_many({"status": "processing"}, {"$set": {"status": "completed"}})
    scene.clock.advance(7)
    async with scene.another() as store:
        commands.names.clear()
        stats = await store.stats()
        assert len(commands.names) <= 6
        by_queue = {one.queue: one for one in stats}
        assert set(by_queue) == set(queues)
        assert {one.oldest_waiting_ms for one in stats} == {7_000}
        assert (by_queue["queue-0"].succeeded, by_queue["queue-0"].p50_ms) == (1, 0.0)
        assert by_queue["queue-59"].p50_ms is None
        assert await store.stats("queue-0") == [by_queue["queue-0"]]
        commands.names.clear()
        assert len(await store.depths()) == 60
        assert len(commands.names) <= 15


@pytest.mark.slow
async def test_statistics_of_two_thousand_queues(scene: Scene, commands: Commands) -> None:
    """As many commands as for a few queues, and each passes over the jobs once. It took 6 s with commands by queue."""
    count = 2_000
    await put(scene.store, *[new(queue=f"queue-{number}") for number in range(count) for _ in range(2)])
    jobs = scene.store.context.here.jobs
    done = [one["_id"] for one in await jobs.find({}, {"_id": 1}).sort("_id", 1).limit(count).to_list()]
    await jobs.update_many({"_id": {"$in": done}}, {"$set": {"status": "completed"}})
    scene.clock.advance(7)
    async with scene.another() as store:
        async with profiled(scene.store) as seen:
            commands.names.clear()
            stats = await store.stats()
            assert len(commands.names) <= 6
        assert len(stats) == count
        assert sum(one.waiting for one in stats) == sum(one.succeeded for one in stats) == count
        assert examined(seen) <= 4 * 2 * count


# ---------------------------------------------------------------------------------------------------- announcing


def card(id: str, announcement: int = 1) -> WorkerCard:
    about: dict[str, Any] = {"host": "h", "pid": 1, "version": "1", "python": "3", "started_ms": 1, "concurrency": 1}
    return WorkerCard(id=id, name=id, queues=(), names=(), announcement=announcement, **about)


async def test_an_announcement_is_two_commands_at_the_same_time(scene: Scene, commands: Commands) -> None:
    async with scene.another() as store:
        commands.names.clear()
        await store.announce(card("idle"), [])
        assert commands.names == ["findAndModify"]
        commands.names.clear()
        minute_ms = scene.clock() // MINUTE_MS * MINUTE_MS
        tallies = [Tally(start_ms=minute_ms, queue="q", name=f"n{n}", claimed=1) for n in range(30)]
        await store.announce(card("busy"), tallies)
        assert sorted(commands.names) == ["findAndModify", "update"]


async def test_half_of_an_announcement_that_is_sent_again_counts_once(scene: Scene) -> None:
    minute_ms = scene.clock() // MINUTE_MS * MINUTE_MS
    tallies = [Tally(start_ms=minute_ms, queue="q", name=name, claimed=1) for name in ("a", "b")]
    await scene.store.announce(card("w"), tallies[:1])
    calls = (scene.store.announce(card("w"), tallies) for _ in range(3))
    await asyncio.gather(*calls)
    found = await scene.store.tallies(0, minute_ms + 1, MINUTE_MS)
    assert [(one.name, one.claimed) for one in found] == [("a", 1), ("b", 1)]


async def test_collections_of_one_database_have_their_own_workers(scene: Scene) -> None:
    other = Scene(f"{scene.url}{'&' if '?' in scene.url else '?'}collection=others")
    await other.open()
    minute_ms = scene.clock() // MINUTE_MS * MINUTE_MS
    await other.store.announce(card("theirs"), [Tally(start_ms=minute_ms, queue="q", name="n", claimed=1)])
    assert await scene.store.workers() == []
    assert await scene.store.tallies(0, minute_ms + 1, MINUTE_MS) == []
    assert [one.id for one in await other.store.workers()] == ["theirs"]
    await other.store.close()


# ---------------------------------------------------------------------------------------------------- held and far


async def test_a_job_that_is_due_much_later_keeps_its_due_time(scene: Scene) -> None:
    due_ms = scene.clock() + 90 * DAY_S * 1_000
    await scene.put("far", due=at(due_ms))
    assert (await document(scene, "far"))["nextRunAt"] == date(scene.clock() + FAR_MS)
    assert (await look(scene.store, "far")).due_ms == due_ms
    assert await find_all(scene.store, Filter(due_after_ms=due_ms, due_before_ms=due_ms + 1)) == ["far"]
    assert await find_all(scene.store, Filter(due_before_ms=due_ms)) == []
    assert await next_due(scene.store, queues=HOME) == due_ms
    for days in (15, 15, 15, 15, 15):
        scene.clock.advance(days * DAY_S)
        await scene.store.purge()
        assert (await document(scene, "far"))["nextRunAt"] <= date(due_ms)
        assert (await look(scene.store, "far")).due_ms == due_ms
        assert await claim(scene.store, queues=HOME) == []
    scene.clock.advance(15 * DAY_S - 0.001)
    assert await claim(scene.store, queues=HOME) == []
    scene.clock.advance(0.001)
    (claimed,) = await claim(scene.store, queues=HOME)
    assert (claimed.job.id, claimed.job.due_ms) == ("far", due_ms)
    assert "due" not in (await document(scene, "far"))["jobmill"]


async def test_no_worker_claims_what_nobody_has_moved_on(scene: Scene) -> None:
    far_ms = scene.clock() + 200 * DAY_S * 1_000
    await scene.put("held", *(f"held-{n}" for n in range(30)))
    held = await find_all(scene.store, WAITING)
    await scene.put("far", due=at(far_ms))
    await scene.store.change(held, Hold())
    scene.clock.advance(50 * DAY_S)
    await scene.put("plain")
    assert await claim_ids(scene.store, queues=HOME, n=5) in ([], ["plain"])
    async with scene.another() as other:
        assert await claim_ids(other, queues=HOME, n=5) in ([], ["plain"])
        assert (await look(other, "plain")).state == "running"
        assert await next_due(other, queues=HOME) is not None
    for id in ("held", "far"):
        assert (await document(scene, id))["nextRunAt"] == date(scene.clock() + FAR_MS)
    assert ((await look(scene.store, "far")).due_ms, (await look(scene.store, "held")).due_ms) == (far_ms, NEVER_MS)


async def test_a_far_job_that_is_rescheduled_is_due_then(scene: Scene) -> None:
    await scene.put("far", due=after(90 * DAY_S * 1_000))
    await scene.store.change(["far"], Reschedule(after(1_000)))
    assert {"due", "dueOf"}.isdisjoint((await document(scene, "far"))["jobmill"])
    scene.clock.advance(1)
    assert await claim_ids(scene.store, queues=HOME) == ["far"]


@pytest.mark.slow
async def test_holders_that_come_at_the_same_time_all_count(scene: Scene) -> None:
    async with scene.another() as other:
        for number in range(10):
            id = f"job-{number}"
            await scene.put(id)
            kinds = ("jobs", "other", "person")
            holds = [
                store.change([id], Hold(by=by)) for store, by in zip((scene.store, other, other), kinds, strict=True)
            ]
            assert [one.ids for one in await asyncio.gather(*holds)] == [[id]] * 3
            held = (await look(scene.store, id)).held
            assert held is not None
            assert held.by == kinds
            releases = [store.change([id], Release(by)) for store, by in ((scene.store, "jobs"), (other, "other"))]
            assert [one.ids for one in await asyncio.gather(*releases)] == [[id]] * 2
            held = (await look(scene.store, id)).held
            assert held is not None
            assert held.by == ("person",)


# ---------------------------------------------------------------------------------------------------- older versions


async def test_an_older_version_beside_this_one(scene: Scene) -> None:
    await scene.put("job")
    jobs, queues = scene.store.context.here.jobs, scene.store.context.here.queues
    attempts = [{"number": 1, "error": "one"}]
    written = {"jobmill.attempts": attempts, "jobmill.tracebacks": ["two"]}
    await jobs.update_one({}, {"$set": written})
    assert (await look(scene.store, "job")).attempts == (Attempt(number=1, error="one"), Attempt(traceback="two"))
    pause = Pause(who="ada", until_ms=scene.clock() + 1_000)
    await scene.store.configure("default", QueueChange(paused=True, pause=pause))
    scene.clock.advance(1)
    assert (await queues.find_one({}) or {})["paused"] is True
    await scene.store.purge()
    assert "pause" not in (await queues.find_one({}) or {})
    assert (await queues.find_one({}) or {})["paused"] is False, "as an older version reads it"
    assert await scene.store.settings() == {"default": QueueSettings()}


async def test_an_index_that_another_replaces_is_dropped(mongo_url: str) -> None:
    store = MongoStore(mongo_url)
    await store.migrate()
    jobs = store.context.here.jobs
    await jobs.drop_index("jobmill_waiting")
    await jobs.create_index([("jobmill.queue", 1), ("name", 1), ("nextRunAt", 1)], name="jobmill_due")
    replaced = ["jobmill_due", "jobmill_armed", "jobmill_declared", "jobmill_purge", "jobmill_ended"]
    for name in replaced[1:]:
        await jobs.create_index([(name, 1)], name=name)
    assert await store.migrate() == ["jobmill_waiting"]
    assert set(replaced).isdisjoint(await jobs.index_information())
    await store.close()
