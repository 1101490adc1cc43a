"""The SQL files beside this module, ready to execute.

A long statement has a file of its own; short ones are in small.sql, each after a line `-- name: NAME`. `{job}` stands
for the expression of job.sql, `{rows of n from ?i}` for one row of n parameters per row of a call, numbered from i on.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

HERE = Path(__file__).parent

# The maximum number of rows in a statement. SQLite prepares and caches one statement for each number of rows.
MAX_ROWS = 100

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_ROWS = re.compile(r"\{rows of (\d+) from \?(\d+)\}")


@functools.cache
def sql(name: str) -> str:
    """A statement by its name, without its comments."""
    text = _small().get(name) or _read(name)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    statement = "\n".join(lines).strip()
    return statement.replace("{job}", sql("job")) if "{job}" in statement else statement


@functools.cache
def sql_rows(name: str, count: int) -> str:
    """A statement about this number of rows."""

    def rows(found: re.Match[str]) -> str:
        width, first = int(found[1]), int(found[2])
        starts = range(first, first + width * count, width)
        return ", ".join("(" + ", ".join(f"?{at + i}" for i in range(width)) + ")" for at in starts)

    return _ROWS.sub(rows, sql(name))


def batches(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Rows in parts that one statement takes."""
    return (rows[first : first + MAX_ROWS] for first in range(0, len(rows), MAX_ROWS))


def flat(first: Iterable[object], rows: Iterable[Sequence[object]]) -> list[object]:
    """The parameters of a statement about many rows: its own, then those of each row."""
    return [*first, *itertools.chain.from_iterable(rows)]


@functools.cache
def _small() -> dict[str, str]:
    parts = _NAME.split(_read("small"))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _read(name: str) -> str:
    return (HERE / "sql" / f"{name}.sql").read_text("utf-8")
