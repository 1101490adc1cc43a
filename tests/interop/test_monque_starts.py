"""A Monque process that starts later: it finds its indexes, and nothing that it would stumble over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jobmill import Client
from tests.helpers import until
from tests.interop.monque.monque import Generation
from tests.interop.monque.process import MonqueProcess
from tests.interop.monque.scene import Scene, generations, our_url, scene_at
from tests.stores_under_test import migrated_mongo

pytestmark = [pytest.mark.slow, pytest.mark.stores("mongo")]


@pytest.fixture
async def scene(mongo_url: str, tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene_at(mongo_url, tmp_path) as made:
        yield made


@generations
@pytest.mark.parametrize("indexes", ["monque", "lean", "none"])
async def test_it_finds_its_indexes_or_makes_them(mongo_url: str, generation: Generation, indexes: str) -> None:
    await migrated_mongo(our_url(mongo_url, indexes=indexes))
    async with MonqueProcess(mongo_url, generation) as peer:
        made = (await peer.ask("initialize"))["made"]
        expected = 10 if generation == 1 else 13
        assert len(made) == {"monque": 0, "lean": expected - 1, "none": expected}[indexes]
        assert (await peer.ask("initialize"))["made"] == []
        await migrated_mongo(our_url(mongo_url, indexes=indexes))
        assert (await peer.ask("initialize"))["made"] == []


@generations
@pytest.mark.parametrize("indexes", ["monque", "lean", "none"])
async def test_we_start_where_it_has_been(mongo_url: str, generation: Generation, indexes: str) -> None:
    async with MonqueProcess(mongo_url, generation) as peer:
        await peer.ask("initialize")
        await migrated_mongo(our_url(mongo_url, indexes=indexes))
        assert (await peer.ask("initialize"))["made"] == []


async def enqueue_all_sorts(jobs: Client) -> None:
    """And change some of them."""
    await jobs.enqueue("work", {"ms": 1}, priority=7, tenant="acme", id="own-id", unique_key="once")
    await jobs.enqueue("work", {"fails": 1}, backoff=0.05, keep_succeeded="1h")
    await jobs.enqueue("work", {"fails": 9}, max_attempts=1)
    await jobs.enqueue("late")
    await jobs.enqueue("work", every="1h", key="every")
    await jobs.enqueue("work", cron="0 0 1 1 *", key="cron")
    await jobs.enqueue("work", cron="0 0 1 1 *", key="cron")
    await jobs.enqueue("work", cron="30 0 0 1 1 *", timezone="Europe/Berlin", key="six")
    cancelled = (await jobs.enqueue("work", delay="1h", unique_key="cancelled")).id
    moved = (await jobs.enqueue("work", delay="1h")).id
    removed = (await jobs.enqueue("work", delay="1h")).id
    await jobs.cancel(cancelled)
    await jobs.requeue(cancelled)
    await jobs.cancel(cancelled)
    await jobs.reprioritize(moved, priority=3)
    await jobs.reschedule(moved, delay="2h")
    await jobs.remove(removed)
    await jobs.queue("mail").pause()
    await jobs.enqueue("work", queue="mail", unique_key="once")


async def test_whatever_we_do_it_goes_on(scene: Scene) -> None:
    """A process of each generation watches all that we write, and looks at all that is left."""
    jobs = scene.jobs
    async with scene.peer(1) as one, scene.peer(2) as other:
        for peer in (one, other):
            await peer.ask("start", names=["nobody"])
        await enqueue_all_sorts(jobs)
        worker = await scene.worker("--lease", "1s", "--shutdown-timeout", "100ms")
        await scene.come_to(completed=3, failed=1, cancelled=1, pending=5)
        long = (await jobs.enqueue("work", {"our_ms": 60_000})).id
        await until(lambda: long in scene.runs())
        during = await other.ask("check")
        await jobs.requeue(states=["failed"])
        worker.terminate()
        assert worker.wait(20) == 0
        killed = await scene.worker("--lease", "1s")
        await until(lambda: scene.runs()[long] == 2)
        killed.kill()
        killed.wait()
        await scene.worker("--lease", "1s")
        await until(lambda: scene.runs()[long] == 3, 20)
        await jobs.cancel(long)
        await jobs.purge()
        assert during == {}
        assert await other.ask("check") == {}
        assert one.complaints() + other.complaints() == []
