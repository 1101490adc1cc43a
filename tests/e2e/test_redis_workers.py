"""Workers on Redis, really killed and stopped: their jobs run elsewhere, and what they say too late is refused."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import jobmill
from jobmill import Client
from tests.e2e.conftest import Place
from tests.e2e.redis_storms import stands_twice
from tests.helpers import until
from tests.kit.proxy import Proxy
from tests.kit.redis import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis")]

#: That of the workers here, and within what running jobs are looked through.
LEASE_S = 1.0
SCAN_S = 5.0
BUSY_MACHINE_S = 1.0


@pytest.fixture
def place(tmp_path: Path, own_redis: RedisServer) -> Iterator[Place]:
    made = Place(tmp_path, own_redis.url())
    yield made
    made.end()


@pytest.fixture
async def jobs(place: Place) -> AsyncIterator[Client]:
    async with jobmill.connect(place.url) as client:
        yield client


@pytest.fixture
def raw(own_redis: RedisServer) -> Iterator[Any]:
    with own_redis.client() as client:
        yield client


def events_of(raw: Any, id: str) -> list[str]:
    entries = raw.xrange("bull:default:events")
    return [fields[b"event"].decode() for _, fields in entries if fields.get(b"jobId") == id.encode()]


async def test_a_worker_stopped_past_its_lease_cannot_settle(place: Place, jobs: Client, raw: Any) -> None:
    gate = place.path / "gate"
    enqueued = await jobs.enqueue("until_file", {"path": str(gate)})
    sleeper = place.worker()
    await until(lambda: place.notes(), 30)
    os.kill(sleeper.pid, signal.SIGSTOP)
    other = place.worker()
    await until(lambda: len(place.notes()) == 2, 30)
    gate.touch()
    assert await enqueued.result(timeout=20) == other.pid
    os.kill(sleeper.pid, signal.SIGCONT)
    # Its handler ends as well, and whatever it says then is refused.
    await until(lambda: ("end", enqueued.id, 1, sleeper.pid) in place.notes(), 20)
    await until(lambda: "is stopped" in place.said(sleeper) or "too late" in place.said(sleeper), 20)
    job = await enqueued.job()
    assert (job.state, job.result, job.claims, job.crashes) == ("succeeded", other.pid, 2, 1)
    # As Node sees it.
    assert raw.hmget(f"bull:default:{enqueued.id}", "stc", "ats", "atm") == [b"1", b"2", b"1"]
    assert events_of(raw, enqueued.id) == ["added", "waiting", "active", "waiting", "stalled", "active", "completed"]
    assert await stands_twice(place.url) == []
    # It is alive and well, and goes on with other jobs.
    other.terminate()
    assert other.wait(20) == 0
    assert await (await jobs.enqueue("short", {"n": 7})).result(timeout=20) == 7


async def test_a_settlement_that_is_on_its_way_past_the_lease_is_refused(
    place: Place, jobs: Client, own_redis: RedisServer, raw: Any
) -> None:
    gate = place.path / "gate"
    enqueued = await jobs.enqueue("until_file", {"path": str(gate)})
    async with Proxy(own_redis.port) as proxy:
        place.url = proxy.url(own_redis.url())
        slow = place.worker()
        await until(lambda: place.notes(), 30)
        proxy.stall()
        held = proxy.held
        gate.touch()
        await until(lambda: ("end", enqueued.id, 1, slow.pid) in place.notes() and proxy.held > held, 20)
        gate.unlink()
        place.url = own_redis.url()
        other = place.worker()
        # It runs again, elsewhere, while the server hears that it was done.
        await until(lambda: ("run", enqueued.id, 2, other.pid) in place.notes(), 20)
        proxy.go_on()
        await until(lambda: "the settlement came too late" in place.said(slow), 20)
        assert (await enqueued.job()).state == "running"
        gate.touch()
        assert await enqueued.result(timeout=20) == other.pid
    assert events_of(raw, enqueued.id).count("completed") == 1


async def test_what_a_killed_worker_held_runs_elsewhere_soon(place: Place, jobs: Client, raw: Any) -> None:
    victim = place.worker("--concurrency", "50", "--name", "victim")
    await jobs.enqueue_many([jobs.draft("fenced", {"ms": 20}) for _ in range(2_000)])
    # In mid batch: it settles and claims with both of its exchangers.
    await until(lambda: len(place.notes()) >= 300, 30)
    victim.kill()
    victim.wait(10)
    killed = time.monotonic()
    held = [id.decode() for id in raw.lrange("bull:default:active", 0, -1)]
    assert len(held) >= 20
    # Nothing else waits: the other has nothing to do but to look for them.
    raw.delete("bull:default:wait")
    other = place.worker("--concurrency", "50")

    def elsewhere() -> set[str]:
        return {id for word, id, fence, pid in place.notes() if pid == other.pid and fence == 2 and word == "run"}

    await until(lambda: elsewhere() == set(held), LEASE_S + SCAN_S + BUSY_MACHINE_S)
    print(f"{len(held)} jobs within {time.monotonic() - killed:.1f} s")

    async def all_ended() -> bool:
        return {one.state for one in await jobs.count(states=["running"])} == set()

    await until(all_ended, 20)
    for job in [await jobs.get(id) for id in held]:
        assert (job.state, job.claims, job.crashes, job.errors) == ("succeeded", 2, 1, 0)
    assert Counter((id, fence) for word, id, fence, _ in place.notes() if word == "run").most_common(1)[0][1] == 1
    assert await stands_twice(place.url) == []
