"""What the stores on SQL databases share: files with statements, migrations, filters as conditions, quoted names.

A long statement has a file of its own. Short statements are together in small.sql, each after a line `-- name: x`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from jobmill.core.values import Filter
from jobmill.errors import SchemaTooNew

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)

#: By the name of an extension: what renews it after a migration, on the migration's connection, for a schema.
renewals: dict[str, Callable[[Any, str], Awaitable[None]]] = {}

#: Fields of Job whose columns have other names.
COLUMN_OF = {"result_json": "result", "occurrence_ms": "slot_ms", "deferred_error": "doomed"}

_CONDITIONS = {
    "queue": "jobs.queue = {}",
    "name": "jobs.name = {}",
    "tenant": "jobs.tenant = {}",
    "unique_key": "jobs.unique_key = {}",
    "flow": "jobs.flow = {}",
    "lane": "jobs.lane = {}",
    "created_after_ms": "jobs.created_ms >= {}",
    "created_before_ms": "jobs.created_ms < {}",
    "due_after_ms": "jobs.due_ms >= {}",
    "due_before_ms": "jobs.due_ms < {}",
    "finished_after_ms": "jobs.finished_ms >= {}",
    "finished_before_ms": "jobs.finished_ms < {}",
}


@functools.cache
def statements_in(folder: Path) -> dict[str, str]:
    """All statements of a folder by their names, with their comments."""
    texts = {file.stem: file.read_text("utf-8") for file in folder.glob("*.sql")}
    parts = _NAME.split(texts.pop("small"))
    return texts | dict(zip(parts[1::2], parts[2::2], strict=True))


def without_comments(text: str) -> str:
    """A statement without the lines that are comments."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--")).strip()


def migrations_in(folder: Path) -> dict[int, Path]:
    """The files of all migrations that this Jobmill knows, by their numbers, in order."""
    return {int(file.name[:4]): file for file in sorted(folder.glob("[0-9]*.sql"))}


def refuse_newer(what: str, applied: Collection[int], known: Collection[int]) -> None:
    """Raise SchemaTooNew where a database has a migration that is newer than all known ones."""
    if applied and max(applied) > max(known):
        raise SchemaTooNew(
            f"{what} was written by a newer Jobmill (schema {max(applied)}, this one knows {max(known)}); "
            "update Jobmill; nothing was changed"
        )


def conditions_of(filter: Filter) -> Iterator[tuple[str, object]]:
    """Each given field of a filter as a condition, with {} for its parameter, and the value; without the states."""
    for field, condition in _CONDITIONS.items():
        value = getattr(filter, field)
        if value is not None:
            yield condition, value


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as SQL writes it, for any setting of standard_conforming_strings."""
    escaped = text.replace("'", "''")
    return f"'{escaped}'" if "\\" not in text else "E'" + escaped.replace("\\", "\\\\") + "'"
