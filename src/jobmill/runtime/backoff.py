"""Backoff: how long a loop waits after an error."""

from __future__ import annotations

from random import Random

FIRST_S = 0.1
LONGEST_S = 5.0


class LoopBackoff:
    """Pauses that double from 0.1 s to 5 s, with jitter, so that many workers do not return at the same moment."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._tries = 0

    def reset(self) -> None:
        """The last attempt succeeded, so the next pause is short again."""
        self._tries = 0

    def next(self) -> float:
        """The number of seconds to wait before the next try."""
        pause: float = min(LONGEST_S, FIRST_S * 2**self._tries)
        self._tries = min(self._tries + 1, 16)
        return pause * (0.5 + self._random.random() / 2)
