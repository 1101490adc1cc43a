"""Stores that a user wrote: the crontab needs only the port, and reports their errors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from jobmill.crontab import BatchCrontabStore, Crontab, CrontabJob, Ending, MemoryCrontab
from tests.crontab.support import Plain, Scene


def _bare(job: CrontabJob) -> Any:
    """A job of a class that was not made for Jobmill, with the six fields."""
    return SimpleNamespace(
        id=job.id,
        sleep_until=job.sleep_until,
        interval=job.interval,
        repeat_until=job.repeat_until,
        auto_remove=job.auto_remove,
        data=job.data,
    )


class Bare(Plain):
    """Its jobs are its own."""

    async def lock_next(self, lock_until: datetime) -> CrontabJob | None:
        job = await super().lock_next(lock_until)
        return job and _bare(job)


class BareBatches(Bare):
    """The two methods for many, and nothing else."""

    async def lock_many(self, lock_until: datetime, most: int) -> list[CrontabJob]:
        self.calls.append("lock_many")
        return [_bare(job) for job in await self.memory.lock_many(lock_until, most)]

    async def finish_many(self, endings: Sequence[Ending]) -> list[bool]:
        self.calls.append("finish_many")
        return await self.memory.finish_many(endings)


class Broken(Plain):
    """Its jobs are none."""

    async def lock_next(self, lock_until: datetime) -> CrontabJob | None:
        return object()  # type: ignore[return-value]


@pytest.mark.parametrize(("store", "concurrency"), [(Bare, 1), (Bare, 3), (BareBatches, 3)])
async def test_a_store_can_return_jobs_of_its_own_class(store: type[Bare], concurrency: int) -> None:
    scene = Scene()
    made = store(scene.memory)
    options: dict[str, Any] = {"clock": scene.time.clock, "sleep": scene.time.sleep, **scene.told.hooks}
    for id in ("a", "b"):
        await scene.memory.add(id)
    async with Crontab(made, concurrency=concurrency, idle_delay="1s", **options) as crontab:
        await scene.time.advance(1)
        assert crontab.is_running
    assert sorted(scene.told.ids) == ["a", "b"]
    assert scene.told.errors == []
    assert {scene.sleep_until(id) for id in ("a", "b")} == {None}
    assert ("lock_many" in made.calls) == ("finish_many" in made.calls) == (store is BareBatches)


def test_two_more_methods_make_a_batch_store() -> None:
    assert isinstance(BareBatches(MemoryCrontab()), BatchCrontabStore)


async def test_an_error_that_ends_a_crontab_is_reported_and_raised() -> None:
    scene = Scene()
    crontab = Crontab(Broken(scene.memory), **scene.told.hooks)
    with pytest.raises(ExceptionGroup) as raised:
        await crontab.run()
    assert raised.group_contains(AttributeError)
    assert scene.told.errors == [(raised.value, None)]
    assert scene.told.moments == ["start", "stop"]
    assert not crontab.is_running
