"""A commit whose answer never came: whoever asks again gets no second job, and no second settlement."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

import jobmill
from jobmill.core.changes import Cancel, Requeue
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import EVERYTHING, NewJob, QueueChange
from jobmill.errors import StoreUnavailable
from jobmill.stores.postgres import PostgresStore
from jobmill.testing.contract.support import claim, new, put, put_one, started, succeed, wish
from jobmill.worker.worker import Worker
from tests.helpers import until
from tests.kit.proxy import Proxy

pytestmark = pytest.mark.stores("postgres")

NEW: dict[str, Callable[[], NewJob]] = {
    "plain": lambda: new("one"),
    "with a key": lambda: new("one", key="k"),
    "recurring": lambda: new("one", key="k", recurrence=Recurrence(key="k", every_ms=60_000)),
    "told": lambda: new("one", queue="told"),
}


def executes(word: bytes) -> Callable[[bytes], bool]:
    return lambda statement: word in statement.replace(b"COMMITTED", b"")


async def dropped(proxy: Proxy, before: int) -> None:
    await until(lambda: proxy.dropped_answers == before + 1)


@pytest.mark.parametrize("what", NEW)
async def test_a_repeated_enqueue_makes_one_job(what: str, proxied: PostgresStore, proxy: Proxy) -> None:
    await proxied.configure("told", QueueChange(feed=True))
    await put(proxied, new(queue="told", name="other"), new(name="other"))
    proxy.drop_answer(executes(b"COMMIT" if what == "told" else b".enqueue"))
    with pytest.raises(StoreUnavailable, match="connection was closed in the middle of operation"):
        await proxied.enqueue([NEW[what]()])
    assert proxy.dropped_answers == 1
    (receipt,) = await proxied.enqueue([NEW[what]()])
    assert (receipt.id, receipt.status) == ("one", "exists")
    jobs = (await proxied.find(EVERYTHING)).jobs
    assert Counter(job.name for job in jobs) == {"other": 2, "send": 1}
    # And once it has run, it is not made again either.
    if what != "recurring":
        (claimed,) = await claim(proxied, queues=("mail", "told"))
        await proxied.exchange([succeed(claimed)], None)
        assert (await proxied.enqueue([NEW[what]()]))[0].status == "exists"


async def test_what_was_settled_stays_settled_and_what_was_claimed_comes_again(
    proxied: PostgresStore, proxy: Proxy
) -> None:
    first = await started(proxied)
    second = await put_one(proxied)
    proxy.drop_answer(executes(b".exchange"))
    with pytest.raises(StoreUnavailable):
        await proxied.exchange([succeed(first, "done")], wish(lease_ms=300))
    # A worker hands it in again; the first time counted.
    answer = await proxied.exchange([succeed(first, "done twice")], wish(lease_ms=300))
    assert (answer.settled, answer.claimed) == (["lost"], [])
    (job,) = await proxied.get([first.job.id])
    assert job is not None
    assert (job.state, job.result, job.claims) == ("succeeded", "done", 1)
    (again,) = await until(lambda: claim(proxied))
    assert (again.job.id, again.job.claims, again.job.crashes) == (second, 2, 1)


async def test_an_extension_that_was_not_heard_of_holds(proxied: PostgresStore, proxy: Proxy) -> None:
    claimed = await started(proxied, lease_ms=2_000)
    proxy.drop_answer(executes(b".extend"))
    with pytest.raises(StoreUnavailable):
        await proxied.extend([claimed.lease], 60_000)
    assert await proxied.extend([claimed.lease], 60_000) == []


async def test_a_change_that_was_not_heard_of_is_refused_the_second_time(proxied: PostgresStore, proxy: Proxy) -> None:
    id = await put_one(proxied)
    for change in (Cancel(), Requeue()):
        proxy.drop_answer(executes(b"COMMIT"))
        with pytest.raises(StoreUnavailable):
            await proxied.change([id], change)
        assert list((await proxied.change([id], change)).refused) == [id]


async def test_a_worker_goes_on_when_answers_are_dropped(proxied: PostgresStore, proxy: Proxy) -> None:
    jobs = jobmill.connect(store=proxied)
    runs: Counter[tuple[str, int]] = Counter()

    @jobs.handler(max_crashes=100)
    async def work(context: jobmill.Context) -> int:
        runs[context.job.id, context.fence] += 1
        await asyncio.sleep(0.001)
        return context.fence

    async with Worker(jobs, concurrency=4, lease="500ms"), asyncio.timeout(30):
        enqueued = [await work.enqueue() for _ in range(100)]
        for number in range(1, 6):
            proxy.drop_answer(executes(b".exchange"))
            await dropped(proxy, number - 1)
        for one in enqueued:
            assert await one.result(timeout=20) == (await one.job()).claims
    assert set(runs.values()) == {1}
    # Those whose claim nobody has heard of were never run under it.
    assert len(runs) == 100 or {fence for _, fence in runs} > {1}
