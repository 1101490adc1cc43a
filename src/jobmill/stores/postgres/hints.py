"""Hints: where claims of this process have got to, so that the next one need not begin at the start.

Behind the last claimed job of a line (a queue, name and priority) everything is running, settled, or somebody else's. A
hint that is wrong costs time, never a job: claims return to the start every second (every five where that is dear),
and at once when the server says that a job was put behind (`rewinds`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from jobmill.core.changes import Claim

Place = tuple[int, int]  # due_ms, seq

MOST_PRIORITY = 2**31 - 1
RETURN_SECONDS = 1.0
RETURN_AT_LATEST_SECONDS = 5.0
# A return may take a fiftieth of the time.
_SHARE = 50


class Asked:
    """The hints that one exchange was sent with."""

    __slots__ = ("began", "generation", "is_return", "parameters")

    def __init__(self, generation: int, began: float, is_return: bool, parameters: tuple[object, ...]) -> None:
        self.generation = generation
        self.began = began
        self.is_return = is_return
        self.parameters = parameters


class Hints:
    """What is known of the lines that were claimed from."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lines: dict[tuple[str, str], dict[int, Place]] = {}
        self._rewound = -1
        self._generation = 0
        self._returned = monotonic()
        self._return_after = RETURN_SECONDS

    def ask(self, claim: Claim) -> Asked:
        """The parameters rewound, line_* and gap_* of an exchange with this claim."""
        now = self._monotonic()
        is_return = now >= self._returned + self._return_after
        if is_return:
            self._forget()
            self._returned = now
        lines: list[tuple[str, str, int, int, int]] = []
        gaps: list[tuple[str, str, int, int]] = []
        for queue in claim.queues:
            for name in claim.names:
                above = -1
                for priority, (due_ms, seq) in sorted(self._lines.get((queue, name), {}).items()):
                    lines.append((queue, name, priority, due_ms, seq))
                    if priority > above + 1:
                        gaps.append((queue, name, above, priority))
                    above = priority
                gaps.append((queue, name, above, MOST_PRIORITY))
        parameters = (self._rewound, *_columns(lines, 5), *_columns(gaps, 4))
        return Asked(self._generation, now, is_return, parameters)

    def learn(
        self, asked: Asked, claimed: Iterable[tuple[str, str, int, int, int]], rewinds: int, *, passed: bool
    ) -> None:
        """What an exchange claimed: queue, name, priority, due_ms and seq of each job.

        `passed`: it had to leave jobs behind that it settled itself, and nothing is known of the lines.
        """
        if asked.is_return:
            took = self._monotonic() - asked.began
            self._return_after = min(RETURN_AT_LATEST_SECONDS, max(RETURN_SECONDS, _SHARE * took))
        if rewinds != self._rewound:
            self._forget()
            self._rewound = rewinds
            is_fresh = True
        else:
            # What was sent before the last return to the start may have jumped over what the return is for.
            is_fresh = asked.generation == self._generation
        if passed:
            self._forget()
        if passed or not is_fresh:
            return
        for queue, name, priority, due_ms, seq in claimed:
            line = self._lines.setdefault((queue, name), {})
            line[priority] = max(line.get(priority, (due_ms, seq)), (due_ms, seq))

    def _forget(self) -> None:
        self._lines.clear()
        self._generation += 1


def _columns(rows: Sequence[tuple[object, ...]], width: int) -> list[list[object]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
