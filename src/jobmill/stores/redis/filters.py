"""A filter as the scripts take it: ranges of sorted sets, and tests of single fields of a job (match.lua)."""

from __future__ import annotations

import re
from typing import Any

from jobmill.core.values import Filter
from jobmill.stores.redis.context import as_json

# A text that every program writes in the same way in JSON.
_SIMPLE = re.compile(r"[\w .:@+-]*", re.ASCII)


def scores(filter: Filter) -> dict[str, tuple[str, str]] | None:
    """The ranges of sorted sets that a filter by time selects. As text: Lua writes long numbers inexactly."""

    def bounds(after_ms: int | None, before_ms: int | None, factor: int = 1) -> tuple[str, str] | None:
        if after_ms is None and before_ms is None:
            return None
        return "" if after_ms is None else str(after_ms * factor), "" if before_ms is None else str(before_ms * factor)

    final = bounds(filter.finished_after_ms, filter.finished_before_ms)
    found = {"delayed": bounds(filter.due_after_ms, filter.due_before_ms, 4096), "completed": final}
    found |= {"failed": final, "jobmill:cancelled": final}
    return {name: range for name, range in found.items() if range is not None} or None


def tests(filter: Filter) -> dict[str, Any]:
    """What match.lua tests. It may find too many jobs, never too few."""

    def bounds(after_ms: int | None, before_ms: int | None) -> tuple[int | str, int | str] | None:
        if after_ms is None and before_ms is None:
            return None
        return "" if after_ms is None else after_ms, "" if before_ms is None else before_ms

    made = {
        "name": filter.name,
        "prefix": filter.name_prefix or None,
        "lane": filter.lane,
        "recurring": filter.recurring,
        "errored": filter.errored,
        "tenant": None if filter.tenant is None else as_json(filter.tenant),
        "error": None if filter.error_type is None else as_json(filter.error_type),
        "fields": None if filter.payload is None else _texts(filter.payload),
        "created": bounds(filter.created_after_ms, filter.created_before_ms),
        "due": bounds(filter.due_after_ms, filter.due_before_ms),
    }
    return {name: value for name, value in made.items() if value is not None}


def _texts(payload: dict[str, Any]) -> list[str]:
    """Texts that are in every payload with these fields, unless JSON writes them in another form."""
    texts = [f'"{field}"' for field in payload if _SIMPLE.fullmatch(field)]
    for value in payload.values():
        if isinstance(value, str) and _SIMPLE.fullmatch(value):
            texts.append(f'"{value}"')
        elif value is None or isinstance(value, bool) or (isinstance(value, int) and 0 < abs(value) < 10**15):
            texts.append(as_json(value))
    return texts
