"""What a process does with lanes that is killed in the middle of it."""

from __future__ import annotations

from collections import Counter

from msgspec import structs

from jobmill.core.changes import Cancel, Hold, Release, Reprioritize, Requeue, Reschedule
from jobmill.core.lifecycle import Succeeded
from jobmill.core.lifecycle import settle as decide
from jobmill.core.queue_settings import LaneChange, LaneRule, Pause, RateLimit
from jobmill.core.recurrence import Recurrence
from jobmill.core.unique_policy import UniquePolicy
from jobmill.core.values import QueueChange, after
from jobmill.stores.mongo import MongoStore
from jobmill.testing.contract.lanes import laned, rule
from jobmill.testing.contract.support import QUEUE, claim, claim_one, new, put, retry, settle, succeed
from tests.stores.mongo_killed import GONE, Act, Story, suspend, waits


class LaneStory(Story):
    """Jobs of lanes, whose limit is never exceeded."""

    limit = 2
    strict = False

    async def prepare(self, store: MongoStore) -> Act:
        await rule(store, self.limit, strict=self.strict)
        return await self.act(store)

    async def act(self, store: MongoStore) -> Act:
        raise NotImplementedError

    async def go_on(self, store: MongoStore) -> None:
        """What a person does after the process was killed."""


class Arrives(LaneStory):
    async def act(self, store: MongoStore) -> Act:
        await put(store, laned("a0"))
        jobs = [laned(f"{lane}{number}", lane) for lane in "abcdef" for number in range(1, 4)]
        return lambda killed: killed.enqueue([*jobs, laned("late", due=after(30_000)), new("plain")])


class ArrivesFirst(LaneStory):
    """Nobody knows so far that the queue has lanes."""

    async def prepare(self, store: MongoStore) -> Act:
        return lambda killed: killed.enqueue([laned("a0"), laned("a1"), laned("late", due=after(30_000))])


class ArrivesUrgent(LaneStory):
    async def act(self, store: MongoStore) -> Act:
        await put(store, *[laned(f"a{number}", priority=5) for number in range(3)])
        return lambda killed: killed.enqueue([laned("u0", priority=1), laned("u1", priority=2)])


class Ends(LaneStory):
    async def act(self, store: MongoStore) -> Act:
        await put(store, *[laned(f"{lane}{number}", lane) for lane in "abc" for number in range(4)])
        claimed = await claim(store)
        ends = [succeed(one) for one in claimed[:3]]
        ends += [retry(claimed[3], 5_000), retry(claimed[4], 0), succeed(claimed[5], None, GONE)]
        return lambda killed: killed.exchange(ends, None)


class EndsStrict(Ends):
    strict = True


class EndsRecurring(LaneStory):
    limit = 1

    async def act(self, store: MongoStore) -> Act:
        until = Recurrence(key="k", every_ms=60_000, until_ms=store.now() + 90_000)
        await put(store, laned("again", key="k", recurrence=until))
        await put(store, laned("other"))
        done = decide(await claim_one(store), Succeeded(), GONE, store.now())
        return lambda killed: killed.exchange([done], None)


class Advances(LaneStory):
    limit = 1

    async def act(self, store: MongoStore) -> Act:
        await put(store, laned("first"), laned("late", due=after(1_000)), laned("b", "b", due=after(1_000)))
        await settle(store, succeed(await claim_one(store)))

        return lambda killed: killed.flush_outbox()


class Changes(LaneStory):
    async def act(self, store: MongoStore) -> Act:
        await put(store, *[laned(f"a{number}") for number in range(6)])

        async def act(killed: MongoStore) -> None:
            await killed.change(["a0", "a5"], Cancel())
            await killed.change(["a1"], Hold())
            await killed.change(["a2"], Reschedule(after(5_000)))
            await killed.change(["a4"], Reprioritize(0))
            await killed.change(["a1"], Release())
            await killed.change(["a0"], Requeue())

        return act

    def check(self, states: dict[str, str]) -> None:
        held = {id for id, state in states.items() if state == "waiting"}
        assert held <= {"a1"}, "a person may still hold it"


class Lowers(LaneStory):
    async def act(self, store: MongoStore) -> Act:
        await rule(store, 4)
        await put(store, *[laned(f"{lane}{number}", lane) for lane in "ab" for number in range(5)])
        return lambda killed: killed.configure(QUEUE, QueueChange(lanes=LaneRule(running=1)))


class Pauses(LaneStory):
    limit = 2

    async def act(self, store: MongoStore) -> Act:
        await put(store, *[laned(f"a{number}") for number in range(2)])  # both have slots, so heal finds nobody

        async def act(killed: MongoStore) -> None:
            await killed.configure_lane(QUEUE, "a", LaneChange(pause=Pause()))
            await killed.configure_lane(QUEUE, "a", LaneChange(pause=None, running=1))

        return act

    async def go_on(self, store: MongoStore) -> None:
        for lane in await store.lanes(QUEUE, ["a"]):
            assert not lane.settings.paused or lane.admitted == 0
        await store.configure_lane(QUEUE, "a", LaneChange(pause=None))


class Rates(LaneStory):
    async def prepare(self, store: MongoStore) -> Act:
        await rule(store, rate=RateLimit(2, 10_000))
        await put(store, laned("a0"))
        return lambda killed: killed.enqueue([laned(f"a{number}") for number in range(1, 5)])


class EnqueuesFlow(LaneStory):
    limit = 1
    whole = ({"x", "y", "z"},)

    async def act(self, store: MongoStore) -> Act:
        await put(store, laned("first"))
        both = [structs.replace(waits(id, "x"), lane="a") for id in ("y", "z")]
        return lambda killed: killed.enqueue([laned("x"), *both])


class EndsFlow(LaneStory):
    limit = 1

    async def act(self, store: MongoStore) -> Act:
        both = [structs.replace(waits(id, "x"), lane="a") for id in ("y", "z")]
        await put(store, laned("x"), *both)
        claimed = await claim_one(store)
        return lambda killed: killed.exchange([succeed(claimed)], None)


class SuspendsInLane(LaneStory):
    limit = 1
    whole = ({"p.1", "p.2"},)

    async def act(self, store: MongoStore) -> Act:
        await put(store, laned("p"), laned("other"))
        claimed = await claim_one(store)
        return lambda killed: killed.exchange([suspend(claimed, laned("p.1"), laned("p.2"))], None)


class TakesKey(LaneStory):
    limit = 1

    async def act(self, store: MongoStore) -> Act:
        await put(store, laned("old", key="k"), laned("second"))
        policy = UniquePolicy(when_live="cancel")
        return lambda killed: killed.enqueue([structs.replace(laned("new", key="k"), policy=policy)])


LANE_STORIES: list[LaneStory] = [
    Arrives(),
    ArrivesFirst(),
    ArrivesUrgent(),
    Ends(),
    EndsStrict(),
    EndsRecurring(),
    Advances(),
    Changes(),
    Lowers(),
    Pauses(),
    Rates(),
    EnqueuesFlow(),
    EndsFlow(),
    SuspendsInLane(),
    TakesKey(),
]


async def running(store: MongoStore) -> Counter[str]:
    """How many jobs of each lane run."""
    query = {"status": "processing", "jobmill.lane": {"$exists": True}}
    return Counter([one["jobmill"]["lane"] async for one in store.context.here.jobs.find(query)])
