"""Filters: which jobs a query or a change selects, as users write it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from jobmill.core import limits
from jobmill.core.durations import instant_ms
from jobmill.core.job import State
from jobmill.core.values import Filter
from jobmill.errors import InvalidValue


class FilterOptions(TypedDict, total=False):
    """Every option that is given must match; `after` is inclusive, `before` exclusive."""

    queue: str | None
    name: str | None
    states: State | Sequence[State] | None
    tenant: str | None
    lane: str | None
    unique_key: str | None
    flow: str | None
    name_prefix: str | None
    error_type: str | None
    held: bool | None
    recurring: bool | None
    errored: bool | None
    payload: dict[str, Any] | None
    created_after: datetime | None
    created_before: datetime | None
    due_after: datetime | None
    due_before: datetime | None
    finished_after: datetime | None
    finished_before: datetime | None


def make_filter(given: FilterOptions | dict[str, Any]) -> Filter:
    """A validated filter."""
    made: dict[str, Any] = {}
    value: Any
    for field, value in given.items():
        if value is None:
            continue
        if field not in FilterOptions.__annotations__:
            raise InvalidValue(field, "one of the filters " + ", ".join(FilterOptions.__annotations__), field)
        if field == "states":
            several = [value] if isinstance(value, str) or not isinstance(value, Iterable) else value
            made[field] = tuple(limits.check_state(state) for state in several)
        elif field.endswith(("_after", "_before")):
            made[f"{field}_ms"] = instant_ms(value, field)
        elif field in ("held", "recurring", "errored"):
            made[field] = limits.check_bool(value, field)
        elif field == "payload":
            made[field] = _payload(value)
        elif isinstance(value, str) and limits.storable(value) == value:
            made[field] = value
        else:
            raise InvalidValue(field, "a text of UTF-8 without NUL", value)
    return Filter(**made)


def _payload(wanted: Any) -> dict[str, Any]:
    """Fields of the payload and their values."""
    plain = (str, int, float, bool, type(None))
    is_known = isinstance(wanted, dict) and all(isinstance(value, plain) for value in wanted.values())
    if not is_known or not wanted or not all(isinstance(field, str) for field in wanted):
        raise InvalidValue("payload", "a dict of fields and their values: texts, numbers, booleans or None", wanted)
    return dict(wanted)


def shown_filter(wanted: Filter) -> dict[str, Any]:
    """The fields of a filter that are set, as JSON-ready values."""
    return {field: value for field, value in msgspec.to_builtins(wanted).items() if value not in (None, False)}
