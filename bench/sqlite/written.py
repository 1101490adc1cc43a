"""What a run on SQLite writes to the disk: the pages of its process, and of the checkpoint that it left undone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.ground import Unmetered, Written
from bench.lab import Lab
from bench.sqlite.files import checkpoint

PROBE_BYTES = 1 << 20


@contextmanager
def written(lab: Lab) -> Iterator[Written]:
    """By what the kernel counts for a process. At each look the harness itself brings the log into the file.

    So each run pays for all its pages, the log's and the file's, whenever its own checkpoints come.
    """
    lab.prepared("probe", _probe)
    by_us = 0

    def told(url: str, pid: int) -> int:
        nonlocal by_us
        before = _write_bytes(os.getpid())
        checkpoint(url)
        by_us += _write_bytes(os.getpid()) - before
        return _write_bytes(pid) + by_us

    yield told


def _probe(path: Path) -> None:
    """Whether anything is counted at this place."""
    try:
        before = _write_bytes(os.getpid())
        with path.open("wb") as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
        if _write_bytes(os.getpid()) - before >= PROBE_BYTES:
            return
    except OSError as error:
        raise Unmetered(f"the system does not say what a process writes ({error})") from error
    raise Unmetered("the files lie in memory, where nothing is written to a disk; --dir names another place")


def _write_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text("utf-8").splitlines()
    return int(dict(line.split(": ") for line in lines)["write_bytes"])
