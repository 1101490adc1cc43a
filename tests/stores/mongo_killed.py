"""What a process does that is killed in the middle of it: as a module, it is that process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import structs

from jobmill.core.changes import Cancel, Remove, Requeue
from jobmill.core.flows import After, IfFailed
from jobmill.core.job import Keep
from jobmill.core.lifecycle import DEFAULT_POLICY, Policy, Suspended
from jobmill.core.lifecycle import settle as decide
from jobmill.core.values import Claimed, Filter, NewJob
from jobmill.stores.mongo import MongoStore
from jobmill.testing import ManualClock
from jobmill.testing.contract.support import claim, claim_one, fail, new, put, settle, succeed

WRITES = {"insert_one", "insert_many", "update_one", "update_many", "bulk_write", "delete_one", "delete_many"}
WRITES |= {"find_one_and_update"}
COLLECTIONS = ("jobs", "heartbeats", "edges", "stages", "steps", "logs", "queues", "events", "taken_keys", "lanes")
GONE = Policy(keep_succeeded=Keep(last=0))


class Killed(BaseException):
    """The process has ended."""


class Mortal:
    """A collection whose process is killed before its write number `dies_at`, or in the middle of that write."""

    def __init__(self, collection: Any, life: Life) -> None:
        self._collection, self._life = collection, life

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._collection, name)
        if name == "with_options":
            return lambda **options: Mortal(real(**options), self._life)
        if name not in WRITES:
            return real

        async def write(first: Any, *rest: Any, **options: Any) -> Any:
            life = self._life
            life.writes += 1
            if life.writes >= life.dies_at:
                is_many = life.writes == life.dies_at and name in ("insert_many", "bulk_write")
                if is_many and life.halfway and (half := first[: len(first) // 2]):
                    await real(half, *rest, **options)
                life.end()
            return await real(first, *rest, **options)

        return write


class Life:
    """How many writes a process has made, and before which one it is killed."""

    def __init__(self, dies_at: int, halfway: bool) -> None:
        self.writes, self.dies_at, self.halfway = 0, dies_at, halfway

    def end(self) -> None:
        """Nothing that the process does afterwards reaches the server."""
        raise Killed


class RealLife(Life):
    """The same of this process."""

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def give_life(store: MongoStore, life: Life) -> None:
    """Kill the process of this store at a write."""
    here = store.context.here
    for name in COLLECTIONS:
        setattr(here, name, Mortal(getattr(here, name), life))


def waits(id: str, *on: str, if_failed: IfFailed = "fail", **about: Any) -> NewJob:
    return structs.replace(new(id, **about), after=tuple(After(one, if_failed) for one in on))


def suspend(claimed: Claimed, *children: NewJob) -> Any:
    return decide(claimed, Suspended(children=children), DEFAULT_POLICY, 0)


DIAMOND = [
    waits("d", "b", "c", if_failed="run"),
    new("a"),
    waits("b", "a"),
    waits("c", "a"),
    waits("e", "d", if_failed="run"),
    waits("f", "b"),
]
FLOW = {one.id for one in DIAMOND}
Act = Callable[[MongoStore], Awaitable[object]]


class Story:
    """What is there before, what the killed process does, and what must be true afterwards."""

    #: The jobs of one call, all of which exist afterwards, or none.
    whole: tuple[set[str], ...] = ()
    #: Whether edges may be left of a job that is gone, which only a walk over all edges finds.
    needs_sweep = False
    #: The jobs that fail when they run.
    fails: tuple[str, ...] = ()

    async def prepare(self, store: MongoStore) -> Act:
        raise NotImplementedError

    def check(self, states: dict[str, str]) -> None:
        """The states in which all jobs have ended."""


class Enqueues(Story):
    whole = (FLOW | {"y"},)

    async def prepare(self, store: MongoStore) -> Act:
        await put(store, new("x"), new("z"))
        await settle(store, succeed((await claim(store, 1))[0]))
        late = waits("y", "x", "z", "d", if_failed="run")
        return lambda killed: killed.enqueue([*DIAMOND, late])


class EnqueuesOnFailed(Enqueues):
    whole = ({"y", "w"},)

    async def prepare(self, store: MongoStore) -> Act:
        await put(store, new("x"))
        await settle(store, fail(await claim_one(store), "no luck"))
        return lambda killed: killed.enqueue([waits("y", "x"), waits("w", "x", if_failed="run")])

    def check(self, states: dict[str, str]) -> None:
        assert states in ({"x": "failed"}, {"x": "failed", "y": "failed", "w": "succeeded"})


class Settles(Story):
    async def prepare(self, store: MongoStore) -> Act:
        await put(store, *DIAMOND, new("x"), waits("y", "x", "a"))
        claimed = {one.job.id: one for one in await claim(store)}
        assert set(claimed) == {"a", "x"}
        end = fail(claimed["a"]) if "a" in self.fails else succeed(claimed["a"], 1)
        return lambda killed: killed.exchange([end, succeed(claimed["x"], 2)], None)

    def check(self, states: dict[str, str]) -> None:
        bad = "failed" if "a" in self.fails else "succeeded"
        assert states == {
            **dict.fromkeys(("a", "b", "c", "f", "y"), bad),
            **dict.fromkeys(("d", "e", "x"), "succeeded"),
        }


class SettlesFailed(Settles):
    fails = ("a",)


class SettlesLateEdge(Story):
    """Edges were added after the claim; and the dependent is removed at once when it ends."""

    needs_sweep = True

    async def prepare(self, store: MongoStore) -> Act:
        await put(store, new("a"))
        a = await claim_one(store)
        await put(store, waits("b", "a"))

        async def act(killed: MongoStore) -> None:
            await settle(killed, succeed(a, None, GONE))
            await settle(killed, succeed(await claim_one(killed), None, GONE))
            await killed.purge()

        return act


class Suspends(Story):
    whole: tuple[set[str], ...] = ({"p.1", "p.2"},)

    async def prepare(self, store: MongoStore) -> Act:
        await put(store, new("p.0"))
        await settle(store, succeed(await claim_one(store)))
        await put(store, new("p"))
        p = await claim_one(store)
        children = new("p.0"), new("p.1"), waits("p.2", "p.1")
        return lambda killed: killed.exchange([suspend(p, *children)], None)


class SuspendsTwice(Suspends):
    whole = ({"p.1"}, {"p.2"})

    async def prepare(self, store: MongoStore) -> Act:
        await put(store, new("p"))
        p = await claim_one(store)

        async def act(killed: MongoStore) -> None:
            await settle(killed, suspend(p, new("p.1")))
            await settle(killed, succeed(await claim_one(killed)))
            await settle(killed, suspend(await claim_one(killed), new("p.2")))

        return act


class Cancels(Story):
    async def prepare(self, store: MongoStore) -> Act:
        await put(store, *DIAMOND)
        return lambda killed: killed.change(["a", "d"], Cancel())


class Removes(Story):
    needs_sweep = True

    async def prepare(self, store: MongoStore) -> Act:
        await put(store, *DIAMOND)
        return lambda killed: killed.change(["a", "e"], Remove())


class RemovesFinal(Story):
    async def prepare(self, store: MongoStore) -> Act:
        await put(store, *DIAMOND)
        await settle(store, succeed(await claim_one(store)))
        return lambda killed: killed.change(["a"], Remove())


class Requeues(Story):
    async def prepare(self, store: MongoStore) -> Act:
        await put(store, *DIAMOND, waits("y", "a", "d", if_failed="run"))
        await settle(store, fail(await claim_one(store), "no luck"))
        return lambda killed: killed.change(["a"], Requeue())


class RequeuesAll(Story):
    async def prepare(self, store: MongoStore) -> Act:
        await put(store, new("a"), waits("b", "a"), waits("c", "b", if_failed="run"))
        await settle(store, fail(await claim_one(store), "no luck"))
        await settle(store, fail(await claim_one(store), "because"))
        await settle(store, succeed(await claim_one(store)))

        async def act(killed: MongoStore) -> None:
            changed = await killed.change(Filter(states=("failed", "succeeded")), Requeue())
            assert (len(changed.ids), changed.refused) == (3, {})

        return act


STORIES: list[Story] = [
    Enqueues(),
    EnqueuesOnFailed(),
    Settles(),
    SettlesFailed(),
    SettlesLateEdge(),
    Suspends(),
    SuspendsTwice(),
    Cancels(),
    Removes(),
    RemovesFinal(),
    Requeues(),
    RequeuesAll(),
]


async def main(url: str, now_ms: str, number: str, dies_at: str) -> None:
    """Do what a story says in this process, and be killed."""
    store = MongoStore(url, clock=ManualClock(int(now_ms)))
    await store.open()
    act = await STORIES[int(number)].prepare(store)
    give_life(store, RealLife(int(dies_at), halfway=False))
    await act(store)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
