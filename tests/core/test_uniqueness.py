"""The dedupe key: vectors printed by JavaScript (node 20), and properties that need none."""

from __future__ import annotations

import datetime
import enum
import hashlib
import json
import random
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmill.core.limits import check_unique_key
from jobmill.core.payload import MAX_DEPTH
from jobmill.core.unique_keys import dedupe_key, key_hash, stable_json, storable_key
from jobmill.errors import InvalidValue

NUMBERS: list[tuple[int | float, str]] = [
    (0, "0"),
    (0.0, "0"),
    (-0.0, "0"),
    (1.0, "1"),
    (-1.0, "-1"),
    (1.5, "1.5"),
    (-1.25, "-1.25"),
    (100, "100"),
    (0.1, "0.1"),
    (0.1 + 0.2, "0.30000000000000004"),
    (1 / 3, "0.3333333333333333"),
    (123.456, "123.456"),
    (1e-5, "0.00001"),
    (1e-6, "0.000001"),
    (1.5e-6, "0.0000015"),
    (1e-7, "1e-7"),
    (1.5e-7, "1.5e-7"),
    (-1.23e-20, "-1.23e-20"),
    (1e15, "1000000000000000"),
    (1e16, "10000000000000000"),
    (1.5e16, "15000000000000000"),
    (1e20, "100000000000000000000"),
    (123456789012345680000.0, "123456789012345680000"),
    (999999999999999900000.0, "999999999999999900000"),
    (1e21, "1e+21"),
    (-1e21, "-1e+21"),
    (1.5e21, "1.5e+21"),
    (1e22, "1e+22"),
    (1e100, "1e+100"),
    (5e-324, "5e-324"),
    (2.2250738585072014e-308, "2.2250738585072014e-308"),
    (1.7976931348623157e308, "1.7976931348623157e+308"),
    (2**53 - 1, "9007199254740991"),
    (2**53, "9007199254740992"),
    (2**53 + 1, "9007199254740992"),
    (2**53 + 3, "9007199254740996"),
    (2**63, "9223372036854776000"),
    (-(2**63), "-9223372036854776000"),
    (2**64, "18446744073709552000"),
    (10**20 + 1, "100000000000000000000"),
    (10**21, "1e+21"),
    (10**21 - 1, "1e+21"),
    (2**70, "1.1805916207174113e+21"),
    (2**1000, "1.0715086071862673e+301"),
]

TEXTS: list[tuple[str, str]] = [
    ("", '""'),
    ("plain", '"plain"'),
    ('"\\/', '"\\"\\\\/"'),
    ("\b\t\n\f\r", '"\\b\\t\\n\\f\\r"'),
    ("\x00\x01\x0b\x1f", '"\\u0000\\u0001\\u000b\\u001f"'),
    ("\x7f\x80\xa0", '"\x7f\x80\xa0"'),
    ("é漢", '"é漢"'),
    ("\u2028\u2029\ufeff", '"\u2028\u2029\ufeff"'),
    ("😀\U0010ffff", '"😀\U0010ffff"'),
    ("\ud800", '"\\ud800"'),
    ("a\udfffb", '"a\\udfffb"'),
    ("\udc00\ud800", '"\\udc00\\ud800"'),
    ("\ud83d\ude00", '"😀"'),  # to JavaScript this is one character
    ("\ud800😀\udbff", '"\\ud800😀\\udbff"'),
    ("<script>&'", '"<script>&\'"'),
]

SHAPES: list[tuple[Any, str]] = [
    (None, "null"),
    (True, "true"),
    (False, "false"),
    ([], "[]"),
    ({}, "{}"),
    ([3, 1, 2], "[3,1,2]"),
    ((1, (2.0,)), "[1,[2]]"),
    ([None, [True, {}]], "[null,[true,{}]]"),
    ({"b": 1, "a": 2}, '{"a":2,"b":1}'),
    ({"b": [{"d": 1, "c": {"f": 1, "e": 2}}], "a": None}, '{"a":null,"b":[{"c":{"e":2,"f":1},"d":1}]}'),
    ({"10": 1, "9": 2, "-1": 3, "1": 4}, '{"-1":3,"1":4,"10":1,"9":2}'),
    ({"a": 1, "B": 2, "_": 3, "": 4, "ab": 5}, '{"":4,"B":2,"_":3,"a":1,"ab":5}'),
    ({"é": 1, "z": 2, "e\u0301": 3}, '{"e\u0301":3,"z":2,"é":1}'),
    # By code points it would be the other way round.
    ({"\ufffd": 1, "😀": 2}, '{"😀":2,"\ufffd":1}'),
    ({"\ue000": 1, "\U0010ffff": 2, "\ud7ff": 3}, '{"\ud7ff":3,"\U0010ffff":2,"\ue000":1}'),
    ({"\udfff": 1, "😀": 2}, '{"😀":2,"\\udfff":1}'),
    ({"😀": 1, "\ud800": 2}, '{"\\ud800":2,"😀":1}'),
    ({"__proto__": 1, "constructor": 2}, '{"__proto__":1,"constructor":2}'),
    ({'"\n': "\x1b"}, '{"\\"\\n":"\\u001b"}'),
    ({"to": "ada@example.com", "n": 1.0, "at": 1e21}, '{"at":1e+21,"n":1,"to":"ada@example.com"}'),
]

