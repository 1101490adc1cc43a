"""Hints: where claims of this process have got to, so that the next one need not begin at the start.

Behind the last claimed job of a line (a queue, name and priority) everything is running, settled, somebody else's, or
was committed late. A hint that is wrong costs time, never a job:

- claims return to the start at once when the server says that a job was put behind (`rewinds`);
- under load, when claims come back full, every second, or up to every five where the way is long;
- otherwise each time, unless the way is long. Nobody goes to sleep over a look that did not begin at the start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from jobmill.core.values import Claim

Place = tuple[int, int]  # due_ms, seq

MOST_PRIORITY = 2**31 - 1
RETURN_SECONDS = 1.0
RETURN_AT_LATEST_SECONDS = 5.0
# What returns may take of the time: a fiftieth under load, a fifth where others wait for what they find.
_SHARE = 50
_SHARE_WHEN_SHORT = 5
# A way of so few pages of the index is no way.
SHORT_WAY = 100


class Asked:
    """The hints that one exchange was sent with."""

    __slots__ = ("began", "generation", "has_lines", "is_return", "parameters")

    def __init__(self, generation: int, began: float, is_return: bool, parameters: tuple[Any, ...]) -> None:
        self.generation = generation
        self.began = began
        self.is_return = is_return
        self.parameters = parameters
        #: Whether it begins anywhere but at the start; parameters are the rewinds, then columns of lines, then of gaps.
        self.has_lines = bool(parameters[1])


class Hints:
    """What is known of the lines that were claimed from."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lines: dict[tuple[str, str], dict[int, Place]] = {}
        self._rewound = -1
        self._generation = 0
        self._returned = monotonic()
        # Of the last return: how long it took, and how many pages it read. Of the last claim: whether it was full.
        self._took = 0.0
        self._pages = 0
        self._was_full = False

    def ask(self, claim: Claim) -> Asked:
        """The parameters rewound, line_* and gap_* of an exchange with this claim."""
        now = self._monotonic()
        is_return = now >= self._returned + self._pause()
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

    def _pause(self) -> float:
        """How long after a return the next one is due, in seconds."""
        if self._was_full:
            return min(RETURN_AT_LATEST_SECONDS, max(RETURN_SECONDS, _SHARE * self._took))
        return 0.0 if self._pages <= SHORT_WAY else min(RETURN_AT_LATEST_SECONDS, _SHARE_WHEN_SHORT * self._took)

    def look_again_ms(self, asked: Asked) -> int | None:
        """When to look again, from now, after a claim that may have missed something; None where it cannot have."""
        if self._was_full or asked.is_return or not asked.has_lines:
            return None
        return max(0, round(1000 * (self._returned + self._pause() - self._monotonic())))

    def learn(
        self,
        asked: Asked,
        claimed: Sequence[tuple[str, str, int, int, int]],
        rewinds: int,
        *,
        pages: int,
        full: bool,
        passed: bool,
    ) -> None:
        """What an exchange claimed: queue, name, priority, due_ms and seq of each job; and if that was all it could.

        `passed`: it had to leave jobs behind that it settled itself, and nothing is known of the lines.
        """
        self._was_full = full
        if asked.is_return:
            self._took = self._monotonic() - asked.began
            self._pages = pages
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
