"""How much memory a process and those that it started have resident."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

MB = 1 << 20


class Resident(Struct, frozen=True):
    """Bytes: now, and at most so far (the most of each process, added up)."""

    now: int
    most: int


def resident(pid: int) -> Resident:
    """Of this process and of all below it that live."""
    own = _status(pid)
    below = [resident(child) for child in _children(pid)]
    return Resident(
        now=_bytes(own["VmRSS"]) + sum(one.now for one in below),
        most=_bytes(own["VmHWM"]) + sum(one.most for one in below),
    )


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    return {name: value for name, _, value in (line.partition(":") for line in lines)}


def _bytes(value: str) -> int:
    """The kernel says kB and means 1,024."""
    return int(value.split()[0]) * 1024


def _children(pid: int) -> list[int]:
    """Of all its threads."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text("utf-8").split()]
