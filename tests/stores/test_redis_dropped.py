"""Scripts whose answer never came, and connections that broke: nothing is done twice, and who sleeps wakes again."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest

import jobmill
from jobmill.core.changes import Cancel, Requeue
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import EVERYTHING, NewJob, QueueChange
from jobmill.errors import StoreUnavailable
from jobmill.stores.redis import RedisStore, scripts
from jobmill.stores.redis.connection import pipelined
from jobmill.stores.redis.scripts import Script
from jobmill.stores.redis.wake import worker_name
from jobmill.testing.contract.support import QUEUE, claim, claim_ids, new, put, put_one, started, succeed, wish
from jobmill.worker.worker import Worker
from tests.helpers import until
from tests.kit.places import port_of
from tests.kit.proxy import Proxy
from tests.stores.redis_clients import clients

pytestmark = pytest.mark.stores("redis")

NEW: dict[str, Callable[[], NewJob]] = {
    "plain": lambda: new("one"),
    "with options": lambda: new("one", priority=5, tenant="t"),
    "with a key": lambda: new("one", key="k"),
    "told": lambda: new("one", queue="told"),
}
#: On a busy machine; a worker that nobody wakes looks after 5 s.
AT_ONCE_S = 2.0


@pytest.fixture
async def proxy(local_redis_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(port_of(local_redis_url)) as proxy:
        yield proxy


@pytest.fixture
async def proxied(proxy: Proxy, local_redis_url: str) -> AsyncIterator[RedisStore]:
    """A store that is open, through the proxy."""
    store = RedisStore(proxy.url(local_redis_url))
    await store.open()
    yield store
    proxy.go_on()
    proxy.accept()
    await store.close()


@pytest.fixture
async def direct(local_redis_url: str) -> AsyncIterator[RedisStore]:
    """A store at the same place, past the proxy."""
    store = RedisStore(local_redis_url)
    await store.open()
    yield store
    await store.close()


def runs(script: Script) -> Callable[[bytes], bool]:
    return lambda command: script.sha.encode() in command


# ---------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize("what", NEW)
async def test_a_repeated_enqueue_makes_one_job(what: str, proxied: RedisStore, proxy: Proxy) -> None:
    await proxied.configure("told", QueueChange(feed=True))
    await put(proxied, new(queue="told", name="other"), new(name="other"))
    proxy.drop_answer(runs(scripts.ENQUEUE))
    with pytest.raises(StoreUnavailable, match="closed the connection"):
        await proxied.enqueue([NEW[what]()])
    assert proxy.dropped_answers == 1
    (receipt,) = await proxied.enqueue([NEW[what]()])
    assert (receipt.id, receipt.status) == ("one", "exists")
    jobs = (await proxied.find(EVERYTHING)).jobs
    assert Counter(job.name for job in jobs) == {"other": 2, "send": 1}
    # And once it has run, it is not made again either.
    (claimed,) = await claim(proxied, queues=("mail", "told"))
    await proxied.exchange([succeed(claimed)], None)
    assert (await proxied.enqueue([NEW[what]()]))[0].status == "exists"


async def test_a_repeated_recurring_job_is_one(proxied: RedisStore, proxy: Proxy) -> None:
    recurring = new("one", key="k", recurrence=Recurrence(key="k", every_ms=60_000))
    await put_one(proxied)  # so that the script is known
    proxy.drop_answer(runs(scripts.ENQUEUE))
    with pytest.raises(StoreUnavailable):
        await proxied.enqueue([recurring])
    # Its id is its scheduler's: whoever asks again has updated it.
    (receipt,) = await proxied.enqueue([recurring])
    assert receipt.status == "updated"
    assert [job.id for job in (await proxied.find(EVERYTHING)).jobs if job.recurrence] == [receipt.id]


@pytest.mark.slow
async def test_what_was_settled_stays_settled_and_what_was_claimed_comes_again(
    proxied: RedisStore, proxy: Proxy
) -> None:
    first = await started(proxied)
    second = await put_one(proxied)
    proxy.drop_answer(runs(scripts.EXCHANGE))
    with pytest.raises(StoreUnavailable):
        await proxied.exchange([succeed(first, "done")], wish(lease_ms=300))
    # A worker hands it in again; the first time counted.
    answer = await proxied.exchange([succeed(first, "done twice")], wish(lease_ms=300))
    assert (answer.settled, answer.claimed) == (["lost"], [])
    (job,) = await proxied.get([first.job.id])
    assert job is not None
    assert (job.state, job.result, job.claims) == ("succeeded", "done", 1)
    # Nobody has heard of that lease: running jobs are looked through every 5 s.
    (again,) = await until(lambda: claim(proxied))
    assert (again.job.id, again.job.claims, again.job.crashes) == (second, 2, 1)


async def test_an_extension_that_was_not_heard_of_holds(proxied: RedisStore, proxy: Proxy) -> None:
    claimed = await started(proxied, lease_ms=2_000)
    await proxied.extend([claimed.lease], 2_000)
    proxy.drop_answer(runs(scripts.EXTEND))
    with pytest.raises(StoreUnavailable):
        await proxied.extend([claimed.lease], 60_000)
    assert await proxied.extend([claimed.lease], 60_000) == []


async def test_a_change_that_was_not_heard_of_is_refused_the_second_time(proxied: RedisStore, proxy: Proxy) -> None:
    id, other = await put(proxied, new(), new())
    await proxied.change([other], Cancel())
    for change in (Cancel(), Requeue()):
        proxy.drop_answer(runs(scripts.CHANGE))
        with pytest.raises(StoreUnavailable):
            await proxied.change([id], change)
        assert list((await proxied.change([id], change)).refused) == [id]


@pytest.mark.slow
async def test_a_worker_goes_on_when_answers_are_dropped(proxied: RedisStore, proxy: Proxy) -> None:
    jobs = jobmill.connect(store=proxied)
    runs_of: Counter[tuple[str, int]] = Counter()

    @jobs.handler(max_crashes=100)
    async def work(context: jobmill.Context) -> int:
        runs_of[context.job.id, context.fence] += 1
        await asyncio.sleep(0.001)
        return context.fence

    async with Worker(jobs, concurrency=4, lease="500ms"), asyncio.timeout(30):
        enqueued = [await work.enqueue() for _ in range(100)]
        for number in range(1, 6):
            proxy.drop_answer(runs(scripts.EXCHANGE))
            await until(lambda number=number: proxy.dropped_answers == number)  # type: ignore[misc]
        for one in enqueued:
            assert await one.result(timeout=20) == (await one.job()).claims
    assert set(runs_of.values()) == {1}
    # Those whose claim nobody has heard of were never run under it.
    assert len(runs_of) == 100 or {fence for _, fence in runs_of} > {1}


# ---------------------------------------------------------------------------------------------------- sleepers


async def sleeps(direct: RedisStore, worker: str) -> bool:
    """Whether a worker waits at the marker, according to the server."""
    name = worker_name(direct._context.url.prefix, QUEUE, worker)
    return [one["cmd"] for one in await clients(direct._context.client, name)] == ["bzpopmin"]


def cut(proxy: Proxy) -> None:
    proxy.cut()


def half_open(proxy: Proxy) -> None:
    proxy.half_open()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [cut, half_open])
async def test_an_idle_worker_wakes_again(
    fault: Callable[[Proxy], None],
    proxied: RedisStore,
    proxy: Proxy,
    direct: RedisStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipelined, "CALL_SECONDS", 1.0)
    jobs = jobmill.connect(store=proxied)

    @jobs.handler(queue=QUEUE)
    async def stamp() -> float:
        return time.time()

    others = jobmill.connect(store=direct)

    async def pickup() -> float:
        """How long an idle worker takes to begin a job that somebody else enqueues."""
        began = time.time()
        ran: float = await (await others.enqueue("stamp", queue=QUEUE)).result(timeout=20)
        return ran - began

    async with Worker(jobs, queues=[QUEUE], name="sleeper"):
        for _ in range(2):
            await until(lambda: sleeps(direct, "sleeper"), 20)
            accepted = proxy.accepted
            fault(proxy)
            # Two connections, of which one is that where it sleeps, under the name by which Node knows it.
            await until(lambda accepted=accepted: proxy.accepted >= accepted + 2, 30)  # type: ignore[misc]
            for _ in range(3):
                await until(lambda: sleeps(direct, "sleeper"), 20)
                assert await pickup() < AT_ONCE_S


@pytest.mark.slow
async def test_a_marker_that_was_taken_and_not_heard_of(proxied: RedisStore, proxy: Proxy, direct: RedisStore) -> None:
    """It costs no more than the time until the sleeper comes back by itself."""
    assert (await proxied.exchange([], wish())).claimed == []
    proxy.drop_answer(lambda command: command.startswith(b"BZPOPMIN"))
    sleeping = asyncio.create_task(proxied.wait_for_work((QUEUE,), proxied.now() + 60_000))
    await until(lambda: sleeps(direct, "worker-1"))
    id = await put_one(direct)
    await until(lambda: proxy.dropped_answers == 1)
    async with asyncio.timeout(AT_ONCE_S + 1):
        await sleeping
    assert await claim_ids(proxied) == [id]


async def test_a_worker_that_starts_while_the_server_is_away(proxy: Proxy, local_redis_url: str) -> None:
    proxy.refuse()
    jobs = jobmill.connect(proxy.url(local_redis_url))

    @jobs.handler()
    async def work() -> int:
        return 1

    worker = Worker(jobs)
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await worker.start()
    # It said so at once, and can be started when the server is there.
    proxy.accept()
    async with worker:
        assert await (await work.enqueue()).result(timeout=10) == 1
    await jobs.close()
