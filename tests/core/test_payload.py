"""Payloads: what is JSON survives, what is not is refused with its place, whatever its shape."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import uuid
from collections import OrderedDict
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmill.core.payload import MAX_BYTES, MAX_DEPTH, check_json, check_size
from jobmill.errors import InvalidValue, PayloadTooLarge


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


class Text(str):
    pass


class Model(msgspec.Struct):
    x: int


@dataclasses.dataclass
class Record:
    x: int


def nested(depth: int, kind: type = list) -> Any:
    value: Any = {} if kind is dict else kind()
    for _ in range(depth - 1):
        value = {"k": value} if kind is dict else kind([value])
    return value


def cyclic_list() -> list[Any]:
    value: list[Any] = [1]
    value.append(value)
    return value


def cyclic_dict() -> dict[str, Any]:
    value: dict[str, Any] = {"a": [1]}
    value["a"].append({"b": value})
    return value


ACCEPTED: list[Any] = [
    None,
    True,
    0,
    -(2**63),
    2**64 - 1,
    1.5,
    -0.0,
    5e-324,
    1.7976931348623157e308,
    "",
    "\x00\x1f\x7f\u2028",
    "é 😀 \U0010ffff",
    [],
    {},
    {"": {"é": [None, True, {"x": 1.0}]}},
    nested(MAX_DEPTH),
    nested(MAX_DEPTH, dict),
    [[1, 2], [1, 2]],
]

NOT_JSON = "expected None, bool, int, float, str, list, tuple or dict, got "
RANGE = "expected an integer from -2**63 to 2**64-1, got "

REFUSED: list[tuple[Any, str]] = [
    (float("nan"), "payload: expected a finite number, got nan"),
    ({"x": float("inf")}, "payload.x: expected a finite number, got inf"),
    ([0, -float("inf")], "payload[1]: expected a finite number, got -inf"),
    ({"items": [1, 2, 3, {"x": b"a"}]}, f"payload.items[3].x: {NOT_JSON}b'a'; bytes is not JSON"),
    ({"a b": {"0": {1}}}, f"payload['a b']['0']: {NOT_JSON}{{1}}; set is not JSON"),
    (([], (b"",)), f"payload[1][0]: {NOT_JSON}b''"),
    (bytearray(b"x"), f"payload: {NOT_JSON}bytearray"),
    (memoryview(b"x"), f"payload: {NOT_JSON}"),
    (frozenset([1]), f"payload: {NOT_JSON}frozenset"),
    (object, f"payload: {NOT_JSON}"),
    (range(3), f"payload: {NOT_JSON}range(0, 3)"),
    (1j, f"payload: {NOT_JSON}1j"),
    (datetime.datetime(2024, 1, 1), f"payload: {NOT_JSON}datetime.datetime(2024"),
    (datetime.date(2024, 1, 1), f"payload: {NOT_JSON}datetime.date(2024"),
    (datetime.timedelta(1), f"payload: {NOT_JSON}datetime.timedelta"),
    (uuid.UUID(int=0), f"payload: {NOT_JSON}UUID"),
    (decimal.Decimal("1.5"), f"payload: {NOT_JSON}Decimal('1.5')"),
    (Colour.RED, f"payload: {NOT_JSON}<Colour.RED"),
    (Level.LOW, f"payload: {NOT_JSON}<Level.LOW"),
    (Word.YES, f"payload: {NOT_JSON}<Word.YES"),
    (Text("x"), f"payload: {NOT_JSON}'x'; Text is not JSON"),
    (OrderedDict(a=1), f"payload: {NOT_JSON}OrderedDict"),
    (Model(1), f"payload: {NOT_JSON}Model(x=1)"),
    (Record(1), f"payload: {NOT_JSON}Record(x=1)"),
    (msgspec.UNSET, f"payload: {NOT_JSON}UNSET"),
    (msgspec.Raw(b"NaN"), f"payload: {NOT_JSON}"),
    (2**64, f"payload: {RANGE}18446744073709551616; pass larger ones as text"),
    ([-(2**63) - 1], f"payload[0]: {RANGE}-9223372036854775809"),
    (10**5_000, f"payload: {RANGE}<int>"),
    ({1: 2}, "payload: expected only str as keys, got 1"),
    ({"a": {None: 2}}, "payload.a: expected only str as keys, got None"),
    ({"a": [{True: 2}]}, "payload.a[0]: expected only str as keys, got True"),
    ({Text("k"): 2}, "payload: expected only str as keys, got 'k'"),
    ({("a",): 2}, "payload: expected only str as keys, got ('a',)"),
    ("\ud800", r"payload: expected text without lone surrogates, got '\ud800'"),
    ("\ud83d\ude00", "payload: expected text without lone surrogates"),
    ({"x": ["é\udfff"]}, r"payload.x[0]: expected text without lone surrogates, got 'é\udfff'"),
    ({"x": {"\udc00": 1}}, r"payload.x: expected keys without lone surrogates, got '\udc00'"),
    (nested(MAX_DEPTH + 1), "payload[0][0]"),
    (nested(MAX_DEPTH + 1, dict), "payload.k.k"),
    (nested(100_000, tuple), "payload[0][0]"),
    (cyclic_list(), "payload[1][1]"),
    (cyclic_dict(), "payload.a[1].b.a[1].b"),
]


def encode(value: object, field: str = "payload") -> bytes:
    """As a client encodes a payload of plain values."""
    check_json(value, field)
    return msgspec.json.encode(value)


@pytest.mark.parametrize("value", ACCEPTED, ids=lambda value: repr(value)[:30])
def test_json_is_accepted_and_survives(value: Any) -> None:
    check_json(value)
    assert msgspec.json.decode(encode(value)) == value


def test_tuples_become_arrays() -> None:
    assert encode({"a": (1, (2,))}) == b'{"a":[1,[2]]}'


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=[message[:50] for _, message in REFUSED])
def test_everything_else_is_refused_with_its_place(value: Any, message: str) -> None:
    for refuse in (check_json, encode):
        with pytest.raises(InvalidValue) as caught:
            refuse(value)
        assert str(caught.value).startswith(message)


@pytest.mark.parametrize("value", [nested(MAX_DEPTH + 1), nested(50_000, dict), cyclic_list(), cyclic_dict()])
def test_depth_and_cycles_say_so_in_a_short_message(value: Any) -> None:
    with pytest.raises(InvalidValue, match=r"expected at most 100 levels of nesting and no cycle, got 101$") as caught:
        check_json(value)
    assert len(str(caught.value)) < 300


def test_the_field_is_the_root_of_the_place() -> None:
    with pytest.raises(InvalidValue, match=r"^result\.a: ") as caught:
        encode({"a": b""}, "result")
    assert caught.value.field == "result.a"
    assert caught.value.given == b""


def test_a_long_key_does_not_make_a_long_message() -> None:
    with pytest.raises(InvalidValue) as caught:
        check_json({"k" * 100_000: b"x" * 100_000})
    assert len(str(caught.value)) < 500


def test_a_value_shared_many_times_over_is_refused_before_it_fills_the_memory() -> None:
    shared: list[Any] = [0] * 5_000
    for _ in range(20):
        shared = [shared] * 5_000
    with pytest.raises(PayloadTooLarge):
        encode(shared)


def test_the_size_limit_counts_all_parts() -> None:
    check_size()
    check_size(b"x" * MAX_BYTES)
    check_size(b"x" * (MAX_BYTES - 5), b"y" * 5)
    with pytest.raises(PayloadTooLarge, match=r"size 10\.0 MB exceeds limit of 10\.0 MB") as caught:
        check_size(b"x" * (MAX_BYTES - 5), b"y" * 5, b"z")
    assert caught.value.size == MAX_BYTES + 1
    assert caught.value.limit == MAX_BYTES


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4))

BAD_SCALARS = (
    st.sampled_from([float("nan"), float("inf"), "\ud800", b"", {1}, 2**64, -(2**63) - 1, Level.LOW])
    | st.binary(max_size=3)
    | st.datetimes()
    | st.decimals()
    | st.uuids()
)
STEPS = st.lists(st.integers(0, 3) | TEXT, max_size=150)


@given(JSON)
def test_whatever_is_accepted_survives(value: Any) -> None:
    back = msgspec.json.decode(encode(value))
    assert back == value
    # Equality alone would let 1, 1.0 and True pass for each other.
    assert repr(back) == repr(value)


@given(STEPS, BAD_SCALARS)
def test_a_bad_part_is_refused_however_deep(steps: list[int | str], bad: Any) -> None:
    value = bad
    for step in reversed(steps):
        value = {"ok": 1, step: value} if isinstance(step, str) else [*range(step), value]
    with pytest.raises(InvalidValue):
        encode(value)


ANYTHING = st.recursive(
    SCALARS | BAD_SCALARS | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.none(), inner, max_size=4)
    ),
)


@given(ANYTHING)
def test_anything_is_encoded_faithfully_or_refused(value: Any) -> None:
    try:
        raw = encode(value)
    except InvalidValue:
        return
    assert encode(msgspec.json.decode(raw)) == raw
    assert msgspec.json.decode(raw) == with_lists(value)


def with_lists(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [with_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: with_lists(item) for key, item in value.items()}
    return value
