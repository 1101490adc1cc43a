"""The bookkeeper: makes one usage record of every run that started, and hands it to the meters.

A record is made when the run is over and the store has answered its settlement: its times are those of the handler, its
outcome is what the store took. So no two runs of a job can both have succeeded, also when one of them came too late.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from jobmill.core.events import EventType
from jobmill.core.usage import GLOBAL, RunEnded, Usage
from jobmill.core.values import Ended
from jobmill.store import Store
from jobmill.worker.running import Run
from jobmill.worker.usage_queue import MeterLine

#: How long meters may take for what is in line when the worker ends.
HAND_ON_S = 5.0


class Stint:
    """When a handler was called, and for how long it ran."""

    __slots__ = ("began", "duration_ms", "started_ms")

    def __init__(self, began: float, now_ms: int) -> None:
        self.began = began
        self.started_ms = now_ms
        self.duration_ms = 0.0

    def end(self, now: float) -> None:
        """It ran until now."""
        self.duration_ms = (now - self.began) * 1000

    @property
    def finished_ms(self) -> int:
        """Not asked of the store: its clock as we know it is corrected now and then, and the end might come first."""
        return self.started_ms + round(self.duration_ms)


class Bookkeeper:
    """Runs that began are open until their record is written, which happens once."""

    def __init__(
        self, store: Store, worker: str, meters: Sequence[MeterLine], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._worker = worker
        self._meters = meters
        self._monotonic = monotonic
        self._open: dict[Run, Stint] = {}
        #: Runs that are not ours any more, and whose handlers have yet to end.
        self._losses: dict[Run, RunEnded] = {}

    def start(self) -> None:
        """Begin to hand on."""
        for meter in self._meters:
            meter.start()

    def began(self, run: Run) -> None:
        """Its handler is about to be called."""
        self._open[run] = Stint(self._monotonic(), self._store.now())

    def ended(self, run: Run) -> None:
        """Its handler has ended, or was left (a thread); how that counts is not known yet, unless the run was lost."""
        stint = self._open.get(run)
        if stint is not None:
            stint.end(self._monotonic())
        if run in self._losses:
            self.settled(run, self._losses.pop(run))

    def lost(self, run: Run, fact: EventType) -> None:
        """The run is not ours any more, by this fact; its handler may have ended before that was known."""
        outcome: RunEnded = "cancelled" if fact in ("cancelled", "removed") else "lost"
        if run.over:
            self.settled(run, outcome)
        else:
            self._losses[run] = outcome

    def settled(self, run: Run, outcome: Ended | RunEnded) -> None:
        """How the run ended is known: write its record."""
        assert outcome != "crashed", "that is settled without a run"
        stint = self._open.pop(run, None)
        if stint is None:
            return
        job = run.claimed.job
        usage = Usage(
            job_id=job.id,
            name=job.name,
            queue=job.queue,
            tenant=GLOBAL if job.tenant is None else job.tenant,
            attempt=job.attempt,
            outcome=outcome,
            duration_ms=stint.duration_ms,
            started_ms=stint.started_ms,
            finished_ms=stint.finished_ms,
            worker=self._worker,
        )
        for meter in self._meters:
            meter.put(usage)

    async def stop(self) -> None:
        """Write what the store has not answered by now as lost, and hand on what is in line, within reason."""
        for run in list(self._open):
            if not run.over:
                self.ended(run)
            self.settled(run, "lost")
        self._losses.clear()
        await asyncio.gather(*(meter.stop(HAND_ON_S) for meter in self._meters))
