"""A lock between test processes that most tests hold together, and a test that measures time holds alone."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


class Turns:
    """Files of a folder are the lock: it ends with the process that holds it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._gate = (folder / "gate").open("w")
        self._turn = (folder / "turn").open("w")

    @contextlib.contextmanager
    def held(self, *, alone: bool) -> Iterator[None]:
        """Block until nobody else holds it, or nobody holds it alone.

        A process that waits to be alone keeps the gate, so that no other test begins meanwhile.
        """
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        fcntl.flock(self._turn, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(self._gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the files back."""
        self._gate.close()
        self._turn.close()
