r"""The dedupe key: vectors that JavaScript has printed, and properties that need none.

dedupe_vectors.jsonl holds lines of [type, org_id, payload as JSON text, dedupe key], printed by node with this script:

    let seed = 7;
    const below = (n) => (seed = (seed * 48271) % 2147483647) % n;
    const one = (list) => list[below(list.length)];
    const some = (make, most) => Array.from({ length: below(most + 1) }, make);

    const CHARACTERS = [..."aZ09_- \"\\/\b\n\0\x1f\x7f\x80é漢\u2028\ue000\uffff😀", "\ud800", "\udfff"];
    const NUMBERS = ["0", "-0", "-0.0", "1.0", "1e0", "-1E+2", "0.1", "0.30000000000000004", "1e-5", "1e-6", "1e-7",
      "123456789012345678", "9007199254740993", "18446744073709551615", "1e16", "1e20", "1e21", "1.5e21", "1e22",
      "5e-324", "2.2250738585072014e-308", "1.7976931348623157e308"];
    const KEYS = ["10", "9", "-1", "", "__proto__", "constructor", "toJSON", "length"];

    const text = () => JSON.stringify(some(() => one(CHARACTERS), 6).join(""));
    const number = () => below(2) ? one(NUMBERS) : `${one(["", "-"])}${below(1e9)}.${below(1e9)}e${below(50) - 25}`;
    const key = () => (below(2) ? text() : JSON.stringify(one(KEYS)));
    const value = (depth) => one([number, text, () => one(["true", "false", "null"]), () => array(depth),
      () => object(depth)].slice(0, depth ? 5 : 3))();
    const array = (depth) => `[${some(() => value(depth - 1), 4)}]`;
    const object = (depth) => `{${some(() => `${key()}: ${value(depth - 1)}`, 6)}}`;

    const stable = (it) => {
      if (Array.isArray(it)) return `[${it.map(stable)}]`;
      if (it === null || typeof it !== "object") return JSON.stringify(it);
      return `{${Object.keys(it).sort().map((name) => `${JSON.stringify(name)}:${stable(it[name])}`)}}`;
    };
    const ascii = (line) => line.replace(/[^ -~]/g, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));

    for (let n = 0; n < 120; n++) {
      const type = one(["hygiene_scan", "sync", "é漢😀"]);
      const org = one([null, null, "", "7d1c6d3e-43b1-4a0e-9f10-2f1d2f7c1a55", "global", "a::b"]);
      const payload = n % 10 ? object(3) : value(3);
      const dedupeKey = `${type}::${org ?? "global"}::${stable(JSON.parse(payload))}`;
      console.log(ascii(JSON.stringify([type, org, payload, dedupeKey])));
    }
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmill import InvalidValue, harmonyk
from tests.kit.node import find_node

FILE = Path(__file__).with_name("dedupe_vectors.jsonl")
VECTORS: list[tuple[str, str | None, str, str]] = [tuple(json.loads(line)) for line in FILE.read_text().splitlines()]


def test_keys_are_those_that_javascript_makes() -> None:
    assert len(VECTORS) == 120
    made = [harmonyk.dedupe_key(type, org_id, json.loads(payload)) for type, org_id, payload, _ in VECTORS]
    assert made == [key for *_, key in VECTORS]


def test_the_vectors_hold_what_is_hard() -> None:
    """What `json.dumps(sort_keys=True)` has wrong for a reason: numbers, order of keys, surrogates."""
    keys = "\n".join(key for *_, key in VECTORS)
    for hard in (
        r"e\+21",
        r":1[,}\]]",
        r":0[,}\]]",
        "10000000000000000",
        r"\\ud800",
        r"\\udfff",
        "😀",
        r"\\u0000",
        "\x80",
    ):
        assert re.search(hard, keys), hard
    plain = [json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")) for _, _, text, _ in VECTORS]
    wrong = [key for text, (*_, key) in zip(plain, VECTORS, strict=True) if not key.endswith(f"::{text}")]
    assert len(wrong) > len(VECTORS) / 2


def test_node_still_prints_the_vectors() -> None:
    script = textwrap.dedent((__doc__ or "").partition("with this script:")[2])
    printed = subprocess.run([find_node(), "-"], input=script, capture_output=True, text=True, check=True, timeout=60)
    assert printed.stdout == FILE.read_text()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=5),
    max_leaves=20,
)
OBJECTS = st.dictionaries(st.text(max_size=4), JSON, max_size=5)


@pytest.mark.slow
@given(OBJECTS, st.integers())
def test_the_order_of_keys_does_not_matter_and_that_of_items_does(payload: Any, seed: int) -> None:
    mixed = shuffled(payload, random.Random(seed))
    assert harmonyk.dedupe_key("t", "o", mixed) == harmonyk.dedupe_key("t", "o", payload)
    assert harmonyk.dedupe_key("t", "o", [1, payload]) != harmonyk.dedupe_key("t", "o", [payload, 1])


@given(JSON, JSON)
def test_different_payloads_have_different_keys(one: Any, other: Any) -> None:
    same = harmonyk.dedupe_key("t", None, one) == harmonyk.dedupe_key("t", None, other)
    assert same == (in_javascript(one) == in_javascript(other))


@given(JSON)
def test_a_payload_has_the_same_key_before_and_after_it_was_json(payload: Any) -> None:
    assert harmonyk.dedupe_key("t", None, json.loads(json.dumps(payload))) == harmonyk.dedupe_key("t", None, payload)


def test_the_parts_of_a_key() -> None:
    assert (
        harmonyk.dedupe_key(type="scan", org_id="org-1", payload={"b": 1.0, "a": [2]}) == 'scan::org-1::{"a":[2],"b":1}'
    )
    assert harmonyk.dedupe_key("scan", None, {}) == "scan::global::{}"
    # Only a missing one is global, as in the original (`orgId ?? "global"`).
    assert harmonyk.dedupe_key("scan", "", {}) == "scan::::{}"


@pytest.mark.parametrize(
    "payload", [float("nan"), {"a": {1, 2}}, {"a": object()}, {1: 2}], ids=["nan", "set", "object", "number as key"]
)
def test_what_is_not_json_has_no_key(payload: Any) -> None:
    with pytest.raises(InvalidValue, match="^payload"):
        harmonyk.dedupe_key("scan", None, payload)


def in_javascript(value: Any) -> Any:
    """A value that equals another exactly if JavaScript cannot tell them apart, apart from the order of keys."""
    if isinstance(value, dict):
        return {name: in_javascript(item) for name, item in value.items()}
    if isinstance(value, list):
        return [in_javascript(item) for item in value]
    # To Python True is 1; to JavaScript 1 and 1.0 are the same number.
    return (type(value).__name__, value) if isinstance(value, bool) else value


def shuffled(value: Any, source: random.Random) -> Any:
    if isinstance(value, list):
        return [shuffled(item, source) for item in value]
    if isinstance(value, dict):
        return {name: shuffled(value[name], source) for name in source.sample(list(value), len(value))}
    return value
