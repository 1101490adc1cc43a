"""Jobmill itself, on every store: only the URL differs, and how to see that no job is live."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any, TypeVar
from urllib.parse import urlsplit

from msgspec import structs

from bench.child import BEGUN, SETTLED, halt
from bench.clocks import Crowd, Looked, Ran, metering
from bench.queues import About, AsyncQueue, Handler, job_of
from jobmill import Client, Dashboard, Worker, connect
from jobmill.core.announcing import WorkerCard
from jobmill.core.flows import After
from jobmill.core.job import State
from jobmill.core.lifecycle import DEFAULT_POLICY, Errored, Succeeded, settle
from jobmill.core.queue_settings import LaneRule, QueueChange
from jobmill.core.values import (
    DEPTH_LIMIT,
    EVERYTHING,
    NOW,
    Claim,
    Claimed,
    Due,
    Exchanged,
    Filter,
    NewJob,
    Settlement,
    after,
)
from jobmill.errors import StoreUnavailable
from jobmill.store import Store
from tests.dashboard.visitor import Visitor

T = TypeVar("T")
AT_ONCE = 10_000
#: The jobs of a crowd: each name has a priority, one job in ten waits until tomorrow, one in a hundred has failed.
PRIORITIES = {"mail": 0, "report": 0, "import": 5, "clean": 5}
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
WORKERS = 20
#: So many flows, each of so many jobs and one that waits for them.
FLOWS, FLOW_JOBS = 1_000, 9
#: How many jobs `settle` settles in a call.
SETTLED_AT_ONCE = 100
#: How many jobs `exchange` claims in a call.
EXCHANGED_AT_ONCE = 50
#: An operation is called no more after this time.
LOOKS_S = 5.0


class Jobmill(AsyncQueue):
    """One worker process with async handlers, on the loop that `jobmill worker` takes."""

    about = About(
        name="jobmill",
        settings="one worker process, async no-op handlers, uvloop (as `jobmill worker`), other defaults: every job is "
        "kept for 7 days after it succeeded",
        guarantee="kept: another worker claims them when their lease has ended",
    )
    fill_size = AT_ONCE
    rate = (2_000, 30_000)

    async def install(self) -> None:
        """Its tables were made when it connected."""

    @asynccontextmanager
    async def opened(self, handler: Handler) -> AsyncIterator[None]:
        self._client = connect(self.url)
        self._job: Any = self._client.handler(job_of(handler))
        await self._client.store.migrate()
        async with self._client:
            yield

    async def enqueue(self, number: int = 0) -> None:
        await self._job.enqueue(number)

    async def enqueue_many(self, size: int) -> None:
        await self._client.enqueue_many([self._job.draft() for _ in range(size)])

    def fill(self, jobs: int, delayed: int = 0) -> None:
        """Jobs that wait, and jobs that are due tomorrow."""

        async def fill() -> None:
            async with self.connected():
                later = self._job.options(delay="1d").draft()
                for number, draft in ((jobs, self._job.draft()), (delayed, later)):
                    for first in range(0, number, AT_ONCE):
                        await self._client.enqueue_many([draft] * min(AT_ONCE, number - first))

        self.run(fill())

    @asynccontextmanager
    async def working(self, handler: Handler, slots: int) -> AsyncIterator[None]:
        async with self.opened(handler), Worker(self._client, concurrency=slots):
            yield

    # What only Jobmill is asked for, while it is connected: see `scenarios.own`.

    async def ends(self, gaps: Sequence[float], cancels: bool) -> list[int]:
        """When jobs were cancelled, or their results came, in ns since 1970. Jobs overlap: many wait at once."""

        async def end(number: int, gap: float) -> int:
            await asyncio.sleep(gap)
            enqueued = await self._job.enqueue(number)
            if not cancels:
                await enqueued.result(timeout=30)
                return time.time_ns()
            await asyncio.sleep(1 + gap % 1)
            began = time.time_ns()
            await self._client.cancel(enqueued.id)
            return began

        return await asyncio.gather(*map(end, range(len(gaps)), gaps))

    async def crowd(self, crowd: Crowd) -> None:
        """Through the port, many jobs a call: no store has a statement of its own here that its schema could break."""
        await _fill(self._client.store, crowd)

    async def operations(self, crowds: Sequence[Crowd], looks: int) -> Looked:
        """What operators look at; `crowds` are there already. Each call is right after a write."""
        async with AsyncExitStack() as opened:
            await self.prepare(crowds)
            return await self._look(crowds[0].queue, looks, await self.bare(opened))

    async def settle(self, jobs: int, each: int) -> Ran:
        """Settle jobs by the store alone, many in a call and in no order; others wait for them as in `fill_flows`."""
        await self.fill_flows(jobs, each)
        store, settlements = self._client.store, list[Settlement]()
        while len(settlements) < jobs:
            exchanged = await store.exchange([], _claim(store, "default", (self._job.name,), SETTLED_AT_ONCE))
            settlements += _all_settled(exchanged)
        Random(1).shuffle(settlements)
        with metering() as watch:
            for first in range(0, jobs, SETTLED_AT_ONCE):
                exchanged = await store.exchange(settlements[first : first + SETTLED_AT_ONCE], None)
                assert set(exchanged.settled) == {"done"}, exchanged.settled
            return watch.ran(jobs)

    async def fill_flows(self, jobs: int, each: int) -> None:
        """Jobs that wait, and one more for `each` of them that waits for these; 0: none."""
        store, name = self._client.store, self._job.name
        for first in range(0, jobs, AT_ONCE):
            news = [_new(store, "default", name) for _ in range(min(AT_ONCE, jobs - first))]
            groups = [news[at : at + each] for at in range(0, len(news), each)] if each else []
            for group in groups:
                new = _new(store, "default", name)
                news.append(structs.replace(new, flow=new.id, after=tuple(After(job.id) for job in group)))
            await store.enqueue(news)

    async def fill_lanes(self, jobs: int, lanes: int, limit: int) -> None:
        """Jobs that wait, each in the next one of the lanes; 0: without lanes."""
        store, name = self._client.store, self._job.name
        await store.configure("default", QueueChange(lanes=LaneRule(running=limit) if lanes else None))
        for first in range(0, jobs, AT_ONCE // 10):
            news = [_new(store, "default", name) for _ in range(min(AT_ONCE // 10, jobs - first))]
            if lanes:
                news = [structs.replace(new, lane=f"lane-{at % lanes}") for at, new in enumerate(news, first)]
            await store.enqueue(news)

    async def exchange(self, jobs: int, there: int, lanes: int, limit: int) -> Ran:
        """Claim and settle some of the jobs of `fill_lanes`: each call settles what the last one has claimed."""
        await self.prepare_lanes(there, lanes, limit)
        store, done, settlements = self._client.store, 0, list[Settlement]()
        await store.exchange([], _claim(store, "default", ("unknown",), 1))  # it connects, and prepares
        with metering() as watch:
            while done < jobs:
                claim = _claim(store, "default", (self._job.name,), EXCHANGED_AT_ONCE)
                exchanged = await store.exchange(settlements, claim)
                assert set(exchanged.settled) <= {"done"}, exchanged.settled
                assert exchanged.claimed or settlements, "no job could be claimed"
                done += len(settlements)
                settlements = _all_settled(exchanged)
            ran = watch.ran(done)
        await store.exchange(settlements, None)
        return ran

    async def prepare_lanes(self, there: int, lanes: int, limit: int) -> None:
        """They are there already."""

    async def prepare(self, crowds: Sequence[Crowd]) -> None:
        """They are there already."""

    async def bare(self, opened: AsyncExitStack) -> Callable[[], Awaitable[object]]:
        """The cheapest query of the driver, on a connection of its own."""
        raise NotImplementedError

    async def _look(self, queue: str, looks: int, bare: Callable[[], Awaitable[object]]) -> Looked:
        store, took, bare_ms = self._client.store, dict[str, list[float]](), list[float]()

        def page(*states: State) -> Callable[[], Awaitable[object]]:
            return lambda: store.find(Filter(queue=queue, states=states), limit=50)

        failed = Filter(queue=queue, states=("failed",))
        first = (await store.find(Filter(queue=queue), limit=1)).jobs[0]
        operations: dict[str, Callable[[], Awaitable[object]]] = {
            "depths": store.depths,
            "workers": store.workers,
            "page of 50: waiting, in claim order": page("waiting"),
            "page of 50: running, longest first": page("running"),
            "page of 50: succeeded, latest first": page("succeeded"),
            "page of 50: failed, latest first": page("failed"),
            "page of 50: all jobs": lambda: store.find(EVERYTHING, limit=50),
            "count up to 10,000: failed": lambda: store.count_up_to(failed, DEPTH_LIMIT),
            "count up to 10,000: all jobs": lambda: store.count_up_to(EVERYTHING, DEPTH_LIMIT),
            "stats": store.stats,
            **_dashboard(self._client, queue, first.id, await _flows(store)),
        }
        cards = itertools.cycle([_card(queue, number, store.now()) for number in range(WORKERS)])
        for _ in range(WORKERS):
            await store.announce(next(cards), [])
        halt(BEGUN)
        began = time.process_time()
        for name, operation in operations.items():
            took[name] = []
            until = time.monotonic() + LOOKS_S
            while len(took[name]) < looks and (not took[name] or time.monotonic() < until):
                bare_ms.append(await _ms(bare))
                await store.announce(next(cards), [])
                await self.enqueue()
                try:
                    took[name].append(await _ms(operation))
                except StoreUnavailable:  # it took longer than its deadline
                    break
        spent = time.process_time() - began
        halt(SETTLED)
        return Looked(took=took, bare=bare_ms, cpu_seconds=spent)


def _dashboard(jobs: Client, queue: str, id: str, flow: str) -> dict[str, Callable[[], Awaitable[object]]]:
    """Pages as a browser gets them, but for the network. None has been read before."""
    dashboard = Dashboard(jobs)
    visitor = Visitor(dashboard)
    paths = ["/", "/?range=30d", "/jobs", "/jobs?state=failed", "/jobs?state=later", "/jobs?q=payload.number:1"]
    paths += [f"/jobs?q=queue:{queue}+name:mail&state=due", f"/jobs/{id}"]
    lists = ("/queues", f"/queues/{queue}", "/errors", "/recurring", "/workers", "/audit", "/system")
    flows = ("/flows", f"/flows/{flow}", f"/jobs/{flow}")

    def visit(path: str) -> Callable[[], Awaitable[object]]:
        async def get() -> None:
            dashboard.reads.forget()
            answer = await visitor.get(path)
            assert answer.status == 200, f"{path}: {answer}"

        return get

    named = {one: one.replace(id, "ID").replace(flow, "FLOW") for one in (*paths, *lists, *flows)}
    return {f"dashboard {name}": visit(address) for address, name in named.items()}


async def _flows(store: Store) -> str:
    """Flows in a queue of their own. The last one has a thousand jobs."""
    flow = ""
    for size in (*[FLOW_JOBS] * (FLOWS - 1), 999):
        flow = store.new_id()
        jobs = [structs.replace(_new(store, "flows", "mail"), flow=flow) for _ in range(size)]
        last = structs.replace(_new(store, "flows", "report"), id=flow, flow=flow)
        await store.enqueue([*jobs, structs.replace(last, after=tuple(After(job.id) for job in jobs))])
    return flow


async def _ms(call: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await call()
    return (time.perf_counter() - began) * 1e3


def _card(queue: str, number: int, now_ms: int) -> WorkerCard:
    about: Any = {"host": "bench", "pid": number, "version": "1", "python": "3", "started_ms": now_ms}
    about |= {"queues": (queue,), "names": tuple(PRIORITIES), "concurrency": 50}
    return WorkerCard(id=f"card-{number}", name=f"worker-{number}", **about)


async def _fill(store: Store, crowd: Crowd) -> None:
    """The final jobs of each name in a task of its own: while one waits for the server, another one works."""
    share, more = divmod(crowd.final, len(PRIORITIES))
    sizes = [share + (number < more) for number in range(len(PRIORITIES))]
    await asyncio.gather(*map(_finish, [store] * 4, [crowd.queue] * 4, PRIORITIES, sizes))
    names = itertools.cycle(PRIORITIES)
    dues = itertools.cycle([after(DAY_MS), *[NOW] * 9])
    for first in range(0, crowd.waiting + crowd.running, AT_ONCE):
        size = min(AT_ONCE, crowd.waiting + crowd.running - first)
        await store.enqueue([_new(store, crowd.queue, next(names), next(dues)) for _ in range(size)])
    running = 0
    while running < crowd.running:
        exchanged = await store.exchange([], _claim(store, crowd.queue, tuple(PRIORITIES), crowd.running - running))
        running += len(exchanged.claimed)


async def _finish(store: Store, queue: str, name: str, jobs: int) -> None:
    for first in range(0, jobs, AT_ONCE // 4):
        left = min(AT_ONCE // 4, jobs - first)
        await store.enqueue([_new(store, queue, name) for _ in range(left)])
        settlements: list[Settlement] = []
        while left or settlements:
            exchanged = await store.exchange(settlements, _claim(store, queue, (name,), left) if left else None)
            assert set(exchanged.settled) <= {"done"}
            claimed = [one for one in exchanged.claimed if isinstance(one, Claimed)]
            settlements = [_settled(one, number, exchanged.now_ms) for number, one in enumerate(claimed)]
            left -= len(claimed)


def _new(store: Store, queue: str, name: str, due: Due = NOW) -> NewJob:
    return NewJob(
        id=store.new_id(),
        name=name,
        queue=queue,
        payload_json=b'{"number":0}',
        due=due,
        priority=PRIORITIES.get(name, 0),
    )


def _claim(store: Store, queue: str, names: Sequence[str], n: int) -> Claim:
    rooms, token = dict.fromkeys(names, n), store.new_id()
    return Claim(queues=(queue,), names=rooms, n=n, lease_ms=HOUR_MS, worker="bench", token=token)


def _all_settled(exchanged: Exchanged) -> list[Settlement]:
    return [_settled(one, 1, exchanged.now_ms) for one in exchanged.claimed if isinstance(one, Claimed)]


def _settled(claimed: Claimed, number: int, now_ms: int) -> Settlement:
    outcome = Succeeded(b"null") if number % 100 else Errored(error="no luck", traceback="Traceback", final=True)
    return settle(claimed, outcome, DEFAULT_POLICY, now_ms)


class InMemory(Jobmill):
    """`memory://`: what waits there was enqueued by the same process."""

    rate = (25_000, 60_000)

    def drain(self, jobs: int, handler: Handler, slots: int, until: Callable[[], T]) -> T:
        """Fill, and then work."""

        async def work() -> T:
            async with self.opened(handler):
                await self._client.enqueue_many([self._job.draft()] * jobs)
                async with Worker(self._client, concurrency=slots):
                    return await asyncio.to_thread(until)

        return self.run(work())

    async def prepare(self, crowds: Sequence[Crowd]) -> None:
        """In this process."""
        for one in crowds:
            await _fill(self._client.store, one)

    async def prepare_lanes(self, there: int, lanes: int, limit: int) -> None:
        """In this process."""
        await super().fill_lanes(there, lanes, limit)

    async def fill_lanes(self, jobs: int, lanes: int, limit: int) -> None:
        """By the run itself."""

    async def bare(self, opened: AsyncExitStack) -> Callable[[], Awaitable[object]]:
        """There is no driver: the job of an id that nobody has."""
        return lambda: self._client.store.get(["unknown"])


class OnSqlite(Jobmill):
    """At `synchronous=FULL`, the default."""

    left = """
        SELECT EXISTS (SELECT 1 FROM jobmill_jobs INDEXED BY jobmill_waiting WHERE state = 'waiting')
        OR EXISTS (SELECT 1 FROM jobmill_jobs INDEXED BY jobmill_running WHERE state = 'running')
    """
    rate = (2_200, 37_000)

    async def bare(self, opened: AsyncExitStack) -> Callable[[], Awaitable[object]]:
        """In this thread."""
        connection = sqlite3.connect(urlsplit(self.url).path[1:])
        opened.callback(connection.close)

        async def query() -> object:
            return connection.execute("SELECT 1").fetchone()

        return query


class OnPostgres(Jobmill):
    """Jobs that have ended lie in a history table."""

    left = "select exists (select from jobmill.jobs)"
    rate = (1_300, 30_000)

    async def bare(self, opened: AsyncExitStack) -> Callable[[], Awaitable[object]]:
        import asyncpg

        connection = await asyncpg.connect(self.url)
        opened.push_async_callback(connection.close)
        return lambda: connection.fetchval("select 1")


class OnRedis(Jobmill):
    """With BullMQ's names for the lists."""

    left = (("llen", "bull:default:wait"), ("llen", "bull:default:active"))
    rate = (4_000, 38_000)

    async def bare(self, opened: AsyncExitStack) -> Callable[[], Awaitable[object]]:
        from redis.asyncio import Redis

        client: Any = await opened.enter_async_context(Redis.from_url(self.url))
        return lambda: client.ping()


class OnMongo(Jobmill):
    """With `indexes=lean`."""

    about = structs.replace(Jobmill.about, settings=Jobmill.about.settings + "; indexes=lean")
    left = ("monque_jobs", {"jobmill_claim": {"status": "pending"}, "jobmill_lease": {"status": "processing"}})
    rate = (350, 4_300)

    async def bare(self, opened: AsyncExitStack) -> Callable[[], Awaitable[object]]:
        from pymongo import AsyncMongoClient

        client: Any = await opened.enter_async_context(
            AsyncMongoClient(self.url.partition("?")[0], directConnection=True)
        )
        return lambda: client.admin.command("ping")


class OnMongoWithMonquesIndexes(OnMongo):
    """With `indexes=monque`, for a collection that Monque shares."""

    about = structs.replace(
        Jobmill.about, name="jobmill, Monque's indexes", settings=Jobmill.about.settings + "; indexes=monque"
    )
    rate = (250, 2_900)
