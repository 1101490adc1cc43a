"""Held jobs, and jobs that are due much later, beside Monque: it neither runs them nor looks for jobs all the time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jobmill.core.changes import Hold, Release
from tests.helpers import until
from tests.interop.monque.monque import Generation
from tests.interop.monque.process import MonqueProcess
from tests.interop.monque.scene import Scene, generations, scene_at

pytestmark = [pytest.mark.slow, pytest.mark.stores("mongo")]


POLL_MS = 200


@pytest.fixture
async def scene(mongo_url: str, tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene_at(mongo_url, tmp_path) as made:
        yield made


async def is_calm(peer: MonqueProcess) -> bool:
    """Whether a process looks for jobs at its interval, not more often; it does so several times meanwhile."""
    first, began = await peer.ask("polls"), time.monotonic()
    await until(lambda: _has_polled(peer, first + 5), 30)
    polls, took_ms = await peer.ask("polls") - first, (time.monotonic() - began) * 1_000
    return bool((polls - 1) * POLL_MS <= took_ms)


async def _has_polled(peer: MonqueProcess, polls: int) -> bool:
    return bool(await peer.ask("polls") >= polls)


def in_days(days: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


@generations
async def test_monque_neither_runs_held_jobs_nor_spins(scene: Scene, generation: Generation) -> None:
    jobs = scene.jobs
    ids = [(await jobs.enqueue("work")).id for _ in range(20)]
    assert (await jobs.store.change(ids, Hold(who="ada"))).ids == ids
    async with scene.peer(generation, poll_ms=POLL_MS) as peer:
        await peer.ask("start")
        later = [(await jobs.enqueue("work", delay="90d")).id for _ in range(20)]
        plain = (await jobs.enqueue("work")).id
        assert (await peer.event("end"))["job"] == plain
        await until(lambda: is_calm(peer), 30)
        assert await peer.ask("check") == {}
        for id in (*ids, *later):
            document = await scene.get(id)
            assert document["status"] == "pending"
            assert in_days(19) < document["nextRunAt"] <= in_days(20)
        # Half of the time has passed.
        sooner = {"$dateAdd": {"startDate": "$nextRunAt", "unit": "day", "amount": -11}}
        moved = await scene.documents.update_many(
            {"status": "pending"}, [{"$set": {"nextRunAt": sooner, "jobmill.dueOf": sooner}}]
        )
        assert moved.modified_count == 40
        await jobs.purge()
        for id in (*ids, *later):
            assert in_days(19) < (await scene.get(id))["nextRunAt"] <= in_days(20)
        assert (await jobs.get(later[0])).due_at > in_days(89)  # type: ignore[operator]
        assert (await jobs.store.change(ids, Release())).ids == ids
        await scene.come_to(completed=21, pending=20)
        assert (await peer.ask("check"), peer.complaints()) == ({}, [])


@generations
async def test_what_monque_reschedules_is_due_then(scene: Scene, generation: Generation) -> None:
    later = (await scene.jobs.enqueue("work", delay="90d")).id
    held = (await scene.jobs.enqueue("work", delay="1h")).id
    await scene.jobs.store.change([held], Hold())
    async with scene.peer(generation) as peer:
        for id in (later, held):
            assert await peer.ask("reschedule", job=id, at_ms=time.time() * 1_000 - 1)
    await scene.worker()
    await until(lambda: _is_done(scene, later), 30)
    job = await scene.jobs.get(held)
    assert (job.state, job.held is not None) == ("waiting", True), "a hold is ended by a release only"
    assert (await scene.get(held))["nextRunAt"] > in_days(19)


async def _is_done(scene: Scene, id: str) -> bool:
    return (await scene.jobs.get(id)).state == "succeeded"
