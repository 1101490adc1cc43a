"""Data of others that is malicious or damaged: nothing runs, and nothing takes much memory."""

from __future__ import annotations

import base64
import bz2
import contextlib
import functools
import json
import lzma
import pickle
import struct
import tracemalloc
import zlib
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmill.compat import arq_jobs, celery_messages, rq_jobs
from jobmill.compat.found import ForeignJob, NotImportable
from jobmill.compat.plain import decompress, read_any, read_pickle
from jobmill.compat.tagged import from_tagged, to_tagged
from jobmill.core.payload import MAX_BYTES
from jobmill.errors import InvalidValue

NOT_PLAIN = "its pickle holds an object that is not plain data"


def refused(data: bytes) -> str:
    with pytest.raises(NotImportable) as raised:
        read_pickle(data, allow_pickle=True)
    return raised.value.reason


# ---------------------------------------------------------------------------------------------------- pickles


class Touch:
    """Pickled, it creates a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def _malicious(path: str) -> dict[str, bytes]:
    name = path.encode()
    return {
        "os.system": b"cos\nsystem\n(S'touch " + name + b"'\ntR.",
        "eval": b"c__builtin__\neval\n(S'open(\"" + name + b'", "w")\'\ntR.',
        "stack global": pickle.dumps(Touch(Path(path)), protocol=5),
        "protocol 0": pickle.dumps(Touch(Path(path)), protocol=0),
        "inst": b"(S'touch " + name + b"'\nios\nsystem\n.",
        "obj": b"(cos\nsystem\nS'touch " + name + b"'\no.",
        "newobj": b"\x80\x02cos\nsystem\nU\x05touch\x85\x81.",
        "extension": b"\x80\x02\x82\x01.",
        "persistent id": b"Pfile\n.",
        "build": b"\x80\x04cdatetime\ndate\n}(X\x01\x00\x00\x00xK\x01ub.",
        # A name of datetime that is none of the five types, and a path through one of them.
        "sys of datetime": b"\x80\x04\x8c\x08datetime\x8c\x03sys\x93.",
        "dotted": b"\x80\x04\x8c\x08datetime\x8c\x12datetime.fromisoform\x93.",
        "getattr": b"c__builtin__\ngetattr\n(cdatetime\ndatetime\nS'__class__'\ntR.",
        "in the middle of plain data": b"\x80\x04]\x94(K\x01K\x02cos\nsystem\n(S'touch " + name + b"'\ntRe.",
    }


@pytest.mark.parametrize("kind", _malicious("x"))
def test_a_pickle_that_names_code_is_refused_and_nothing_runs(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "ran"
    assert refused(_malicious(str(file))[kind]).startswith((NOT_PLAIN, "damaged: its pickle"))
    assert not file.exists()


def test_these_pickles_do_run_code_where_nobody_refuses(tmp_path: Path) -> None:
    """Otherwise the test above would show nothing."""
    file = tmp_path / "ran"
    for kind in ("os.system", "stack global", "inst", "in the middle of plain data"):
        pickle.loads(_malicious(str(file))[kind])
        assert file.exists()
        file.unlink()


PLAIN = {
    "none": None,
    "numbers": [True, 1, -(2**70), 1.5],
    "texts": ["", "Grüße", "x" * 300, b"bytes"],
    "nested": {"a": [(1, 2), {"b": ()}]},
    "times": [
        datetime(2026, 1, 2, 3, tzinfo=UTC),
        date(2026, 1, 2),
        time(1, 2),
        timedelta(hours=1),
        datetime(2026, 1, 2),
    ],
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_comes_out_of_a_pickle(protocol: int) -> None:
    plain = PLAIN if protocol > 2 else {name: value for name, value in PLAIN.items() if name not in ("texts", "times")}
    assert read_pickle(pickle.dumps(plain, protocol=protocol), allow_pickle=True) == plain


def test_without_the_flag_no_pickle_is_read() -> None:
    with pytest.raises(NotImportable, match="--allow-pickle"):
        read_pickle(pickle.dumps(1), allow_pickle=False)
    with pytest.raises(NotImportable, match="--allow-pickle"):
        read_any(pickle.dumps({"f": "x"}), allow_pickle=False)


def test_a_pickle_cannot_claim_memory() -> None:
    claims = {
        "memo": b"\x80\x04Nr\xff\xff\xff\x7f.",
        "bytes8": b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.",
        "bytearray8": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x.",
        "unicode": b"\x80\x02X" + struct.pack("<I", 100_000_000) + b"x.",
        "frame": b"\x80\x04\x95" + struct.pack("<Q", 2**60) + b"N.",
        "long": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b"x.",
    }
    tracemalloc.start()
    try:
        for data in claims.values():
            refused(data)
        assert tracemalloc.get_traced_memory()[1] < 10 * 1024 * 1024
    finally:
        tracemalloc.stop()
    assert "larger than" in refused(b"\x80\x04" + b"N" * (MAX_BYTES + 1))


def test_a_pickle_whose_json_would_not_end_is_refused() -> None:
    laughs: Any = []
    for _ in range(60):
        laughs = [laughs, laughs]
    cycle: list[Any] = []
    cycle.append(cycle)
    assert "larger than" in refused(pickle.dumps(laughs))
    assert refused(pickle.dumps(cycle)) == "its pickle holds a list or dict that contains itself"
    shared = ["x"] * 1_000
    many = [shared] * 1_000
    assert read_pickle(pickle.dumps(many), allow_pickle=True) == many


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(NotImportable):
        read_pickle(data, allow_pickle=True)
    with contextlib.suppress(NotImportable):
        read_any(data, allow_pickle=True)


# ---------------------------------------------------------------------------------------------------- compression


@pytest.mark.parametrize(
    ("kind", "compress"),
    [
        ("application/x-gzip", zlib.compress),
        ("application/x-bz2", functools.partial(bz2.compress, compresslevel=1)),
        ("application/x-lzma", functools.partial(lzma.compress, preset=0)),
    ],
)
def test_compressed_data_is_read_up_to_the_limit(kind: str, compress: Any) -> None:
    assert decompress(compress(b"x" * 1000), kind) == b"x" * 1000
    bomb = compress(b"\x00" * 40 * 1024 * 1024)
    tracemalloc.start()
    try:
        with pytest.raises(NotImportable, match="larger than 10 MB"):
            decompress(bomb, kind)
        assert tracemalloc.get_traced_memory()[1] < 30 * 1024 * 1024
    finally:
        tracemalloc.stop()
    with pytest.raises(NotImportable, match="ends too early"):
        decompress(compress(bytes(range(256)) * 10)[:-6], kind)
    with pytest.raises(NotImportable, match="damaged"):
        decompress(b"nothing compressed", kind)


def test_unknown_compression_is_named() -> None:
    with pytest.raises(NotImportable, match="its compression is not one of application/x-gzip"):
        decompress(b"", "application/zstd")


# ---------------------------------------------------------------------------------------------------- messages


def message(body: Any = None, **changes: Any) -> bytes:
    """A message of Celery, with changes of its headers (h_…), properties (p_…) and other fields."""
    body = [[1], {}, {}] if body is None else body
    text = body if isinstance(body, str) else base64.b64encode(json.dumps(body).encode()).decode()
    headers: dict[str, Any] = {"task": "add", "id": "a-1"}
    properties: dict[str, Any] = {"body_encoding": "base64"}
    top: dict[str, Any] = {"body": text, "content-type": "application/json"}
    for name, value in changes.items():
        kind, _, field = name.partition("_")
        {"h": headers, "p": properties, "t": top}[kind][field.replace("__", "-")] = value
    return json.dumps({"headers": headers, "properties": properties, **top}).encode()


def read(raw: bytes) -> ForeignJob:
    return celery_messages.read_message(raw, "celery", now_ms=1_000, allow_pickle=True)


DEEP: Any = []
for _ in range(150):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (message()[:-20], "damaged: the message is not JSON"),
        (b"[1]", "damaged: the message is of type list, expected dict"),
        (b"[" * 1_000_000, "damaged: the message is not JSON"),
        (message("%%%"), "damaged: the body is not base64"),
        (message({}), "damaged: the body is not a list of args, kwargs and options"),
        (message([{}, {}, {}]), "damaged: args is of type dict, expected list or tuple"),
        (message([[], [], {}]), "damaged: kwargs is of type list, expected dict"),
        (message([[DEEP], {}, {}]), "damaged: arguments: expected at most 100 levels of nesting"),
        (message([[{"__type__": "os", "__value__": 1}], {}, {}]), "damaged: __type__: expected one of datetime"),
        (message([[{"__type__": ["x"], "__value__": 1}], {}, {}]), "damaged: __type__: expected one of datetime"),
        (message(h_task=7), "damaged: task is of type int, expected str"),
        (message(h_id=None), "damaged: id is of type NoneType, expected str"),
        (message(h_eta="tomorrow"), "damaged: eta is not a time in ISO 8601"),
        (message(h_eta=7), "damaged: eta is of type int, expected str"),
        (message(h_expires="1970-01-01T00:00:00"), "it has expired"),
        (message(h_timelimit=7), "damaged: timelimit is of type int, expected list or tuple"),
        (message(h_timelimit=["x"]), "damaged: timelimit is of type str, expected int or float"),
        (message(h_compression="application/zstd"), "its compression is not one of"),
        (message(h_compression=5), "damaged: compression is of type int, expected str"),
        (message(h_compression="application/x-gzip"), "damaged: its compressed data cannot be read"),
        (message(h_group="g"), "it is part of a workflow (group)"),
        (message([[1], {}, {"chord": {"task": "x"}}]), "it is part of a workflow (chord)"),
        (message([[1], {}, {"callbacks": [{}]}]), "it is part of a workflow (callbacks)"),
        (message(p_priority="high"), "damaged: priority is of type str, expected int"),
        (message(p_body_encoding="rot13"), "its body_encoding is not base64"),
        (message(t_content__type="application/x-yaml"), "its serializer is not json, msgpack or pickle"),
        (message("eA==" * 6_000_000), "its payload is larger than 10 MB"),
    ],
)
def test_a_damaged_message_of_celery_says_what_is_wrong(raw: bytes, reason: str) -> None:
    with pytest.raises(NotImportable) as raised:
        read(raw)
    assert raised.value.reason.startswith(reason)


def test_the_first_protocol_of_celery() -> None:
    """Celery 3 wrote it, and Celery 4 and 5 write it with `task_protocol = 1`."""
    body = {"task": "add", "id": "a-1", "args": [1], "kwargs": {"y": 2}, "eta": "2026-01-02T03:04:05", "retries": 1}
    raw = json.loads(message())
    raw["headers"] = {}
    raw["body"] = base64.b64encode(json.dumps(body).encode()).decode()
    found = read(json.dumps(raw).encode())
    assert (found.id, found.name, found.args, found.kwargs) == ("a-1", "add", [1], {"y": 2})
    assert found.due_ms == int(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "its data is gone"),
        ({b"data": b"nothing compressed"}, "damaged: its compressed data cannot be read"),
        ({b"data": zlib.compress(b"[1, 2]")}, "damaged: its data is not function, instance, args and kwargs"),
        ({b"data": zlib.compress(b'["f", {"a": 1}, [], {}]')}, "it calls a method of an object"),
        ({b"data": zlib.compress(b"[null, null, [], {}]")}, "damaged: the name of the function is of type NoneType"),
        ({b"data": zlib.compress(b'["f", null, [], {}]'), b"timeout": b"x"}, "damaged: timeout is not a whole number"),
        ({b"data": zlib.compress(b'["f", null, [], {}]'), b"repeats_left": b"2"}, "it has repetitions"),
        ({b"data": zlib.compress(b"\x00\x01")}, "its serializer is unknown"),
        ({b"data": zlib.compress(b"[" * 500_000)}, "damaged: its data is not JSON"),
    ],
)
def test_a_damaged_job_of_rq_says_what_is_wrong(fields: dict[bytes, bytes], reason: str) -> None:
    with pytest.raises(NotImportable) as raised:
        rq_jobs.read_job("a", fields, "default")
    assert raised.value.reason.startswith(reason)
    assert raised.value.id == "a"


@pytest.mark.parametrize(
    ("id", "data", "reason"),
    [
        ("a", None, "its data is gone"),
        ("cron:nightly", b"{}", "it is a run of a cron job"),
        ("a", b"[]", "damaged: its data is of type list, expected dict"),
        ("a", b"{}", "damaged: kwargs is of type NoneType, expected dict"),
        ("a", b'{"f": 5, "a": [], "k": {}}', "damaged: the name of the function is of type int"),
        ("a", b"\x85\xa1f", "damaged: its data is not msgpack"),
        ("a", b"", "its serializer is unknown"),
    ],
)
def test_a_damaged_job_of_arq_says_what_is_wrong(id: str, data: bytes | None, reason: str) -> None:
    with pytest.raises(NotImportable) as raised:
        arq_jobs.read_job(id, data, "arq:queue")
    assert raised.value.reason.startswith(reason)


def test_msgpack_of_arq() -> None:
    import msgspec

    data = msgspec.msgpack.encode({"t": None, "f": "send", "a": ["ada"], "k": {"n": 1}, "et": 5})
    found = arq_jobs.read_job("a", data, "arq:queue")
    assert (found.name, found.args, found.kwargs) == ("send", ["ada"], {"n": 1})


def test_tags_are_read_back() -> None:
    values = [1, "x", None, {"a": (1,)}, date(2026, 1, 2), datetime(2026, 1, 2, tzinfo=UTC), Decimal("1.5"), b"\xff"]
    assert from_tagged(to_tagged(values)) == [*values[:3], {"a": [1]}, *values[4:]]
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(InvalidValue, match="at most 100 levels"):
        to_tagged(cycle)
