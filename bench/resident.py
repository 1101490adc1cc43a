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
    process = Path(f"/proc/{pid}")
    own = dict(line.split(":", 1) for line in (process / "status").read_text("utf-8").splitlines())
    children = [child for task in process.glob("task/*/children") for child in task.read_text("utf-8").split()]
    below = [resident(int(child)) for child in children]
    now, most = (int(own[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))  # the kernel says kB
    return Resident(now + sum(one.now for one in below), most + sum(one.most for one in below))
