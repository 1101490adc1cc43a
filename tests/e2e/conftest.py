"""Real processes for end-to-end tests: started here, ended here, by their id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.processes import launched

ROOT = Path(__file__).parents[2]


class Place:
    """A store (a file of its own, unless a URL is given), the notes of all runs, and the processes that work there."""

    def __init__(self, path: Path, url: str | None = None) -> None:
        self.path = path
        self.url = url or f"sqlite:///{path / 'jobs.db'}"
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        """`jobmill …` in a process of its own, which ends with ours; its output goes to a file."""
        log = (self.path / f"log-{len(self.processes)}").open("wb")
        environment = {**os.environ, "JOBMILL_URL": self.url, "E2E_DIR": str(self.path), "PYTHONPATH": str(ROOT)}
        with log:
            command = launched(None, signal.SIGKILL, [sys.executable, "-m", "jobmill", *args])
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def worker(self, *args: str) -> subprocess.Popen[bytes]:
        """A worker with a short lease, so that a crash is recovered soon."""
        return self.start("worker", "tests.e2e.app:jobs", "--lease", "1s", *args)

    def said(self, process: subprocess.Popen[bytes]) -> str:
        """What a process has said so far."""
        return (self.path / f"log-{self.processes.index(process)}").read_text()

    def notes(self) -> list[tuple[str, str, int, int]]:
        """(word, job id, fence, process id) of everything that handlers noted."""
        notes = self.path / "notes"
        text = notes.read_text() if notes.exists() else ""
        whole, _, _ = text.rpartition("\n")  # the last line may still be on its way: a read can see half a write
        return [(word, id, int(fence), int(pid)) for word, id, fence, pid in map(str.split, whole.splitlines())]

    def end(self) -> None:
        """End what is left, stopped ones too."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(10)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.end()
