"""`max_memory`: a worker process that has grown too large stops claiming, finishes its jobs and ends.

`max_jobs` does the same after a number of jobs; the exchanger counts them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from jobmill.errors import InvalidValue

#: How often the memory of the process is measured.
CHECK_S = 5.0
#: No Python process is smaller.
MIN_MEMORY = 1_000_000

#: The exit code of `jobmill worker` that asks for a new process.
RECYCLED = 4

_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "KI": 1024, "MI": 1024**2, "GI": 1024**3}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,3})?) ?([KMG]I?|)B?", re.IGNORECASE)
_STATM = Path("/proc/self/statm")


def to_bytes(value: int | str, field: str) -> int:
    """A size in bytes: a number, or a text such as "512MB" or "1.5GiB"."""
    expected = f'a size of at least {MIN_MEMORY:,} bytes, such as "512MB" or "1GiB"'
    match = _SIZE.fullmatch(str(value)) if not isinstance(value, bool) else None
    size = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if size < MIN_MEMORY:
        raise InvalidValue(field, expected, value)
    if sys.platform != "linux":
        raise InvalidValue(field, "None on this system: only on Linux can a process read its memory usage", value)
    return size


class MemoryLimit:
    """One turn measures the resident memory of this process, without that of processes that it started."""

    def __init__(self, max_bytes: int, recycle: Callable[[str], None]) -> None:
        self._max_bytes = max_bytes
        self._recycle = recycle
        self._is_first = True

    async def turn(self) -> float | None:
        """The first turn only waits, so that a limit that is too small does not start processes without a pause."""
        if not self._is_first and (used := resident_bytes()) > self._max_bytes:
            self._recycle(f"it uses {used / 1e6:,.0f} MB of memory (max_memory: {self._max_bytes / 1e6:,.0f} MB)")
            return None
        self._is_first = False
        return CHECK_S


def resident_bytes() -> int:
    """The resident set size (RSS) of this process."""
    return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
