"""Values that JSON does not have (datetimes, decimals, UUIDs, bytes), in JSON as Celery's kombu writes them."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from jobmill.core.payload import MAX_DEPTH
from jobmill.errors import InvalidValue

# datetime before date, because it is a date.
_ENCODERS: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (datetime, "datetime", lambda value: value.isoformat()),
    (date, "date", lambda value: value.isoformat()),
    (time, "time", lambda value: value.isoformat()),
    (Decimal, "decimal", str),
    (uuid.UUID, "uuid", lambda value: {"hex": value.hex}),
    (bytes, "base64", lambda value: base64.b64encode(value).decode()),
)
_DECODERS: dict[str, Callable[[Any], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": lambda value: datetime.fromisoformat(value).date(),
    "time": time.fromisoformat,
    "decimal": Decimal,
    "uuid": lambda value: uuid.UUID(hex=value["hex"]),
    "bytes": lambda value: value.encode(),
    "base64": lambda value: base64.b64decode(value, validate=True),
}


def to_tagged(value: Any, depth: int = 0) -> Any:
    """The value with a tag, such as {"__type__": "date", …}, in place of each value that is not JSON but known."""
    _check_depth(depth)
    if type(value) is dict:
        return {key: to_tagged(item, depth + 1) for key, item in value.items()}
    if type(value) in (list, tuple):
        return [to_tagged(item, depth + 1) for item in value]
    for kind, tag, encode in _ENCODERS:
        if isinstance(value, kind):
            return {"__type__": tag, "__value__": encode(value)}
    return value


def from_tagged(value: Any, depth: int = 0) -> Any:
    """The value that was tagged; InvalidValue for an unknown tag, or one whose value does not fit."""
    _check_depth(depth)
    if isinstance(value, list | tuple):
        return [from_tagged(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {"__type__", "__value__"}:
        return {key: from_tagged(item, depth + 1) for key, item in value.items()}
    tag = value["__type__"]
    try:
        return _DECODERS[tag](value["__value__"])
    except (LookupError, ValueError, ArithmeticError, TypeError, AttributeError):
        known = ", ".join(_DECODERS)
        raise InvalidValue("__type__", f"one of {known}, with a value that fits", tag) from None


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidValue("arguments", f"at most {MAX_DEPTH} levels of nesting", f"more than {MAX_DEPTH}")
