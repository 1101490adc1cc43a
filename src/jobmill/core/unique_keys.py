"""Dedupe keys: equal payloads give equal keys, byte for byte what JavaScript prints for them with sorted keys."""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any

from jobmill.core.limits import check_unique_key
from jobmill.core.payload import MAX_DEPTH, not_json, part_name
from jobmill.errors import InvalidValue

Path = tuple[str | int, ...]

_SURROGATE = re.compile("[\ud800-\udfff]")


def dedupe_key(name: str, tenant: str | None, payload: object) -> str:
    """`name::tenant::payload`, with "global" for no tenant; `storable_key` turns it into a unique key."""
    return f"{name}::{'global' if tenant is None else tenant}::{stable_json(payload)}"


def storable_key(key: str) -> str:
    """A dedupe key as every store can hold it: itself, or its hash where it breaks the rules for unique keys."""
    try:
        return check_unique_key(key)
    except InvalidValue:
        return f"sha256:{key_hash(key)}"


def key_hash(key: str) -> str:
    """The SHA-256 of a key in hex: short enough for any index."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def stable_json(value: object) -> str:
    """The output of `JSON.stringify` with sorted keys at every level; InvalidValue for what is not JSON."""
    return _printed(value, ())


def _printed(value: object, path: Path) -> str:
    if value is None:
        return "null"
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is str:
        return _text(_utf16(value))
    if type(value) is int or type(value) is float:
        return _number(value, path)
    if len(path) >= MAX_DEPTH and type(value) in (dict, list, tuple):
        raise InvalidValue(
            part_name("payload", path), f"at most {MAX_DEPTH} levels of nesting and no cycle", len(path) + 1
        )
    if type(value) is list or type(value) is tuple:
        return f"[{','.join(_printed(item, (*path, n)) for n, item in enumerate(value))}]"
    if type(value) is dict:
        return _object(value, path)
    raise not_json(value, part_name("payload", path))


def _object(value: dict[Any, object], path: Path) -> str:
    for key in value:
        if type(key) is not str:
            raise InvalidValue(part_name("payload", path), "only str as keys", key)
    entries = {_utf16(key): item for key, item in value.items()}
    # Big-endian bytes sort like the code units that JavaScript compares: U+1F600 (d83d de00) before U+FFFD.
    keys = sorted(entries, key=lambda key: key.encode("utf-16-be", "surrogatepass"))
    return "{" + ",".join(f"{_text(key)}:{_printed(entries[key], (*path, key))}" for key in keys) + "}"


def _utf16(text: str) -> str:
    """The text as JavaScript holds it, where a matching pair of surrogates is one character."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _text(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)


def _number(value: float, path: Path) -> str:
    """JavaScript's Number::toString: every number is a double, shown with the fewest digits that identify it."""
    try:
        double = float(value)
    except OverflowError:
        double = math.inf
    if not math.isfinite(double):
        raise InvalidValue(part_name("payload", path), "a finite number in the range of a double", value)
    if double == 0:
        return "0"
    sign = "-" if double < 0 else ""
    digits, point = _digits(abs(double))
    return sign + _laid_out(digits, point)


def _digits(double: float) -> tuple[str, int]:
    """The significant digits, and the position of the decimal point, counted from before the first digit."""
    # Python and JavaScript choose the same digits and differ only in the layout.
    mantissa, _, exponent = repr(double).partition("e")
    whole, _, fraction = mantissa.partition(".")
    point = len(whole) + int(exponent or 0)
    digits = whole + fraction
    leading = len(digits) - len(digits.lstrip("0"))
    return digits.strip("0"), point - leading


def _laid_out(digits: str, point: int) -> str:
    if len(digits) <= point <= 21:
        return digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    mantissa = digits if len(digits) == 1 else f"{digits[0]}.{digits[1:]}"
    return f"{mantissa}e{point - 1:+d}"
