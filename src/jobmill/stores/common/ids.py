"""Fresh ids for stores that have none of their own: uuid7, so that later ids sort later."""

from __future__ import annotations

import os
import threading
import time

_VERSION = 0x7 << 76
_VARIANT = 0x2 << 62
_IN_ADVANCE = 50


class Ids:
    """Makes uuid7s as text, strictly increasing within this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._random = b""
        # A forked child must not use its parent's random bytes: it would make its parent's ids.
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self._forget)

    def new(self) -> str:
        """A fresh id: 48 bits of milliseconds and 74 random bits, with the six bits of version and variant in between.

        Random bytes are read in advance: measured, the system call took half of the time of an id. Within one
        millisecond, or when the clock steps back, ids continue from the last one.
        """
        with self._lock:
            if not self._random:
                self._random = os.urandom(10 * _IN_ADVANCE)
            ten, self._random = self._random[:10], self._random[10:]
            fresh = (time.time_ns() // 1_000_000 << 74) | int.from_bytes(ten, "big") >> 6
            self._last = value = fresh if fresh > self._last else self._last + 1 + (fresh & 0xFFFF_FFFF)
        high, middle, low = value >> 74, value >> 62 & 0xFFF, value & (1 << 62) - 1
        text = f"{high << 80 | _VERSION | middle << 64 | _VARIANT | low:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def _forget(self) -> None:
        # A thread of the parent, which does not exist here, may have held the lock.
        self._lock = threading.Lock()
        self._random = b""


new_id = Ids().new
