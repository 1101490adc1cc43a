"""The SQL files beside this module, ready to execute.

`{job}` in a file stands for the expression of job.sql, `{rows of n from ?i}` for as many rows of n parameters as a call
has, numbered from i on.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

HERE = Path(__file__).parent

# Rows of one statement. Each number of rows is a statement of its own to prepare and keep, so there is an end to them.
ROWS_AT_ONCE = 100

_ROWS = re.compile(r"\{rows of (\d+) from \?(\d+)\}")


@functools.cache
def sql(name: str) -> str:
    """The statement of sql/<name>.sql, without its comments."""
    text = (HERE / "sql" / f"{name}.sql").read_text("utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    statement = "\n".join(lines).strip()
    return statement.replace("{job}", sql("job")) if "{job}" in statement else statement


@functools.cache
def sql_rows(name: str, count: int) -> str:
    """The same for a statement about many rows."""

    def rows(found: re.Match[str]) -> str:
        width, first = int(found[1]), int(found[2])
        starts = range(first, first + width * count, width)
        return ", ".join("(" + ", ".join(f"?{at + i}" for i in range(width)) + ")" for at in starts)

    return _ROWS.sub(rows, sql(name))


def batches(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Rows in portions that one statement takes."""
    if len(rows) <= ROWS_AT_ONCE:
        return iter((rows,)) if rows else iter(())
    return (rows[first : first + ROWS_AT_ONCE] for first in range(0, len(rows), ROWS_AT_ONCE))


def flat(first: Iterable[object], rows: Iterable[Sequence[object]]) -> list[object]:
    """The parameters of a statement about many rows: its own, then those of each row."""
    parameters = list(first)
    for row in rows:
        parameters += row
    return parameters
