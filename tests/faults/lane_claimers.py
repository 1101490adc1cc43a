"""Processes that claim jobs with lanes, as a test starts and kills them: ours, and BullMQ for Node on Redis."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from tests.faults.lane_claimer import STOP
from tests.faults.lane_records import Asked, History, read
from tests.helpers import until
from tests.kit.processes import launched
from tests.kit.workers import ROOT

CLAIMERS = 3


class Claimers:
    """The processes that claim and settle, and what they have recorded."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._commands: list[Sequence[str]] = []
        #: When those were killed that were, by their ids.
        self._killed: dict[int, float] = {}

    def start(self) -> None:
        """One more of ours."""
        self.run([sys.executable, "-m", "tests.faults.lane_claimer", self._url, str(self._folder)])

    def run(self, command: Sequence[str]) -> None:
        """A program that claims; it gets a number as its last argument."""
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        with (self._folder / f"output-{len(self._processes)}").open("wb") as output:
            self._processes.append(
                subprocess.Popen(
                    launched(None, signal.SIGKILL, [*command, str(random.randrange(2**32))]),
                    cwd=ROOT,
                    env=environment,
                    stdout=output,
                    stderr=output,
                )
            )
        self._commands.append(command)

    async def kill_one(self) -> None:
        """With -9, one that has recorded something; and start another one like it."""
        running = [one for one in self._processes if one.pid not in self._killed]
        assert all(one.poll() is None for one in running), self.output()
        victim = random.choice(running)
        await until(lambda: self._path(victim).exists(), 30)
        self._killed[victim.pid] = time.monotonic()
        victim.kill()
        victim.wait(10)
        self.run(self._commands[self._processes.index(victim)])

    async def stop(self) -> None:
        """Stop all, and see that none has failed."""
        (self._folder / STOP).touch()
        for process in self._processes:
            code = await asyncio.to_thread(process.wait, 30)
            assert code == (-signal.SIGKILL if process.pid in self._killed else 0), self.output()
        assert self.output() == "", self.output()

    def end(self) -> None:
        """Whatever has happened."""
        for process in self._processes:
            process.kill()
            process.wait(10)

    def output(self) -> str:
        """What all have printed."""
        return "\n".join(path.read_text() for path in self._folder.glob("output-*") if path.stat().st_size)

    def history(self, asked: list[Asked]) -> History:
        """What all have recorded. A process that was killed early has recorded nothing."""
        there = [process for process in self._processes if self._path(process).exists()]
        return History(
            [read(self._path(process)) for process in there],
            [self._killed.get(process.pid) for process in there],
            asked,
        )

    def _path(self, process: subprocess.Popen[bytes]) -> Path:
        return self._folder / f"claims-{process.pid}"


@contextlib.asynccontextmanager
async def claiming(url: str, folder: Path) -> AsyncIterator[Claimers]:
    """Claimers that run."""
    claimers = Claimers(url, folder)
    try:
        for _ in range(CLAIMERS):
            claimers.start()
        yield claimers
    finally:
        claimers.end()
