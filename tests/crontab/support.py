"""Time that a test moves, for a crontab and its store; and stores that behave badly on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pytest

from jobmill.core.durations import to_datetime
from jobmill.crontab import Changes, Crontab, CrontabJob, CrontabStore, Ending, MemoryCrontab
from jobmill.testing import ManualClock

#: Noon, at the start of a minute and of an hour; a Wednesday.
NOON = datetime.fromisoformat("2023-11-15T12:00:00+00:00")
NOON_MS = 1_700_049_600_000

#: Each way of working: one loop, several loops, batches.
WAYS = pytest.mark.parametrize(("kind", "concurrency"), [("whole", 1), ("plain", 1), ("plain", 3), ("whole", 3)])


class ManualTime:
    """A clock, and a sleep by that clock: `advance` wakes those whose time has come, each at its own moment."""

    def __init__(self, now_ms: int = NOON_MS) -> None:
        self.clock = ManualClock(now_ms)
        #: What was asked for, in seconds.
        self.slept: list[float] = []
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def now(self) -> datetime:
        """The time."""
        return to_datetime(self.clock())

    async def sleep(self, seconds: float) -> None:
        """Replaces asyncio.sleep."""
        self.slept.append(seconds)
        end = self.clock() + round(seconds * 1000)
        if end <= self.clock():
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        self._sleepers.append((end, future))
        await future

    async def advance(self, seconds: float) -> None:
        """Move on, and let everybody do what there is to do at each moment on the way."""
        end = self.clock() + round(seconds * 1000)
        await settled()
        while due := self._next(end):
            moment, future = due
            self.clock.now_ms = max(self.clock(), moment)
            future.set_result(None)
            await settled()
        self.clock.now_ms = end
        await settled()

    def _next(self, end: int) -> tuple[int, asyncio.Future[None]] | None:
        self._sleepers = [one for one in self._sleepers if not one[1].done()]
        return min((one for one in self._sleepers if one[0] <= end), key=lambda one: one[0], default=None)


async def settled() -> None:
    """Let all tasks continue that need no time: in memory that takes a few turns of the loop."""
    for _ in range(15):
        await asyncio.sleep(0)


class Plain:
    """A store of exactly three methods, which says nothing on how it went: what a user may write."""

    def __init__(self, memory: MemoryCrontab) -> None:
        self.memory = memory
        self.calls: list[str] = []

    async def lock_next(self, lock_until: datetime) -> CrontabJob | None:
        self.calls.append("lock_next")
        return await self.memory.lock_next(lock_until)

    async def update(self, id: Any, changes: Changes) -> None:
        self.calls.append("update")
        await self.memory.update(id, changes)

    async def remove(self, id: Any) -> None:
        self.calls.append("remove")
        await self.memory.remove(id)


class Faulty(MemoryCrontab):
    """A real store that raises on demand: `faults["lock"] = OSError(...)`, or a function of the ids."""

    def __init__(self, *, clock: Callable[[], int]) -> None:
        super().__init__(clock=clock)
        self.faults: dict[str, BaseException | Callable[[list[Any]], BaseException | None]] = {}
        self.calls: list[tuple[str, list[Any]]] = []
        #: While there is one, writes wait for it.
        self.gate: asyncio.Event | None = None

    def _meet(self, verb: str, ids: list[Any]) -> None:
        self.calls.append((verb, ids))
        fault = self.faults.get(verb)
        error = fault(ids) if fault is not None and not isinstance(fault, BaseException) else fault
        if error is not None:
            raise error

    async def lock_next(self, lock_until: datetime) -> CrontabJob | None:
        self._meet("lock", [1])
        return next(iter(await self.lock_documents(lock_until, 1)), None)

    async def lock_many(self, lock_until: datetime, most: int) -> list[CrontabJob]:
        self._meet("lock", [most])
        return await self.lock_documents(lock_until, most)

    async def lock_documents(self, lock_until: datetime, most: int) -> list[CrontabJob]:
        """Both lock methods call this, so that tests can replace it."""
        await asyncio.sleep(0)
        return await super().lock_many(lock_until, most)

    async def update(self, id: Any, changes: Changes, /) -> bool:
        self._meet("write", [id])
        if self.gate is not None:
            await self.gate.wait()
        return await super().update(id, changes)

    async def remove(self, id: Any, /, *, locked_until: datetime | None = None) -> bool:
        self._meet("write", [id])
        return await super().remove(id, locked_until=locked_until)

    async def finish_many(self, endings: Sequence[Ending]) -> list[bool]:
        self._meet("write", [ending.id for ending in endings])
        if self.gate is not None:
            await self.gate.wait()
        return [
            await MemoryCrontab.remove(self, ending.id, locked_until=ending.locked_until)
            if ending.remove
            else await MemoryCrontab.update(
                self, ending.id, Changes(sleep_until=ending.sleep_until, locked_until=ending.locked_until)
            )
            for ending in endings
        ]


class Told:
    """Hooks that remember."""

    def __init__(self) -> None:
        self.moments: list[str] = []
        self.jobs: list[CrontabJob] = []
        self.errors: list[tuple[BaseException, CrontabJob | None]] = []

    @property
    def ids(self) -> list[Any]:
        """Of the documents that were handled."""
        return [job.id for job in self.jobs]

    async def on_document(self, job: CrontabJob) -> None:
        self.moments.append(f"document {job.id}")
        self.jobs.append(job)

    def on_start(self) -> None:
        self.moments.append("start")

    async def on_stop(self) -> None:
        self.moments.append("stop")

    def on_idle(self) -> None:
        self.moments.append("idle")

    async def on_error(self, error: BaseException, job: CrontabJob | None) -> None:
        self.errors.append((error, job))

    @property
    def hooks(self) -> dict[str, Any]:
        """For a crontab."""
        names = ("on_document", "on_start", "on_stop", "on_idle", "on_error")
        return {name: getattr(self, name) for name in names}


class Scene:
    """A crontab on documents in memory that polls every 100 ms, with a time that the test moves."""

    def __init__(self, kind: str = "whole", **options: Any) -> None:
        self.time = ManualTime()
        self.told = Told()
        #: What is to have been told to on_error when the run is over.
        self.expected: list[tuple[BaseException, CrontabJob | None]] = []
        self.memory = Faulty(clock=self.time.clock)
        self.store: CrontabStore = Plain(self.memory) if kind == "plain" else self.memory
        given = {"idle_delay": 0.1, "clock": self.time.clock, "sleep": self.time.sleep, **self.told.hooks, **options}
        self.crontab = Crontab(self.store, **given)

    def sleep_until(self, id: Any = "a") -> datetime | None:
        """Of a document that is there."""
        return self.memory.documents[id].sleep_until

    @asynccontextmanager
    async def run(self, seconds: float = 0.0) -> AsyncIterator[None]:
        """Started, for so long, then stopped."""
        async with self.crontab:
            await self.time.advance(seconds)
            yield
        assert self.told.errors == self.expected
