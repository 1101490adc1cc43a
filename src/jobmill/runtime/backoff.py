"""Backoff: how long a loop waits after an error."""

from __future__ import annotations

from random import Random


class Backing:
    """Pauses that double from 0.1 s to 5 s, with jitter, so that many workers do not come back in one moment."""

    def __init__(self, random: Random, least: float = 0.1, most: float = 5.0) -> None:
        self._random = random
        self._least = least
        self._most = most
        self._tries = 0

    def reset(self) -> None:
        """It went well."""
        self._tries = 0

    def next(self) -> float:
        """How long to wait now."""
        pause: float = min(self._most, self._least * 2**self._tries)
        self._tries = min(self._tries + 1, 16)
        return pause * (0.5 + self._random.random() / 2)
