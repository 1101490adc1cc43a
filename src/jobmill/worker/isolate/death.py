"""Why a process ended: its exit code or signal in words, and whether the system had no memory left."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from msgspec import Struct

_MB = 1_000_000
_RECENT_S = 1.0


class End(Struct, frozen=True):
    """How a process ended: its exit code (negative: the signal), and the most memory that it used, if known."""

    code: int
    max_bytes: int = 0


def max_bytes(ru_maxrss: int) -> int:
    """`ru_maxrss` in bytes: macOS counts bytes, other systems KiB."""
    return ru_maxrss if sys.platform == "darwin" else ru_maxrss * 1024


def signal_group(pid: int, signum: signal.Signals) -> None:
    """Send a signal to a process and its children, unless they have ended."""
    # PermissionError: the answer of macOS for a group whose processes have all ended.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signum)


def how_ended(code: int) -> str:
    """An exit code in words: ended by SIGSEGV, killed by SIGKILL, exited with code 3."""
    if code >= 0:
        return f"exited with code {code}"
    if code == -signal.SIGKILL:
        return "killed by SIGKILL"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


def why_ended(end: End, *, out_of_memory: bool = False) -> str:
    """The error of an attempt whose process ended without an outcome."""
    text = f"process {how_ended(end.code)}"
    if end.code >= 0:
        return f"{text} without an outcome"
    if end.code != -signal.SIGKILL:
        return text
    used = f"it used up to {end.max_bytes // _MB:,} MB" if end.max_bytes else ""
    if out_of_memory:
        return f"{text}: out of memory" + (f" ({used})" if used else "")
    # The system's out-of-memory killer leaves no message, and somebody else may have sent the signal.
    return f"{text} (out of memory?{' ' + used if used else ''})"


class OutOfMemoryKills:
    """The kernel's count of processes that it has killed because memory ran out: of our cgroup, else of the system."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._path = next((path for path in _counters(root) if path.is_file()), None)
        self._recent = 0
        self._recent_until = 0.0

    def count(self) -> int:
        """The count now; 0 if the system has none."""
        if self._path is not None:
            with contextlib.suppress(OSError, ValueError):
                for line in self._path.read_text("ascii").splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        return 0

    def recent_count(self) -> int:
        """The count of up to a second ago: attempts may start thousands of times a second."""
        if (now := time.monotonic()) >= self._recent_until:
            self._recent, self._recent_until = self.count(), now + _RECENT_S
        return self._recent


def _counters(root: Path) -> list[Path]:
    """Files with a line `oom_kill`, the most specific one first."""
    groups, found = root / "sys/fs/cgroup", []
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:  # version 2
                found.append(groups / path.lstrip("/") / "memory.events")
            elif "memory" in controllers.split(","):
                found.append(groups / "memory" / path.lstrip("/") / "memory.oom_control")
                found.append(groups / "memory" / "memory.oom_control")  # as a container sees its own group
    return [*found, root / "proc/vmstat"]
