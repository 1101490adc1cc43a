"""Worker processes for tests: started here, ended here, by their id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.kit.processes import launched

ROOT = Path(__file__).parents[2]


class Note(NamedTuple):
    """A line that a handler wrote: "run" when it began, "end" when it ended."""

    word: str
    id: str
    fence: int
    pid: int


class WorkerProcesses:
    """The processes that work on the jobs at a URL, what they print, and what their handlers noted."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        #: Options of all workers.
        self.options: tuple[str, ...] = ()
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *args: str, source: Path = ROOT / "src") -> subprocess.Popen[bytes]:
        """`jobmill …`, of this source, in a process of its own, which ends with ours; its output goes to a file."""
        log = (self.folder / f"log-{len(self.processes)}").open("wb")
        path = f"{source}{os.pathsep}{ROOT}"
        environment = {**os.environ, "JOBMILL_URL": self.url, "NOTES_DIR": str(self.folder), "PYTHONPATH": path}
        with log:
            command = launched(None, signal.SIGKILL, [sys.executable, "-m", "jobmill", *args])
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def worker(self, *args: str) -> subprocess.Popen[bytes]:
        """A worker of `tests/kit/handlers.py`, with a lease so short that a crash is recovered soon."""
        return self.start("worker", "tests.kit.handlers:jobs", "--lease", "1s", *self.options, *args)

    def running(self) -> list[subprocess.Popen[bytes]]:
        """The processes that have not ended."""
        return [process for process in self.processes if process.poll() is None]

    def output(self, process: subprocess.Popen[bytes]) -> str:
        """What a process has printed so far."""
        return (self.folder / f"log-{self.processes.index(process)}").read_text()

    def notes(self) -> list[Note]:
        """All that handlers noted so far."""
        notes = self.folder / "notes"
        text = notes.read_text() if notes.exists() else ""
        whole, _, _ = text.rpartition("\n")  # a read can see half of the last write
        return [Note(word, id, int(fence), int(pid)) for word, id, fence, pid in map(str.split, whole.splitlines())]

    def end(self) -> None:
        """End the processes that are left, stopped ones too."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(10)
