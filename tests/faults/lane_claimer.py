"""A process that claims and settles jobs with lanes until a file tells it to stop, and records each run.

`python -m tests.faults.lane_claimer URL FOLDER SEED`. It forgets some jobs, as if it had lost them, and lets some be
tried again. Its records are lines of a file of its own in the folder: a process that is killed loses none that counts.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jobmill
from jobmill.core.values import Claimed, Settlement
from jobmill.store import Store
from jobmill.testing.contract.support import fail, readable, retry, succeed, wish
from tests.faults.lane_records import Begun, Ended, Ending, write

STOP = "stop"
#: In the folder: healing is off, so that only what ends slots fills lanes.
NO_HEAL = "no-heal"
LEASE_S = 1.5
BATCHES = (1, 2, 5, 40)
RETRIED, FORGOTTEN, FAILED = 0.03, 0.002, 0.01
DELAYS_MS = (0, 50, 400)
#: How long a batch runs: nearly always short, and seldom long enough to be noticed.
RUNS_S, LONG_S, LONG = 0.01, 0.3, 0.01
IDLE_S = 0.01
#: Workers do it every 10 s. Here a lost hand-over must not take the time of the whole test.
HEALS_EVERY_S = 0.5


class Claimer:
    """One loop: settle what has run, claim more, record both."""

    def __init__(self, store: Store, folder: Path, seed: int) -> None:
        self._store = store
        self._random = random.Random(seed)
        self._stop = folder / STOP
        self._heals_s = float("inf") if (folder / NO_HEAL).exists() else HEALS_EVERY_S
        self._file = os.open(folder / f"claims-{os.getpid()}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    async def run(self) -> None:
        """Until the file is there."""
        settlements: list[Settlement] = []
        runs: list[Claimed] = []
        healed = time.monotonic()
        while settlements or not self._stop.exists():
            if time.monotonic() > healed + self._heals_s:
                healed = time.monotonic()
                await self._store.flush_outbox()
            runs = await self._exchange(settlements, runs)
            await asyncio.sleep(self._pause() if runs else IDLE_S)
            settlements, runs = self._end(runs)

    async def _exchange(self, settlements: Sequence[Settlement], settled: Sequence[Claimed]) -> list[Claimed]:
        n = self._random.choice(BATCHES)
        called = time.monotonic()
        exchanged = await self._store.exchange(
            settlements, wish(n, lease_ms=int(LEASE_S * 1e3), worker=str(os.getpid()))
        )
        returned = time.monotonic()
        pairs = zip(settled, exchanged.settled, strict=True)
        ends = [Ended(run.job.id, run.job.claims, returned, str(answer)) for run, answer in pairs]
        claimed = readable(exchanged.claimed)
        os.write(self._file, write([*ends, *(_begun(one, called, returned) for one in claimed)]))
        return claimed

    def _pause(self) -> float:
        return self._random.random() * (LONG_S if self._random.random() < LONG else RUNS_S)

    def _end(self, runs: Sequence[Claimed]) -> tuple[list[Settlement], list[Claimed]]:
        """What becomes of these runs; those that are forgotten are left out."""
        settlements: list[Settlement] = []
        settled: list[Claimed] = []
        records: list[Ending] = []
        for run in runs:
            settlement = self._outcome(run)
            what = (
                "forgotten" if settlement is None else "retried" if settlement.state == "waiting" else settlement.state
            )
            records.append(Ending(run.job.id, run.job.claims, time.monotonic(), what))
            if settlement is not None:
                settlements.append(settlement)
                settled.append(run)
        os.write(self._file, write(records))
        return settlements, settled

    def _outcome(self, run: Claimed) -> Settlement | None:
        chance = self._random.random()
        if chance < FORGOTTEN:
            return None
        if chance < FORGOTTEN + RETRIED:
            return retry(run, self._random.choice(DELAYS_MS))
        return fail(run) if chance < FORGOTTEN + RETRIED + FAILED else succeed(run)


def _begun(claimed: Claimed, called: float, returned: float) -> Begun:
    job = claimed.job
    assert claimed.lease.lane == job.lane
    admitted = job.due_ms / 1e3 - (time.time() - time.monotonic())
    recovered = claimed.recovered_from is not None
    return Begun(job.lane or "", job.id, job.claims, called, returned, admitted, called + LEASE_S, recovered)


async def main(url: str, folder: str, seed: str) -> None:
    """Connect, and claim."""
    async with jobmill.connect(url) as jobs:
        await Claimer(jobs.store, Path(folder), int(seed)).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