VECTORS: list[tuple[Any, str]] = [*NUMBERS, *TEXTS, *SHAPES]


@pytest.mark.parametrize(("value", "printed"), VECTORS, ids=[ascii(value)[:40] for value, _ in VECTORS])
def test_values_are_printed_as_javascript_prints_them(value: Any, printed: str) -> None:
    assert stable_json(value) == printed


def test_a_key_is_name_tenant_and_payload() -> None:
    assert dedupe_key("sync", "org-1", {"b": 1, "a": "x"}) == 'sync::org-1::{"a":"x","b":1}'
    assert dedupe_key("sync", None, {}) == "sync::global::{}"
    # Only a missing tenant is global: the original's `orgId ?? "global"`.
    assert dedupe_key("sync", "", {}) == "sync::::{}"


def test_the_hash_of_a_key() -> None:
    assert key_hash("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert key_hash("sync::é::{}") == hashlib.sha256("sync::é::{}".encode()).hexdigest()
    # A tenant may hold what UTF-8 cannot.
    assert key_hash(dedupe_key("sync", "\ud800", {})) == hashlib.sha256(b"sync::\xed\xa0\x80::{}").hexdigest()


KEYS: list[tuple[str, bool]] = [
    ("scan::global::{}", True),
    ('scan::é::{"😀":"\\ud800\\u0000"}', True),
    ("k" * 1_024, True),
    ("k" * 1_025, False),
    # A character outside the first plane is two UTF-16 units.
    ("😀" * 512, True),
    ("😀" * 512 + "k", False),
    ('scan::global::{"a":"\x7f"}', False),
    ('scan::global::{"a":"\x9f"}', False),
]


@pytest.mark.parametrize(("key", "fits"), KEYS, ids=[ascii(key)[:40] for key, _ in KEYS])
def test_a_key_that_no_store_could_hold_is_stored_as_its_hash(key: str, fits: bool) -> None:
    assert storable_key(key) == (key if fits else f"sha256:{key_hash(key)}")
    assert check_unique_key(storable_key(key))


class Level(enum.IntEnum):
    LOW = 1


def deep(depth: int) -> Any:
    value: Any = []
    for n in range(depth - 1):
        value = [value] if n % 2 else {"k": value}
    return value


def cyclic() -> Any:
    value: list[Any] = []
    value.append({"k": value})
    return value


REFUSED: list[tuple[Any, str]] = [
    (float("nan"), "payload: expected a finite number in the range of a double, got nan"),
    ({"a": [float("inf")]}, "payload.a[0]: expected a finite number"),
    (10**400, "payload: expected a finite number"),
    (-(10**5_000), "payload: expected a finite number"),
    ({"at": datetime.date(2024, 1, 1)}, "payload.at: expected None, bool, int, float, str, list, tuple or dict, got "),
    ([datetime.datetime(2024, 1, 1)], "payload[0]: expected None"),
    ({1, 2}, "payload: expected None, bool, int, float, str, list, tuple or dict, got {1, 2}; set is not JSON"),
    (b"x", "payload: expected None"),
    (Level.LOW, "payload: expected None"),
    (OrderedDict(a=1), "payload: expected None"),
    ({"a": {1: 2}}, "payload.a: expected only str as keys, got 1"),
    ({None: 2}, "payload: expected only str as keys, got None"),
    (deep(MAX_DEPTH + 1), "payload"),
    (deep(100_000), "payload"),
    (cyclic(), "payload[0].k[0].k"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=[message[:50] for _, message in REFUSED])
def test_what_is_not_json_is_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        stable_json(value)
    assert str(caught.value).startswith(message)


def test_the_deepest_payload_is_printed() -> None:
    assert json.loads(stable_json(deep(MAX_DEPTH))) == deep(MAX_DEPTH)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=5)
)


@given(JSON)
def test_the_text_is_json_of_the_same_value(value: Any) -> None:
    assert json.loads(stable_json(value), parse_int=float) == value


@given(JSON, st.integers())
def test_the_order_of_keys_does_not_matter(value: Any, seed: int) -> None:
    assert stable_json(shuffled(value, random.Random(seed))) == stable_json(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_reads_back_as_itself_and_a_whole_float_prints_like_its_int(number: float) -> None:
    assert float(stable_json(number)) == number
    if number.is_integer():
        assert stable_json(int(number)) == stable_json(number)


def shuffled(value: Any, source: random.Random) -> Any:
    if isinstance(value, list):
        return [shuffled(item, source) for item in value]
    if isinstance(value, dict):
        keys = source.sample(list(value), len(value))
        return {key: shuffled(value[key], source) for key in keys}
    return value
