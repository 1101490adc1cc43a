"""What happens to the jobs of lanes while claimers run them, at random and recorded.

Jobs arrive one by one, in bulk, and within transactions that stay open for a while, of which some are rolled back. Jobs
are cancelled, requeued, and get other priorities and due times. Some lanes are paused and get other limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from jobmill.core.changes import Cancel, Change, Reprioritize, Requeue, Reschedule
from jobmill.core.queue_settings import LaneChange, Pause
from jobmill.core.values import NOW, NewJob, after
from jobmill.store import EnqueuesWithin, Store
from jobmill.testing.contract.lanes import laned, rule
from jobmill.testing.contract.support import QUEUE, put
from tests.faults.lane_records import PAUSED, Asked, LimitChange

DELAYED, LATEST_MS = 0.1, 800
URGENT, URGENT_PRIORITY, PRIORITY = 0.05, 1, 5
ROLLED_BACK = 0.2
BULK = (5, 80)
#: How long transactions stay open. A SQLite file has one writer: nobody else can write meanwhile.
OPEN_S = {"sqlite": 0.1, "postgres": 1.5, "mongo": 1.5}
LIMITS = (1, 2, 3, 4)
#: How long a limit stays; and that of all lanes.
STAYS_S = (0.2, 1.2)
RULE_STAYS_S = (0.02, 0.15)


@contextlib.asynccontextmanager
async def transaction(store: Store, url: str, *, commits: bool) -> AsyncIterator[Any]:
    """A transaction of a user's own connection, which is committed at the end, or rolled back."""
    match store.name:
        case "sqlite":
            path = urlsplit(url).path[1:]
            file = sqlite3.connect(path, isolation_level=None, timeout=20, check_same_thread=False)
            with contextlib.closing(file):
                await asyncio.to_thread(file.execute, "BEGIN IMMEDIATE")
                yield file
                await asyncio.to_thread(file.execute, "COMMIT" if commits else "ROLLBACK")
        case "postgres":
            import asyncpg

            connection = await asyncpg.connect(url)
            await connection.execute("BEGIN")
            yield connection
            await connection.execute("COMMIT" if commits else "ROLLBACK")
            await connection.close()
        case _:
            import pymongo

            from jobmill.stores.mongo.url import MongoUrl

            async with (
                pymongo.AsyncMongoClient[dict[str, Any]](MongoUrl.read(url).driver_url) as client,
                client.start_session() as session,
            ):
                await session.start_transaction()
                yield session
                await (session.commit_transaction() if commits else session.abort_transaction())


