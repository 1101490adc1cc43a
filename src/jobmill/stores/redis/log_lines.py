"""When log lines were written, by which attempt and with which level: the field `jmt` of a job.

BullMQ keeps the lines as plain texts, and Node reads them as they are. For each report the field has
"ms:number of lines". Before it, "mark:0" has the attempt and the level; older versions read it as the time of no line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from jobmill.core.job import LOG_LEVELS, LogLevel


class Origin(NamedTuple):
    """Where one line comes from. The time is 0 where nothing is known, as for lines of Node."""

    at_ms: int = 0
    attempt: int | None = None
    level: LogLevel = "info"


def origin_mark(attempt: int, level: LogLevel) -> int:
    """The attempt, and the level as the last digit."""
    return attempt * 10 + LOG_LEVELS.index(level)


def line_origins(text: str, lines: int) -> list[Origin]:
    """The origins of the last log lines."""
    known = [origin for origin, number in _reports(text) for _ in range(min(number, lines))]
    return [Origin()] * (lines - len(known)) + known[len(known) - min(lines, len(known)) :]


def _reports(text: str) -> Iterator[tuple[Origin, int]]:
    """The origin and the number of lines of each report, oldest first."""
    attempt, level = None, LOG_LEVELS[1]
    for part in text.split():
        first, _, number = part.partition(":")
        if number == "0":
            attempt, level = int(first) // 10, LOG_LEVELS[int(first) % 10]
        else:
            yield Origin(int(first), attempt, level), int(number)
            attempt, level = None, LOG_LEVELS[1]
