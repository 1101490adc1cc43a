"""The clock of a database server, as this process knows it without asking."""

from __future__ import annotations

import time
from collections.abc import Callable


class ServerClock:
    """A monotonic clock plus the offset of the server's clock, measured whenever the server says its time.

    Monotonic, because setting the clock of this machine must not end leases. A test may pass a `clock` of its own:
    then that is the time, and nothing is measured.
    """

    def __init__(self, clock: Callable[[], int] | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._offset_ms = (time.time() - monotonic()) * 1000

    @property
    def is_given(self) -> bool:
        """Whether the caller passed a clock: then the time is sent with each call, and the server's is not used."""
        return self._clock is not None

    def now(self) -> int:
        """The server's time in milliseconds, as far as it is known."""
        return self._clock() if self._clock else int(self._monotonic() * 1000 + self._offset_ms)

    def given_ms(self) -> int | None:
        """The time of the clock that was passed in; None where the server's own clock applies."""
        return self._clock() if self._clock else None

    def start(self) -> float:
        """Call this before asking the server, and give the answer to `learn`."""
        return self._monotonic()

    def learn(self, server_ms: float, started: float) -> None:
        """The response to a call that began at `started` contained the time of the server."""
        # It read its clock at some moment between call and answer, so a slow answer narrows the offset only a little.
        lowest, highest = server_ms - self._monotonic() * 1000, server_ms - started * 1000
        self._offset_ms = min(max(self._offset_ms, lowest), highest)