class Torment:
    """All that happens beside the claimers. It raises what a call raises: no caller may see an error."""

    def __init__(
        self, store: Store, url: str, lanes: int, seed: int, prefix: str = "", latest_ms: int = LATEST_MS
    ) -> None:
        self._store = store
        self._url = url
        self._random = random.Random(seed)
        self._lanes = [f"lane-{number}" for number in range(lanes)]
        self._prefix = prefix
        self._latest_ms = latest_ms
        self._number = 0
        self._one_by_one = asyncio.Semaphore(1 if store.name == "sqlite" else 20)
        #: The jobs that exist, and those of transactions that were rolled back.
        self.ids: list[str] = []
        self.rolled_back: list[str] = []
        self.asked: list[Asked] = []
        self.limits: defaultdict[str, list[LimitChange]] = defaultdict(list)

    def new_jobs(self, count: int) -> list[NewJob]:
        """Jobs of random lanes, some urgent and some delayed."""
        return [self._new_job() for _ in range(count)]

    def _new_job(self) -> NewJob:
        self._number += 1
        lane = self._random.choice(self._lanes)
        is_delayed, is_urgent = self._random.random() < DELAYED, self._random.random() < URGENT
        due = after(self._random.randrange(1, self._latest_ms)) if is_delayed else NOW
        priority = URGENT_PRIORITY if is_urgent else PRIORITY
        return laned(f"job-{self._prefix}{self._number}", lane, due=due, priority=priority, payload={"lane": lane})

    async def enqueue(self, count: int) -> None:
        """Jobs in one call."""
        self.ids += await put(self._store, *self.new_jobs(count))

    # ------------------------------------------------------------------------------------------------ arrivals

    async def arrive(self, jobs: int, seconds: float) -> None:
        """This number of jobs in about this time."""
        end, first = time.monotonic() + seconds, len(self.ids)
        async with asyncio.TaskGroup() as group:
            while (left := jobs - (len(self.ids) - first)) > 0:
                chance = self._random.random()
                if chance < 0.8 or not isinstance(self._store, EnqueuesWithin):
                    await self.enqueue(1 if chance < 0.7 else min(left, self._random.randint(*BULK)))
                else:
                    group.create_task(self._enqueue_within(self._store, min(left, self._random.randint(1, 5))))
                spread = max(0.0, end - time.monotonic()) / left
                await asyncio.sleep(self._random.random() * 2 * min(spread * 8, 0.05))

    async def _enqueue_within(self, store: EnqueuesWithin, count: int) -> None:
        commits = self._random.random() > ROLLED_BACK
        new_jobs = self.new_jobs(count)
        async with self._one_by_one, transaction(self._store, self._url, commits=commits) as connection:
            receipts = await store.enqueue_within(connection, new_jobs)
            assert {receipt.status for receipt in receipts} == {"created"}
            # Half of them end at once.
            open_s = self._random.random() * OPEN_S[self._store.name] * self._random.choice((0, 1))
            await asyncio.sleep(open_s)
        ids = [receipt.id for receipt in receipts]
        if commits:
            self.ids += ids
        else:
            self.rolled_back += ids

    # ------------------------------------------------------------------------------------------------ changes

    async def change(self) -> None:
        """Change some jobs, most of them young enough to wait for a slot."""
        recent = self.ids[-400:] if self._random.random() < 0.7 else self.ids
        ids = self._random.sample(recent, min(len(recent), self._random.choice((1, 1, 4))))
        act = self._random.random()
        if act < 0.5:
            await self._ask(ids, Cancel(), "cancelled")
        elif act < 0.7:
            await self._ask([*ids, *(one.id for one in self.asked[-5:])], Requeue(), "requeued")
        elif act < 0.85:
            await self._ask(ids, Reprioritize(self._random.choice((URGENT_PRIORITY, PRIORITY))), "reprioritized")
        else:
            await self._ask(ids, Reschedule(after(self._random.choice((0, 60)))), "rescheduled")

    async def _ask(self, ids: list[str], change: Change, what: str) -> None:
        called = time.monotonic()
        changed = await self._store.change(list(dict.fromkeys(ids)), change)
        returned = time.monotonic()
        self.asked += [Asked(id, called, returned, what) for id in changed.ids]

    async def set_limit(self, lane: str) -> None:
        """Change the limit of a lane, or pause it; for a while."""
        is_pause = self._random.random() < 0.25
        limit = PAUSED if is_pause else self._random.choice(LIMITS)
        await self._configure(lane, limit, LaneChange(pause=Pause()) if is_pause else _limited(limit))
        await asyncio.sleep(self._random.uniform(*STAYS_S))

    async def _configure(self, lane: str, limit: int, change: LaneChange) -> None:
        called = time.monotonic()
        await self._store.configure_lane(QUEUE, lane, change)
        self.limits[lane].append(LimitChange(called, time.monotonic(), limit))

    async def set_rule(self) -> None:
        """Change the limit of all lanes of the queue, for a while."""
        await self._change_rule(self._random.choice(LIMITS))
        await asyncio.sleep(self._random.uniform(*RULE_STAYS_S))

    async def _change_rule(self, limit: int) -> None:
        called = time.monotonic()
        await rule(self._store, limit)
        change = LimitChange(called, time.monotonic(), limit)
        for lane in self._lanes:
            self.limits[lane].append(change)

    async def reset_limits(self, limit: int, *, changes_rule: bool) -> None:
        """All lanes have this limit of the rule again, and no settings of their own. `changes_rule`: it had another."""
        if changes_rule:  # first: what is recorded for the lanes below is true only then
            await self._change_rule(limit)
        for lane in self.limits:
            await self._configure(lane, limit, LaneChange(running=None, pause=None))

    async def rage(self, jobs: int, seconds: float, changed_lanes: int, *, changes_rule: bool = False) -> None:
        """Everything at once, until the jobs have arrived."""
        acts: list[Callable[[], Awaitable[None]]] = [self._change_sometimes]
        acts += [self.set_rule] if changes_rule else []
        acts += [lambda lane=lane: self.set_limit(lane) for lane in self._lanes[:changed_lanes]]  # type: ignore[misc]
        arriving = asyncio.create_task(self.arrive(jobs, seconds))

        async def repeat(act: Callable[[], Awaitable[None]]) -> None:
            while not arriving.done():
                await act()

        async with asyncio.TaskGroup() as group:
            for act in acts:
                group.create_task(repeat(act))
            await arriving

    async def _change_sometimes(self) -> None:
        await self.change()
        await asyncio.sleep(self._random.random() * 0.05)


def _limited(limit: int) -> LaneChange:
    return LaneChange(running=limit, pause=None)
