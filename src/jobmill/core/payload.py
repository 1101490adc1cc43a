"""Payloads as JSON: which values are refused before a write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

from jobmill.errors import InvalidValue, PayloadTooLarge

MAX_DEPTH = 100
MAX_BYTES = 10 * 1024 * 1024

# Larger integers are legal JSON, but hardly any program reads them.
MIN_INT = -(2**63)
MAX_INT = 2**64 - 1

_CONTAINERS = frozenset((dict, list, tuple))


def check_json(value: object, field: str = "payload") -> None:
    """Raise InvalidValue, naming the bad part, unless the value is JSON; lists and tuples are both arrays.

    Types are compared exactly: the caller must convert an Enum or another subclass first. msgspec alone would write NaN
    as null, bytes as base64, sets as arrays, and the key 1 as "1".
    """
    if type(value) not in _CONTAINERS:
        if not _is_scalar(value):
            raise not_json(value, field)
        return
    # One iterator per open container instead of recursion: neither depth nor a cycle can exhaust the stack.
    path: list[str | int] = []
    open_containers = [_entries(value, field, path)]
    items = 0
    while open_containers:
        for key, item in open_containers[-1]:
            items += 1
            if type(item) in _CONTAINERS:
                path.append(key)
                _check_room(items, field, path)
                open_containers.append(_entries(item, field, path))
                break
            if not _is_scalar(item):
                raise not_json(item, part_name(field, [*path, key]))
        else:
            open_containers.pop()
            if path:
                path.pop()


def check_size(*parts: bytes, field: str = "payload") -> None:
    """Raise PayloadTooLarge when the parts together are over the limit."""
    size = sum(map(len, parts))
    if size > MAX_BYTES:
        raise PayloadTooLarge(size, MAX_BYTES, field)


def part_name(field: str, path: Sequence[str | int]) -> str:
    """The name of a part of a value, as in `payload.items[3].x`; the middle of a very long name is left out."""
    text = field + "".join(f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]" for key in path)
    return text if len(text) <= 200 else f"{text[:100]}…{text[-80:]}"


def _entries(container: Any, field: str, path: list[str | int]) -> Iterator[tuple[str | int, object]]:
    if type(container) is not dict:
        return enumerate(container)
    for key in container:
        if type(key) is not str:
            raise InvalidValue(part_name(field, path), "only str as keys", key)
        if not key.isascii() and not _is_unicode(key):
            raise InvalidValue(part_name(field, path), "keys without lone surrogates", key)
    return iter(container.items())


def _check_room(items: int, field: str, path: list[str | int]) -> None:
    if len(path) >= MAX_DEPTH:
        raise InvalidValue(part_name(field, path), f"at most {MAX_DEPTH} levels of nesting and no cycle", len(path) + 1)
    # Lists that contain one list many times can expand to more JSON than fits into memory. An item and its comma take
    # at least two bytes, so that this number of items is over the limit in any case.
    if 2 * items > MAX_BYTES:
        raise PayloadTooLarge(2 * items, MAX_BYTES, field)


def _is_scalar(value: object) -> bool:
    if type(value) is str:
        return value.isascii() or _is_unicode(value)
    if type(value) is int:
        return MIN_INT <= value <= MAX_INT
    if type(value) is float:
        return isfinite(value)
    return value is None or type(value) is bool


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def not_json(value: object, where: str) -> InvalidValue:
    """Why a value that is not a JSON scalar is refused."""
    kind = type(value)
    if kind is str:
        return InvalidValue(where, "text without lone surrogates", value)
    if kind is int:
        return InvalidValue(where, "an integer from -2**63 to 2**64-1", value, "pass larger ones as text")
    if kind is float:
        return InvalidValue(where, "a finite number", value)
    advice = f"{kind.__qualname__} is not JSON"
    return InvalidValue(where, "None, bool, int, float, str, list, tuple or dict", value, advice)
