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
        self._chance = b""
        # A child that went on with its parent's chance would make its parent's ids.
        os.register_at_fork(after_in_child=self._forget)

    def new(self) -> str:
        """A fresh one."""
        with self._lock:
            # Asked for in advance: measured, the system's call took half of the time that an id took.
            if not self._chance:
                self._chance = os.urandom(10 * _IN_ADVANCE)
            ten, self._chance = self._chance[:10], self._chance[10:]
            # 48 bits of milliseconds and 74 of chance; the six bits of version and variant are put between them below.
            fresh = (time.time_ns() // 1_000_000 << 74) | int.from_bytes(ten, "big") >> 6
            # Within one millisecond, or when the clock steps back, go on from the last one.
            self._last = value = fresh if fresh > self._last else self._last + 1 + (fresh & 0xFFFF_FFFF)
        high, middle, low = value >> 74, value >> 62 & 0xFFF, value & (1 << 62) - 1
        text = f"{high << 80 | _VERSION | middle << 64 | _VARIANT | low:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def _forget(self) -> None:
        # Another thread, which is not here, may have held it.
        self._lock = threading.Lock()
        self._chance = b""


new_id = Ids().new
